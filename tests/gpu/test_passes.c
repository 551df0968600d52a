/* Compares the operators of forward passes on the GPU with plain loops in F64, and what differs
 * from Llama with the device `reference`.
 *
 *   test_passes [check] [SEED]   everything, a few seconds
 *   test_passes small            a selection for compute-sanitizer
 *   test_passes few              products of few rows, only with our own kernels
 *   test_passes time [decode [M...]] [prefill]   see test_passes_time.c
 *
 * A test cannot write rows directly. It creates them with an embedding, reads the input
 * of each operator back and passes it to the reference. The tolerance is a relative error
 * of 3e-3 (F16) or 2e-2 (BF16) in the Euclidean norm. */
#include "test_passes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct linear_case {
    const char *name;
    int64_t hidden, m;
    int n_modules;
    module_spec modules[MAX_MODULES];
    bool gated;
} linear_case;

/* Multiplies normed rows from hidden to the modules, and back to hidden with an addition. */
typedef struct round_trip {
    const linear_case *c;
    module modules[MAX_MODULES], back;
    gac_matrix *there, *home;
    gac_vector *norm;
    gac_rows *rows;
    stream s;
    gac_axis in, middle;
    int64_t width; /* width of the intermediate rows */
    float *norm_values;
    float *actual;            /* result of the device, (m, width or hidden) */
    double *expected, *after; /* (m, width), (m, hidden) */
} round_trip;

static void make_modules(bench *b, round_trip *t)
{
    const linear_case *c = t->c;
    for (int i = 0; i < c->n_modules; i++) {
        module_spec spec = c->modules[i];
        spec.out.stored = b->ops->stored(
            b->state, spec.out.n_slices > 1 ? GAC_SIZE_HEAD : GAC_SIZE_WIDTH, spec.out.size);
        make_module(&t->modules[i], spec, c->hidden, i == 1 ? GAC_DTYPE_F32 : b->options.dtype);
        t->width += spec.out.n_slices * spec.out.stored;
    }
    t->in = (gac_axis){ 1, c->hidden, c->hidden };
    t->middle = t->modules[0].spec.out;
    if (!c->gated && c->n_modules > 1)
        t->middle = (gac_axis){ 1, t->width, t->width };
    else
        t->width = t->middle.n_slices * t->middle.stored;
    module_spec home = { { 1, c->hidden, c->hidden }, c->modules[0].rank, 1, false, true };
    make_module(&t->back, home, t->middle.n_slices * t->middle.size, b->options.dtype);
    t->norm_values = need(malloc((size_t)c->hidden * sizeof(float)));
    for (int64_t i = 0; i < c->hidden; i++)
        t->norm_values[i] = (float)(1 + 0.3 * random_number());
    int64_t most = t->width > c->hidden ? t->width : c->hidden;
    t->actual = need(malloc((size_t)(c->m * most) * sizeof *t->actual));
    t->expected = need(calloc((size_t)(c->m * t->width), sizeof *t->expected));
    t->after = need(malloc((size_t)(c->m * c->hidden) * sizeof *t->after));
}

static gac_status open_trip(bench *b, round_trip *t, const linear_case *c, gac_error *err)
{
    gac_linear_module hosts[MAX_MODULES];
    memset(t, 0, sizeof *t);
    t->c = c;
    make_modules(b, t);
    for (int i = 0; i < c->n_modules; i++)
        hosts[i] = t->modules[i].host;
    gac_status status = open_stream(b, c->hidden, c->m, 1, &t->s, err);
    if (status == GAC_OK)
        status = b->ops->vector_create(b->state, t->norm_values, c->hidden, &t->norm, err);
    if (status == GAC_OK)
        status = b->ops->matrix_create(b->state, t->in, hosts, c->n_modules, &t->there, err);
    if (status == GAC_OK)
        status = b->ops->matrix_create(b->state, t->middle, &t->back.host, 1, &t->home, err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, t->width, false, &t->rows, err);
    return status;
}

