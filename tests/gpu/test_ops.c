/* Compares every operator of a GPU with the CPU reference on random numbers.
 *
 * Usage: test_ops [SEED [WORD]]. WORD selects the checks whose names contain it (pad,
 * math, stored=112). Each check prints one line: ok, FAIL or declined, the task, its
 * relative difference and the tolerance. Exit 0 if nothing failed, 1 otherwise, 77
 * (skipped) without a GPU. Only two things may be declined: the vendor's attention, and
 * F8 and I8 products of sizes that are not multiples of 16. */
#include "device/check_task.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

typedef struct tally {
    gac_device *device;
    uint64_t seed;
    const char *word; /* selects checks by name; NULL means all */
    int n_ok, n_failed, n_declined;
} tally;

static bool may_be_declined(const gac_task_spec *spec)
{
    if (spec->kind == GAC_TASK_SDPA)
        return spec->sdpa.path == GAC_SDPA_LIBRARY;
    const bool is_byte = spec->dtype == GAC_DTYPE_F8_E4M3 || spec->dtype == GAC_DTYPE_I8;
    return spec->kind == GAC_TASK_GEMM && is_byte &&
           (spec->gemm.m % 16 || spec->gemm.n % 16 || spec->gemm.k % 16 || spec->gemm.row_major);
}

static void describe(const gac_task_spec *spec, char *text, size_t size)
{
    static const char *const paths[] = { "library", "math", "flash", "padded" };
    const char *dtype = gac_dtype_name(spec->dtype);
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    switch (spec->kind) {
    case GAC_TASK_GEMM:
        snprintf(text, size, "gemm %s m=%lld n=%lld k=%lld %s", dtype, (long long)spec->gemm.m,
                 (long long)spec->gemm.n, (long long)spec->gemm.k,
                 spec->gemm.row_major ? "x B" : "x W^T");
        break;
    case GAC_TASK_SDPA:
        snprintf(text, size, "sdpa %s %s b=%lld h=%lld/%lld q=%lld kv=%lld qk=%lld v=%lld%s",
                 paths[spec->sdpa.path], dtype, (long long)s->batch, (long long)s->n_q_heads,
                 (long long)s->n_kv_heads, (long long)s->n_q, (long long)s->n_kv,
                 (long long)s->qk_head, (long long)s->v_head, s->causal ? " causal" : "");
        if (spec->sdpa.path == GAC_SDPA_PADDED)
            snprintf(text + strlen(text), size - strlen(text), " stored=%lld",
                     (long long)spec->sdpa.stored_head);
        break;
    case GAC_TASK_PAD:
        snprintf(text, size, "pad %s %lld x %lld -> %lld", dtype, (long long)spec->pad.n_rows,
                 (long long)spec->pad.n_from, (long long)spec->pad.n_to);
        break;
    case GAC_TASK_COPY:
    case GAC_TASK_KIND_COUNT:
        snprintf(text, size, "copy %lld bytes", (long long)spec->copy_bytes);
        break;
    }
}

static void check(tally *t, const gac_task_spec *spec)
{
    char name[160];
    gac_error err = GAC_ERROR_INIT;
    gac_difference difference = { 0, 0, 0 };
    double tolerance = gac_task_tolerance(spec);
    describe(spec, name, sizeof name);
    if (t->word && !strstr(name, t->word))
        return;
    gac_status status = gac_task_check(t->device, spec, t->seed++, &difference, &err);
    if (status == GAC_CHECK && may_be_declined(spec)) {
        t->n_declined++;
        printf("declined %s: %s\n", name, err.text);
    } else if (status != GAC_OK) {
        t->n_failed++;
        printf("FAIL %s: %s\n", name, err.text);
    } else {
        const bool ok = difference.relative <= tolerance; /* false for NaN */
        t->n_ok += ok;
        t->n_failed += !ok;
        printf("%s %s %.3g %.3g\n", ok ? "ok" : "FAIL", name, difference.relative, tolerance);
    }
    fflush(stdout); /* if the next check crashes, the last line names the one before it */
}

static void check_gemms(tally *t)
{
    static const gac_dtype dtypes[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16, GAC_DTYPE_F32,
                                        GAC_DTYPE_F8_E4M3, GAC_DTYPE_I8 };
    static const int64_t shapes[][3] = {
        { 1, 64, 64 },     { 1, 107, 255 },  { 1, 1000, 1741 }, { 2, 96, 128 },   { 3, 33, 129 },
        { 4, 255, 254 },   { 7, 130, 61 },   { 8, 64, 1 },      { 16, 128, 256 }, { 16, 127, 512 },
        { 17, 16, 16 },    { 31, 257, 100 }, { 32, 64, 4096 },  { 64, 128, 107 }, { 65, 106, 108 },
        { 128, 128, 128 }, { 129, 1, 200 },  { 129, 129, 129 }, { 48, 112, 2048 }
    };
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (size_t i = 0; i < 2 * sizeof shapes / sizeof *shapes; i++) {
            const int64_t *s = shapes[i / 2];
            gac_task_spec spec = { .kind = GAC_TASK_GEMM,
                                   .dtype = dtypes[d],
                                   .gemm = { s[0], s[1], s[2], i % 2 == 1 } };
            check(t, &spec);
        }
    }
}

static int64_t round_up_8(int64_t size)
{
    return (size + 7) / 8 * 8;
}

