/* Gram matrices and factors (gac_factor_job) on the GPU against the CPU.
 *
 *   test_factor_gpu [check|small] [SEED]
 *
 * small is a selection for compute-sanitizer. Tolerances: sums of the same numbers 1e-12,
 * after a norm 3e-3 (F16) or 2e-2 (BF16); energies, and losses of W' over that of W' = 0,
 * 1e-6, since the bases are in F32. Signs and turned subspaces may differ, so bases are
 * judged by what they lose. */
#include "test_factor_gpu.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* A weight (n_out, n_in) and the Gram matrix of n_rows inputs whose numbers depend on each
 * other. */
typedef struct weight_case {
    int64_t n_out, n_in;
    float *weight;
    double *gram;
} weight_case;

static weight_case make_case(int64_t n_out, int64_t n_in, int64_t n_rows)
{
    weight_case c = { n_out, n_in, zeros(n_out * n_in, 4), zeros(n_in * n_in, 8) };
    double *row = zeros(n_in, sizeof *row);
    for (int64_t i = 0; i < n_out * n_in; i++)
        c.weight[i] = (float)random_number();
    for (int64_t r = 0; r < n_rows; r++) {
        for (int64_t i = 0; i < n_in; i++)
            row[i] = random_number() * (1 + (double)(i % 7)) + (i > 2 ? 0.7 * row[i - 3] : 0);
        for (int64_t i = 0; i < n_in; i++)
            for (int64_t j = 0; j < n_in; j++)
                c.gram[i * n_in + j] += row[i] * row[j];
    }
    free(row);
    return c;
}

static void free_case(weight_case *c)
{
    free(c->weight);
    free(c->gram);
}

/* tr((W - V) G (W - V)^T); v NULL: zeros. */
static double lost(const weight_case *c, const double *v)
{
    const int64_t n = c->n_in;
    double sum = 0, *d = zeros(n, sizeof *d);
    for (int64_t o = 0; o < c->n_out; o++) {
        for (int64_t i = 0; i < n; i++)
            d[i] = (double)c->weight[o * n + i] - (v ? v[o * n + i] : 0);
        for (int64_t i = 0; i < n; i++) {
            double part = 0;
            for (int64_t j = 0; j < n; j++)
                part += c->gram[i * n + j] * d[j];
            sum += d[i] * part;
        }
    }
    free(d);
    return sum;
}

static gac_status run_jobs(gac_compute *compute, const gac_factor_job *jobs, int n, gac_error *err)
{
    return compute->ops->factor(compute->state, jobs, n, err);
}

/* What the first rank columns of a basis lose: |W|^2 - |U_r^T W|^2 in the metric of G. */
static double basis_loss(const weight_case *c, const float *basis, int64_t n, int64_t rank)
{
    double *v = zeros(c->n_out * c->n_in, sizeof *v), *first = zeros(c->n_in, sizeof *first);
    for (int64_t r = 0; r < rank; r++) {
        memset(first, 0, (size_t)c->n_in * sizeof *first);
        for (int64_t o = 0; o < c->n_out; o++)
            for (int64_t i = 0; i < c->n_in; i++)
                first[i] += (double)basis[o * n + r] * (double)c->weight[o * c->n_in + i];
        for (int64_t o = 0; o < c->n_out; o++)
            for (int64_t i = 0; i < c->n_in; i++)
                v[o * c->n_in + i] += (double)basis[o * n + r] * first[i];
    }
    double sum = lost(c, v);
    free(v);
    free(first);
    return sum;
}

/* How far the columns of a basis are from orthonormal. */
static double skew(const float *basis, int64_t n_rows, int64_t n)
{
    double most = 0;
    for (int64_t a = 0; a < n; a++)
        for (int64_t b = 0; b <= a; b++) {
            double sum = a == b ? -1 : 0;
            for (int64_t i = 0; i < n_rows; i++)
                sum += (double)basis[i * n + a] * (double)basis[i * n + b];
            most = fmax(most, fabs(sum));
        }
    return most;
}

