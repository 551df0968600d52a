/* Forward passes on the GPU, every operator against plain loops in F64.
 *
 *   test_compute [check] [SEED]   everything, a few seconds
 *   test_compute small            a selection for compute-sanitizer
 *   test_compute time             see test_compute_time.c
 *
 * Rows cannot be written from outside: they come from an embedding, and what
 * goes into an operator is read back and given to the reference, too. Allowed
 * is a relative error of 3e-3 (F16) and 2e-2 (BF16) in the Euclidean norm. */
#include "test_compute.h"

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

/* hidden -> modules (normed) -> back to hidden, added. */
static gac_status run_linear(bench *b, const linear_case *c, const char *name, gac_error *err)
{
    module modules[MAX_MODULES], back;
    gac_linear_module hosts[MAX_MODULES];
    gac_matrix *there = NULL, *home = NULL;
    gac_vector *norm = NULL;
    gac_rows *rows = NULL;
    stream s;
    char line[200];
    gac_axis in = { 1, c->hidden, c->hidden };
    int64_t width = 0, m = c->m;
    gac_status status = open_stream(b, c->hidden, m, 1, &s, err);
    for (int i = 0; i < c->n_modules; i++) {
        module_spec spec = c->modules[i];
        spec.out.stored = b->ops->stored(
            b->state, spec.out.n_slices > 1 ? GAC_SIZE_HEAD : GAC_SIZE_WIDTH, spec.out.size);
        make_module(&modules[i], spec, c->hidden, i == 1 ? GAC_DTYPE_F32 : b->options.dtype);
        hosts[i] = modules[i].host;
        width += spec.out.n_slices * spec.out.stored;
    }
    gac_axis middle = modules[0].spec.out;
    if (!c->gated && c->n_modules > 1)
        middle = (gac_axis){ 1, width, width };
    else
        width = middle.n_slices * middle.stored;
    module_spec back_spec = { { 1, c->hidden, c->hidden }, c->modules[0].rank, 1, false, true };
    make_module(&back, back_spec, middle.n_slices * middle.size, b->options.dtype);
    float *norm_values = need(malloc((size_t)c->hidden * sizeof(float)));
    for (int64_t i = 0; i < c->hidden; i++)
        norm_values[i] = (float)(1 + 0.3 * random_number());
    if (status == GAC_OK)
        status = b->ops->vector_create(b->state, norm_values, c->hidden, &norm, err);
    if (status == GAC_OK)
        status = b->ops->matrix_create(b->state, in, hosts, c->n_modules, &there, err);
    if (status == GAC_OK)
        status = b->ops->matrix_create(b->state, middle, &back.host, 1, &home, err);
    if (status == GAC_OK)
        status = b->ops->rows_create(b->state, width, false, &rows, err);
    gac_linear_call call = { there, s.rows, norm,
                             EPS,   rows,   c->gated ? GAC_LINEAR_GATED : GAC_LINEAR_SET };
    if (status == GAC_OK)
        status = b->ops->linear(b->state, &call, err);
    float *is = need(malloc((size_t)(m * (width > c->hidden ? width : c->hidden)) * sizeof *is));
    double *should = need(calloc((size_t)(m * width), sizeof *should));
    double *row = need(malloc((size_t)(c->hidden + 3 * width + 64) * sizeof *row));
    double *after = need(malloc((size_t)(m * c->hidden) * sizeof *after));
    if (status == GAC_OK)
        status = b->ops->rows_read(b->state, rows, 0, m, is, err);
    for (int64_t r = 0; r < m && status == GAC_OK; r++) {
        double *y = row + c->hidden;
        int64_t at = 0;
        for (int64_t i = 0; i < c->hidden; i++)
            row[i] = s.values[r * c->hidden + i];
        norm_row(row, c->hidden, norm_values, EPS);
        for (int i = 0; i < c->n_modules; i++) {
            apply_module(&modules[i], &in, row, y + at);
            at += modules[i].spec.out.n_slices * modules[i].spec.out.stored;
        }
        for (int64_t i = 0; i < width; i++)
            should[r * width + i] = c->gated ? y[i] / (1 + exp(-y[i])) * y[width + i] : y[i];
        /* The way back starts from what is on the device. */
        for (int64_t i = 0; i < width; i++)
            y[i] = is[r * width + i];
        apply_module(&back, &middle, y, after + r * c->hidden);
        for (int64_t i = 0; i < c->hidden; i++)
            after[r * c->hidden + i] += s.values[r * c->hidden + i];
    }
    if (status == GAC_OK) {
        snprintf(line, sizeof line, "%s %s", name, c->gated ? "gated" : "set");
        judge(line, is, should, m * width, tolerance_of(b->options.dtype));
        call = (gac_linear_call){ home, rows, NULL, 0, s.rows, GAC_LINEAR_ADD };
        status = b->ops->linear(b->state, &call, err);
    }
    if (status == GAC_OK)
        status = b->ops->rows_read(b->state, s.rows, 0, m, is, err);
    if (status == GAC_OK) {
        snprintf(line, sizeof line, "%s add", name);
        judge(line, is, after, m * c->hidden, tolerance_of(b->options.dtype));
    }
    b->ops->matrix_free(b->state, there);
    b->ops->matrix_free(b->state, home);
    b->ops->vector_free(b->state, norm);
    b->ops->rows_free(b->state, rows);
    close_stream(b, &s);
    for (int i = 0; i < c->n_modules; i++)
        free_module(&modules[i]);
    free_module(&back);
    free(norm_values);
    free(is);
    free(should);
    free(row);
    free(after);
    return status;
}

static void check_linears(bench *b, bool small)
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
        { "wide 14333",
          64,
          0,
          2,
          { { { 1, 14333, 0 }, 0, 1, false, true }, { { 1, 14333, 0 }, 0, 1, false, true } },
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
            if (small && j != 0 && j != 2 && j != 4)
                continue;
            gac_error err = GAC_ERROR_INIT;
            char name[120];
            linear_case c = cases[i];
            c.m = ms[j];
            snprintf(name, sizeof name, "%s m=%lld %s%s", c.name, (long long)c.m,
                     gac_dtype_name(b->options.dtype), b->options.as_is ? " as is" : "");
            failed(run_linear(b, &c, name, &err), name, &err);
        }
    }
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
        check_linears(b, small);
        check_attentions(b, small);
        check_model(b);
        check_refusals(b);
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
    random_state = argc > 2 ? strtoull(argv[2], NULL, 10) : (uint64_t)time(NULL);
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
        code = run_timing(&b);
    } else {
        check_all(&b, strcmp(what, "small") == 0);
        printf("%d ok, %d failed\n", n_ok, n_failed);
        code = n_failed > 0 || n_ok == 0;
    }
    bench_close_device(&b);
    return code;
}
