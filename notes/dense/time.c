/* Times GEMMs as the sweeps of gac probe do. Reads lines "DTYPE M N K", prints
 * "DTYPE M N K MICROSECONDS NOISE CLOCK_MHZ N_UNSETTLED N_SAMPLES".
 *
 *   cc -O2 -Iinclude notes/dense/time.c -o time -Lbuild -lgac
 *   ./time SECONDS < shapes.txt > times.txt            with GAC_BACKEND_PATH */
#include <gac/measure.h>

#include <stdlib.h>
#include <string.h>

int main(int argc, char **argv)
{
    static const gac_timing_rules rules = GAC_TIMING_RULES_SWEEP_INIT;
    static gac_timing t;
    gac_error err = GAC_ERROR_INIT;
    gac_device *device;
    char name[32];
    long m, n, k;
    double end_s = gac_now_s() + (argc > 1 ? atof(argv[1]) : 60);
    if (gac_device_open("cuda", &device, &err)) {
        fprintf(stderr, "%s\n", err.text);
        return 1;
    }
    while (scanf("%31s %ld %ld %ld", name, &m, &n, &k) == 4 && gac_now_s() < end_s) {
        gac_task_spec spec = { .kind = GAC_TASK_GEMM, .gemm = { m, n, k, false } };
        gac_task *task = NULL;
        err = (gac_error)GAC_ERROR_INIT;
        if (!gac_dtype_parse(name, &spec.dtype) || gac_task_create(device, &spec, &task, &err))
            continue;
        if (gac_timing_measure(device, task, &rules, &t, &err) == GAC_OK)
            printf("%s %ld %ld %ld %.4f %.4f %d %d %d\n", name, m, n, k, t.median_us, t.noise,
                   t.clock_mhz_min, t.n_unsettled, t.n_samples);
        gac_task_free(task);
    }
    gac_device_close(device);
    return 0;
}