/* Two spectra with one Gram matrix and one without, in one call. */
static void check_spectrum(pair *p, int64_t n_out, int64_t n_in, int64_t n_rows)
{
    const int64_t n = n_out < n_in ? n_out : n_in;
    gac_error err = GAC_ERROR_INIT;
    weight_case c = make_case(n_out, n_in, n_rows);
    gac_factor_job jobs[2][3];
    char name[120];
    snprintf(name, sizeof name, "spectrum (%lld, %lld) of %lld rows", (long long)n_out,
             (long long)n_in, (long long)n_rows);
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++)
            jobs[d][i] = (gac_factor_job){ .kind = GAC_FACTOR_SPECTRUM,
                                           .n_out = n_out,
                                           .n_in = n_in,
                                           .weight = c.weight,
                                           .gram = i < 2 ? c.gram : NULL,
                                           .energy = zeros(n, 8),
                                           .basis = zeros(n_out * n, 4),
                                           .name = name };
    if (!failed(run_jobs(&p->cpu, jobs[0], 3, &err), name, &err) &&
        !failed(run_jobs(&p->gpu, jobs[1], 3, &err), name, &err)) {
        const double whole = lost(&c, NULL);
        for (int i = 0; i < 3; i++) {
            double worst = 0, sum = 0;
            for (int64_t r = 0; r < n; r++) {
                worst = fmax(worst, fabs(jobs[0][i].energy[r] - jobs[1][i].energy[r]));
                sum += jobs[0][i].energy[r];
            }
            below(name, worst / sum, 1e-6);
            below("  orthonormal", skew(jobs[1][i].basis, n_out, n), 1e-5);
        }
        const int64_t ranks[] = { 1, n / 3 + 1, n - 1 };
        for (int i = 0; i < 3; i++) {
            double tail = 0;
            for (int64_t r = n - 1; r >= ranks[i]; r--)
                tail += jobs[0][0].energy[r];
            below("  lost by a rank",
                  fabs(basis_loss(&c, jobs[1][1].basis, n, ranks[i]) - tail) / whole, 1e-6);
        }
    }
    for (int d = 0; d < 2; d++)
        for (int i = 0; i < 3; i++) {
            free(jobs[d][i].energy);
            free(jobs[d][i].basis);
        }
    free_case(&c);
}

static bool is_order(const int32_t *order, int64_t n)
{
    bool *seen = zeros(n, sizeof *seen), ok = true;
    for (int64_t i = 0; i < n && ok; i++) {
        ok = order[i] >= 0 && order[i] < n && !seen[order[i]];
        if (ok)
            seen[order[i]] = true;
    }
    free(seen);
    return ok;
}

static void check_channels(pair *p, int64_t n_out, int64_t n_in, int64_t block, int64_t n_rows)
{
    const int64_t n = n_in / block;
    gac_error err = GAC_ERROR_INIT;
    weight_case c = make_case(n_out, n_in, n_rows);
    gac_factor_job jobs[2];
    char name[120];
    snprintf(name, sizeof name, "channels (%lld, %lld) by %lld of %lld rows", (long long)n_out,
             (long long)n_in, (long long)block, (long long)n_rows);
    for (int d = 0; d < 2; d++)
        jobs[d] = (gac_factor_job){ .kind = GAC_FACTOR_CHANNELS,
                                    .n_out = n_out,
                                    .n_in = n_in,
                                    .weight = c.weight,
                                    .gram = n_rows > 0 ? c.gram : NULL,
                                    .block = block,
                                    .order = zeros(n, 4),
                                    .loss = zeros(n + 1, 8),
                                    .name = name };
    if (!failed(run_jobs(&p->cpu, &jobs[0], 1, &err), name, &err) &&
        !failed(run_jobs(&p->gpu, &jobs[1], 1, &err), name, &err)) {
        double worst = 0;
        int64_t n_same = 0;
        for (int64_t i = 0; i <= n; i++)
            worst = fmax(worst, fabs(jobs[0].loss[i] - jobs[1].loss[i]));
        while (n_same < n && jobs[0].order[n_same] == jobs[1].order[n_same])
            n_same++;
        below(name, worst / jobs[0].loss[0], 1e-6);
        judge(is_order(jobs[1].order, n), "  an order; the same first", (double)n_same, (double)n);
        judge(jobs[1].order[0] == jobs[0].order[0], "  the first", jobs[1].order[0],
              jobs[0].order[0]);
    }
    for (int d = 0; d < 2; d++) {
        free(jobs[d].order);
        free(jobs[d].loss);
    }
    free_case(&c);
}