static void check_sdpa_shape(tally *t, const gac_sdpa_shape *shape, double scale)
{
    int64_t larger = shape->qk_head > shape->v_head ? shape->qk_head : shape->v_head;
    for (int path = 0; path < GAC_SDPA_PATH_COUNT; path++) {
        for (int d = 0; d < 2; d++) {
            gac_task_spec spec = { .kind = GAC_TASK_SDPA,
                                   .dtype = d ? GAC_DTYPE_BF16 : GAC_DTYPE_F16,
                                   .sdpa = { .shape = *shape,
                                             .path = (gac_sdpa_path)path,
                                             .stored_head = round_up_8(larger),
                                             .scale = scale } };
            /* cuDNN does not support padded heads above 256. */
            if (path == GAC_SDPA_PADDED && spec.sdpa.stored_head > 256)
                continue;
            check(t, &spec);
        }
    }
}

static void check_sdpas(tally *t)
{
    static const int64_t heads[] = { 1, 7, 63, 64, 107, 112, 128, 129, 256, 299, 512 };
    static const int64_t rows[][2] = { { 1, 77 }, { 3, 130 }, { 65, 65 } }; /* n_q, n_kv */
    for (size_t h = 0; h < sizeof heads / sizeof *heads; h++) {
        for (int i = 0; i < 6; i++) {
            gac_sdpa_shape shape = { 1 + i % 2,      4,        i / 2 == 1 ? 1 : 4, rows[i / 2][0],
                                     rows[i / 2][1], heads[h], heads[h],           i % 2 == 1 };
            check_sdpa_shape(t, &shape, 0);
        }
    }
    static const gac_sdpa_shape nasty[] = {
        { 1, 4, 2, 33, 64, 128, 64, false },   { 2, 6, 2, 64, 64, 64, 128, true },
        { 1, 4, 4, 17, 100, 107, 63, true },   { 3, 8, 1, 1, 200, 7, 129, false },
        { 1, 2, 1, 128, 128, 192, 128, true }, { 1, 1, 1, 1, 1, 16, 16, true },
        { 1, 32, 8, 1, 129, 128, 128, true },  { 2, 3, 3, 5, 8, 1, 256, false },
        { 1, 4, 2, 33, 100, 576, 512, true },  { 2, 2, 1, 3, 200, 64, 320, false },
    };
    for (size_t i = 0; i < sizeof nasty / sizeof *nasty; i++) {
        check_sdpa_shape(t, &nasty[i], 0);
        /* A scale that is not the default, but not so large that a single key wins. */
        check_sdpa_shape(t, &nasty[i], 1.5 / sqrt((double)nasty[i].qk_head));
    }
    /* Padded further than necessary. */
    gac_task_spec wide = { .kind = GAC_TASK_SDPA,
                           .dtype = GAC_DTYPE_F16,
                           .sdpa = { .shape = { 2, 4, 2, 40, 80, 107, 99, true },
                                     .path = GAC_SDPA_PADDED,
                                     .stored_head = 128 } };
    check(t, &wide);
}

static void check_moves(tally *t)
{
    static const gac_dtype dtypes[] = { GAC_DTYPE_U8, GAC_DTYPE_F8_E4M3, GAC_DTYPE_F16,
                                        GAC_DTYPE_BF16, GAC_DTYPE_F32 };
    static const int64_t pads[][3] = { { 1000, 107, 112 }, { 1000, 112, 107 }, { 333, 1, 8 },
                                       { 333, 8, 1 },      { 77, 128, 128 },   { 1, 3, 1000 },
                                       { 4097, 63, 64 },   { 513, 129, 256 },  { 100, 17, 19 } };
    static const int64_t copies[] = { 1, 3, 16, 4097, 1000003 };
    for (size_t d = 0; d < sizeof dtypes / sizeof *dtypes; d++) {
        for (size_t i = 0; i < sizeof pads / sizeof *pads; i++) {
            gac_task_spec spec = { .kind = GAC_TASK_PAD,
                                   .dtype = dtypes[d],
                                   .pad = { pads[i][0], pads[i][1], pads[i][2] } };
            check(t, &spec);
        }
    }
    for (size_t i = 0; i < sizeof copies / sizeof *copies; i++) {
        gac_task_spec spec = { .kind = GAC_TASK_COPY,
                               .dtype = GAC_DTYPE_U8,
                               .copy_bytes = copies[i] };
        check(t, &spec);
    }
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    tally t = { .seed = argc > 1 ? strtoull(argv[1], NULL, 10) : (uint64_t)time(NULL) };
    t.word = argc > 2 ? argv[2] : NULL;
    gac_status status = gac_device_open("cuda", &t.device, &err);
    if (status == GAC_NO_RESOURCE) {
        printf("skipped: %s\n", err.text);
        return 77;
    }
    if (status != GAC_OK) {
        printf("FAIL open: %s\n", err.text);
        return 1;
    }
    const gac_device_info *info = gac_device_describe(t.device);
    printf("%s, driver %s, cuBLAS %s, cuDNN %s, seed %llu\n", info->name, info->driver, info->blas,
           info->dnn, (unsigned long long)t.seed);
    check_moves(&t);
    check_gemms(&t);
    check_sdpas(&t);
    gac_device_close(t.device);
    printf("%d ok, %d failed, %d declined\n", t.n_ok, t.n_failed, t.n_declined);
    return t.n_failed > 0 || t.n_ok == 0;
}
