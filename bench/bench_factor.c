/* Times one job of gac_factor_job. bench_factor.py makes the files and judges the result.
 *
 *   bench_factor DEVICE spectrum|channels N_OUT N_IN WEIGHT GRAM RUNS OUT
 *
 * WEIGHT has floats (n_out, n_in), GRAM doubles (n_in, n_in). OUT gets the basis in floats, or
 * the order in 32-bit integers. Prints JSON: seconds of each run, with the transfers. */
#include <gac/device.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int complain(const char *what)
{
    fprintf(stderr, "bench_factor: %s\n", what);
    return 1;
}

static void *read_file(const char *path, size_t n_bytes)
{
    FILE *file = fopen(path, "rb");
    void *data = malloc(n_bytes);
    if (file && data && fread(data, 1, n_bytes, file) != n_bytes) {
        free(data);
        data = NULL;
    }
    if (file)
        fclose(file);
    return file ? data : NULL;
}

static bool write_file(const char *path, const void *data, size_t n_bytes)
{
    FILE *file = fopen(path, "wb");
    if (!file)
        return false;
    bool ok = fwrite(data, 1, n_bytes, file) == n_bytes;
    return fclose(file) == 0 && ok;
}

/* Loads the libraries: a small job of every kind of decomposition. */
static gac_status warm_up(gac_compute *compute, gac_error *err)
{
    float weight[12] = { 1, 2, 3, 4, 5, 7, 9, 11, 2, 4, 1, 0 }, basis[9];
    double gram[9] = { 2, 0, 0, 0, 3, 0, 0, 0, 4 }, energy[3];
    gac_factor_job job = { .kind = GAC_FACTOR_SPECTRUM,
                           .n_out = 3,
                           .n_in = 3,
                           .weight = weight,
                           .gram = gram,
                           .energy = energy,
                           .basis = basis,
                           .name = "warm-up" };
    return compute->ops->factor(compute->state, &job, 1, err);
}

static int run(gac_compute *compute, gac_factor_job *job, int n_runs, const char *out)
{
    const int64_t n = job->n_out < job->n_in ? job->n_out : job->n_in;
    const bool spectrum = job->kind == GAC_FACTOR_SPECTRUM;
    const size_t n_bytes = (size_t)(spectrum ? job->n_out * n : job->n_in) * 4;
    gac_error err = GAC_ERROR_INIT;
    void *made = calloc(n_bytes, 1);
    double *values = calloc((size_t)job->n_in + 1, sizeof *values);
    if (!made || !values)
        return complain("out of memory");
    job->basis = made;
    job->order = made;
    job->energy = job->loss = values;
    if (warm_up(compute, &err) != GAC_OK)
        return complain(err.text);
    printf("{\"times_s\": [");
    for (int i = 0; i < n_runs; i++) {
        const double start = gac_now_s();
        if (compute->ops->factor(compute->state, job, 1, &err) != GAC_OK)
            return complain(err.text);
        printf("%s%.6f", i ? ", " : "", gac_now_s() - start);
    }
    printf("], \"first\": %.9g}\n", values[0]);
    const bool ok = write_file(out, made, n_bytes);
    free(made);
    free(values);
    return ok ? 0 : complain("the result cannot be written");
}

int main(int argc, char **argv)
{
    gac_compute compute = GAC_COMPUTE_INIT;
    gac_compute_options how = GAC_COMPUTE_OPTIONS_INIT;
    gac_error err = GAC_ERROR_INIT;
    if (argc != 9)
        return complain("usage: DEVICE spectrum|channels N_OUT N_IN WEIGHT GRAM RUNS OUT");
    gac_factor_job job = { .kind = strcmp(argv[2], "spectrum") == 0 ? GAC_FACTOR_SPECTRUM
                                                                    : GAC_FACTOR_CHANNELS,
                           .n_out = atoll(argv[3]),
                           .n_in = atoll(argv[4]),
                           .block = 1,
                           .name = "weight" };
    float *weight = read_file(argv[5], (size_t)(job.n_out * job.n_in) * 4);
    double *gram = read_file(argv[6], (size_t)(job.n_in * job.n_in) * 8);
    if (!weight || !gram)
        return complain("a file cannot be read");
    job.weight = weight;
    job.gram = gram;
    if (gac_compute_open(argv[1], &how, &compute, &err) != GAC_OK)
        return complain(err.text);
    int code = run(&compute, &job, atoi(argv[7]), argv[8]);
    gac_compute_close(&compute);
    free(weight);
    free(gram);
    return code;
}