/* What W' (n_out, n_kept) for some inputs loses. */
static double refit_loss(const weight_case *c, const float *made, const int32_t *kept, int64_t n)
{
    double *v = zeros(c->n_out * c->n_in, sizeof *v);
    for (int64_t o = 0; o < c->n_out; o++)
        for (int64_t k = 0; k < n; k++)
            v[o * c->n_in + kept[k]] = (double)made[o * n + k];
    double sum = lost(c, v);
    free(v);
    return sum;
}

static void check_projections(pair *p, int64_t n_out, int64_t n_in, int64_t n_rows)
{
    const int64_t rank = n_out / 2 + 1, stride = n_out + 3, n_kept = n_in / 2 + 1;
    gac_error err = GAC_ERROR_INIT;
    weight_case c = make_case(n_out, n_in, n_rows);
    float *basis = zeros(n_out * stride, 4), *made[2], *refit[2];
    int32_t *kept = zeros(n_kept, 4);
    char name[120];
    snprintf(name, sizeof name, "project and refit (%lld, %lld) of %lld rows", (long long)n_out,
             (long long)n_in, (long long)n_rows);
    for (int64_t i = 0; i < n_out * stride; i++)
        basis[i] = i % stride < rank ? (float)random_number() : NAN; /* must not be looked at */
    for (int64_t i = 0; i < n_kept; i++)
        kept[i] = (int32_t)(i * n_in / n_kept);
    gac_status status = GAC_OK;
    for (int d = 0; d < 2; d++) {
        made[d] = zeros(rank * n_in, 4);
        refit[d] = zeros(n_out * n_kept, 4);
        const gac_factor_job jobs[] = { { .kind = GAC_FACTOR_PROJECT,
                                          .n_out = n_out,
                                          .n_in = n_in,
                                          .weight = c.weight,
                                          .basis = basis,
                                          .basis_stride = stride,
                                          .n_kept = rank,
                                          .made = made[d],
                                          .name = name },
                                        { .kind = GAC_FACTOR_REFIT,
                                          .n_out = n_out,
                                          .n_in = n_in,
                                          .weight = c.weight,
                                          .gram = c.gram,
                                          .kept = kept,
                                          .n_kept = n_kept,
                                          .made = refit[d],
                                          .name = name } };
        if (status == GAC_OK)
            status = run_jobs(d == 0 ? &p->cpu : &p->gpu, jobs, 2, &err);
    }
    if (!failed(status, name, &err)) {
        const double whole = lost(&c, NULL);
        const double cpu = refit_loss(&c, refit[0], kept, n_kept) / whole;
        const double gpu = refit_loss(&c, refit[1], kept, n_kept) / whole;
        below(name, distance_floats(made[1], made[0], rank * n_in), 1e-6);
        below("  lost by a refit", fabs(gpu - cpu), 1e-6);
    }
    for (int d = 0; d < 2; d++) {
        free(made[d]);
        free(refit[d]);
    }
    free(basis);
    free(kept);
    free_case(&c);
}

/* A job that both devices must refuse with the same words. */
static void expect(pair *p, const char *name, const gac_factor_job *job, gac_status wanted)
{
    gac_error cpu = GAC_ERROR_INIT, gpu = GAC_ERROR_INIT;
    const bool ok = run_jobs(&p->cpu, job, 1, &cpu) == wanted &&
                    run_jobs(&p->gpu, job, 1, &gpu) == wanted && strcmp(cpu.text, gpu.text) == 0;
    n_ok += ok;
    n_failed += !ok;
    printf("%s %s: \"%s\", \"%s\"\n", ok ? "ok" : "FAIL", name, gpu.text, cpu.text);
}