static void close_trip(bench *b, round_trip *t)
{
    b->ops->matrix_free(b->state, t->there);
    b->ops->matrix_free(b->state, t->home);
    b->ops->vector_free(b->state, t->norm);
    b->ops->rows_free(b->state, t->rows);
    close_stream(b, &t->s);
    for (int i = 0; i < t->c->n_modules; i++)
        free_module(&t->modules[i]);
    free_module(&t->back);
    free(t->norm_values);
    free(t->actual);
    free(t->expected);
    free(t->after);
}

/* Computes expected and after for row r. The second product starts from the device's
 * result. */
static void follow_row(round_trip *t, int64_t r)
{
    const linear_case *c = t->c;
    double *x = need(malloc((size_t)c->hidden * sizeof *x));
    double *y = need(calloc((size_t)(3 * t->width), sizeof *y));
    int64_t at = 0;
    for (int64_t i = 0; i < c->hidden; i++)
        x[i] = t->s.values[r * c->hidden + i];
    norm_row(x, c->hidden, t->norm_values, EPS);
    for (int i = 0; i < c->n_modules; i++) {
        apply_module(&t->modules[i], &t->in, x, y + at);
        at += t->modules[i].spec.out.n_slices * t->modules[i].spec.out.stored;
    }
    for (int64_t i = 0; i < t->width; i++)
        t->expected[r * t->width + i] = c->gated ? y[i] / (1 + exp(-y[i])) * y[t->width + i] : y[i];
    for (int64_t i = 0; i < t->width; i++)
        y[i] = t->actual[r * t->width + i];
    apply_module(&t->back, &t->middle, y, t->after + r * c->hidden);
    for (int64_t i = 0; i < c->hidden; i++)
        t->after[r * c->hidden + i] += t->s.values[r * c->hidden + i];
    free(x);
    free(y);
}

static gac_status run_linear(bench *b, const linear_case *c, const char *name, gac_error *err)
{
    round_trip t;
    char line[200];
    gac_status status = open_trip(b, &t, c, err);
    gac_linear_call there = { .matrix = t.there,
                              .x = t.s.rows,
                              .norm = t.norm,
                              .eps = EPS,
                              .out = t.rows,
                              .mode = c->gated ? GAC_LINEAR_GATED : GAC_LINEAR_SET };
    gac_linear_call home = { .matrix = t.home,
                             .x = t.rows,
                             .norm = NULL,
                             .eps = 0,
                             .out = t.s.rows,
                             .mode = GAC_LINEAR_ADD };
    if (status == GAC_OK)
        status = b->ops->linear(b->state, &there, err);
    if (status == GAC_OK)
        status = b->ops->rows_read(b->state, t.rows, 0, c->m, t.actual, err);
    if (status == GAC_OK) {
        for (int64_t r = 0; r < c->m; r++)
            follow_row(&t, r);
        snprintf(line, sizeof line, "%s %s", name, c->gated ? "gated" : "set");
        judge(line, t.actual, t.expected, c->m * t.width, tolerance_of(b->options.dtype));
        status = b->ops->linear(b->state, &home, err);
    }
    if (status == GAC_OK)
        status = b->ops->rows_read(b->state, t.s.rows, 0, c->m, t.actual, err);
    if (status == GAC_OK) {
        snprintf(line, sizeof line, "%s add", name);
        judge(line, t.actual, t.after, c->m * c->hidden, tolerance_of(b->options.dtype));
    }
    close_trip(b, &t);
    return status;
}

/* small: a selection. few: only cases without vendor kernels. */
static void check_linears(bench *b, bool small, bool few)
{
    static const linear_case cases[] = {
        { "dense", 576, 0, 1, { { { 1, 128, 0 }, 0, 1, false, false } }, false },
        { "qkv",
          256,
          0,
          3,
          { { { 4, 64, 0 }, 0, 1, false, true },
            { { 2, 64, 0 }, 0, 1, false, true },
            { { 2, 64, 0 }, 0, 1, false, false } },
          false },
        { "odd heads",
          208,
          0,
          3,
          { { { 4, 107, 0 }, 0, 1, false, true },
            { { 2, 107, 0 }, 33, 1, false, true },
            { { 2, 63, 0 }, 33, 2, false, true } },
          false },
        { "gate up",
          576,
          0,
          2,
          { { { 1, 333, 0 }, 0, 1, false, false }, { { 1, 333, 0 }, 0, 1, false, false } },
          true },
        { "wide 15003", /* more tiles per block than SPAN, on 132 multiprocessors */
          64,
          0,
          2,
          { { { 1, 15003, 0 }, 0, 1, false, true }, { { 1, 15003, 0 }, 0, 1, false, true } },
          true },
        { "wide 7411", /* whole groups, whose steps wrap around a ring */
          520,
          0,
          2,
          { { { 1, 7411, 0 }, 0, 1, false, true }, { { 1, 7411, 0 }, 0, 1, false, true } },
          true },
        { "pair 1741", 2048, 0, 1, { { { 1, 96, 0 }, 1741, 1, false, false } }, false },
        { "pair gate up",
          192,
          0,
          2,
          { { { 1, 501, 0 }, 77, 1, false, true }, { { 1, 501, 0 }, 130, 1, false, false } },
          true },
        { "grouped",
          320,
          0,
          2,
          { { { 8, 32, 0 }, 24, 4, false, false }, { { 8, 32, 0 }, 41, 4, true, true } },
          false },
        { "mixed gate",
          128,
          0,
          2,
          { { { 1, 200, 0 }, 0, 1, false, true }, { { 1, 200, 0 }, 50, 2, false, true } },
          true },
        { "hidden 107", 107, 0, 1, { { { 1, 100, 0 }, 0, 1, false, true } }, false },
    };
    static const int64_t ms[] = { 1, 2, 3, 8, 9, 16, 33 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        for (size_t j = 0; j < sizeof ms / sizeof *ms; j++) {
            if ((small && j != 0 && j != 2 && j != 4) || (few && ms[j] > 16))
                continue;
            gac_error err = GAC_ERROR_INIT;
            char name[120];
            linear_case c = cases[i];
            c.m = ms[j];
            snprintf(name, sizeof name, "%s m=%lld %s%s", c.name, (long long)c.m,
                     gac_dtype_name(b->options.dtype), b->options.padding ? "" : " no pad");
            failed(run_linear(b, &c, name, &err), name, &err);
        }
    }
}

static void check_few(bench *b)
{
    gac_error err = GAC_ERROR_INIT;
    if (failed(bench_open(b, GAC_DTYPE_F16, false, 700, &err), "open", &err))
        return;
    check_linears(b, false, true);
    bench_close(b);
}

static void check_all(bench *b, bool small)
{
    static const gac_dtype dtypes[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16 };
    for (int i = 0; i < 4; i++) {
        gac_error err = GAC_ERROR_INIT;
        gac_compute_memory memory = { 0 };
        if (small && i == 1)
            continue;
        if (failed(bench_open(b, dtypes[i % 2], i / 2 == 1, 700, &err), "open", &err))
            continue;
        check_linears(b, small, false);
        check_attentions(b, small);
        check_model(b);
        check_refusals(b);
        check_variations(b, small);
        b->ops->memory(b->state, &memory);
        bool clean = memory.weight_bytes == 0 && memory.cache_bytes == 0;
        n_ok += clean;
        n_failed += !clean;
        printf("%s weights %lld and cache %lld bytes are left of nothing\n", clean ? "ok" : "FAIL",
               (long long)memory.weight_bytes, (long long)memory.cache_bytes);
        bench_close(b);
    }
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    bench b = { 0 };
    const char *what = argc > 1 ? argv[1] : "check";
    random_state =
        argc > 2 && strcmp(what, "time") != 0 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
    gac_status status = bench_open_device(&b, &err);
    if (status == GAC_NO_RESOURCE) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    if (status != GAC_OK || !b.backend->compute) {
        printf("FAIL open: %s\n", status ? err.text : "the plug-in has no forward passes");
        return 1;
    }
    printf("%s, seed %llu\n", b.info.name, (unsigned long long)random_state);
    int code = 0;
    if (strcmp(what, "time") == 0) {
        code = run_timing(&b, argc - 2, argv + 2);
    } else {
        if (strcmp(what, "few") == 0)
            check_few(&b);
        else
            check_all(&b, strcmp(what, "small") == 0);
        printf("%d ok, %d failed\n", n_ok, n_failed);
        code = n_failed > 0 || n_ok == 0;
    }
    bench_close_device(&b);
    return code;
}