static void check_refusals(pair *p)
{
    enum { N = 40 };
    weight_case c = make_case(N, N / 2, 100);
    double energy[N], loss[N + 1];
    float basis[N * N], made[N * N];
    int32_t order[N];
    const int32_t kept[] = { 1, 5, 19 };
    const gac_factor_job jobs[] = {
        { .kind = GAC_FACTOR_SPECTRUM, .energy = energy, .basis = basis },
        { .kind = GAC_FACTOR_CHANNELS, .block = 1, .order = order, .loss = loss },
        { .kind = GAC_FACTOR_CHANNELS, .block = 5, .order = order, .loss = loss },
        { .kind = GAC_FACTOR_REFIT, .kept = kept, .n_kept = 3, .made = made },
    };
    for (size_t i = 0; i < sizeof jobs / sizeof *jobs; i++) {
        gac_factor_job job = jobs[i];
        job.n_out = N;
        job.n_in = N / 2;
        job.weight = c.weight;
        job.gram = c.gram;
        job.name = "q_proj";
        const float w = c.weight[7];
        const double g = c.gram[9];
        c.weight[7] = INFINITY;
        expect(p, "a weight that is infinite", &job, GAC_BAD_INPUT);
        c.weight[7] = w;
        c.gram[9] = NAN;
        expect(p, "a Gram matrix with NaN", &job, GAC_BAD_INPUT);
        c.gram[9] = g;
    }
    double *pair_of_inputs[] = { &c.gram[1 * (N / 2) + 5], &c.gram[5 * (N / 2) + 1] };
    for (int i = 0; i < 2; i++)
        *pair_of_inputs[i] = 10 * (c.gram[1 * (N / 2) + 1] + c.gram[5 * (N / 2) + 5]);
    for (int i = 0; i < 4; i += 3) {
        gac_factor_job job = jobs[i];
        job.n_out = N;
        job.n_in = N / 2;
        job.weight = c.weight;
        job.gram = c.gram;
        job.name = "q_proj";
        expect(p, "a Gram matrix that is not positive", &job, GAC_FAILED);
    }
    free_case(&c);
}

static void check_factors(pair *p, bool small)
{
    static const int64_t sizes[][3] = { { 24, 40, 200 }, { 40, 24, 200 },   { 30, 30, 90 },
                                        { 24, 40, 12 },  { 40, 24, 12 },    { 1, 8, 20 },
                                        { 8, 1, 20 },    { 131, 257, 400 }, { 257, 131, 400 },
                                        { 257, 131, 60 } };
    static const int64_t channels[][4] = {
        { 12, 80, 1, 400 },  { 20, 33, 1, 400 },   { 33, 20, 1, 8 },    { 1, 300, 1, 400 },
        { 300, 64, 1, 200 }, { 257, 515, 1, 700 }, { 40, 90, 1, 0 },    { 12, 48, 8, 400 },
        { 9, 30, 10, 400 },  { 150, 96, 32, 200 }, { 64, 256, 64, 90 }, { 700, 1100, 1, 1500 },
    };
    const int n_sizes = small ? 6 : (int)(sizeof sizes / sizeof *sizes);
    const int n_channels = (int)(sizeof channels / sizeof *channels) - small;
    for (int i = 0; i < n_sizes; i++) {
        check_spectrum(p, sizes[i][0], sizes[i][1], sizes[i][2]);
        check_projections(p, sizes[i][0], sizes[i][1], sizes[i][2]);
    }
    for (int i = 0; i < n_channels; i++)
        if (!small || channels[i][1] < 260)
            check_channels(p, channels[i][0], channels[i][1], channels[i][2], channels[i][3]);
    check_refusals(p);
}

int main(int argc, char **argv)
{
    const bool small = argc > 1 && strcmp(argv[1], "small") == 0;
    gac_error err = GAC_ERROR_INIT;
    pair p;
    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    printf("seed %llu\n", (unsigned long long)random_state);
    for (int i = 0; i < 2; i++) {
        gac_status status = open_pair(&p, i == 0 ? GAC_DTYPE_F16 : GAC_DTYPE_BF16, &err);
        if (status == GAC_NO_RESOURCE) {
            printf("skipped: %s\n", err.text);
            close_pair(&p);
            return 77;
        }
        if (!failed(status, "open", &err)) {
            check_grams(&p, small);
            if (i == 0)
                check_factors(&p, small);
        }
        close_pair(&p);
    }
    printf("%d ok, %d failed\n", n_ok, n_failed);
    return n_failed > 0 || n_ok == 0;
}
