#include "fake_model.h"

#include <math.h>

/* GEMM tiers: TMA loads (nvjet), 4-byte loads, 2-byte loads. */
static const struct {
    double flops_per_s, weight_bytes_per_s, edge_bytes_per_s, overhead_us, gemv_bytes_per_s;
    const char *kernel;
} tiers[] = {
    { 830e12, 4.2e12, 4.5e12, 4.7, 3.97e12, "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT" },
    { 300e12, 2.5e12, 1.9e12, 6.3, 2.43e12,
      "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x256_32x3_tn_align2>"
      "(cutlass_80_tensorop_f16_s16816gemm_f16_128x256_32x3_tn_align2::Params)" },
    { 125e12, 1.6e12, 1.9e12, 6.3, 2.40e12,
      "void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1>"
      "(cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1::Params)" },
};

static double bytes_of(gac_dtype dtype)
{
    return gac_dtype_bits(dtype) / 8.0;
}

int64_t fake_multiple(gac_dtype dtype)
{
    return 16 * 8 / gac_dtype_bits(dtype);
}

/* -1: declined. F8 and I8 exist in the best tier only. */
static int gemm_tier(const gac_task_spec *spec)
{
    int64_t multiple = fake_multiple(spec->dtype), n = spec->gemm.n, k = spec->gemm.k;
    if (n % multiple == 0 && k % multiple == 0)
        return 0;
    if (multiple == 16)
        return -1;
    return n % 2 == 0 && k % 2 == 0 ? 1 : 2;
}

/* Multiplying and streaming weights overlap fully; x and y come on top. Tiles
 * of 128 x 256 are worked off by 132 units: up to one wave the work is spread
 * evenly, from then on a started wave costs as much as a full one. One row is
 * a GEMV. F8 and I8 multiply twice as fast as F16, F32 half as fast. */
static double gemm_us(const gac_task_spec *spec)
{
    int tier = gemm_tier(spec);
    double m = (double)spec->gemm.m, n = (double)spec->gemm.n, k = (double)spec->gemm.k;
    double element = bytes_of(spec->dtype);
    if (tier < 0)
        return -1;
    if (spec->gemm.m == 1)
        return 4.4 + n * k * element / tiers[tier].gemv_bytes_per_s * 1e6;
    double tile_m = fmin(FAKE_TILE_M, 16 * ceil(m / 16));
    double waves = ceil(m / tile_m) * ceil(n / FAKE_TILE_N) / FAKE_UNITS;
    waves = waves > 1 ? ceil(waves) : waves;
    double flops = waves * FAKE_UNITS * tile_m * FAKE_TILE_N * k * 2;
    double compute_us = flops / (tiers[tier].flops_per_s * 2 / element) * 1e6;
    double weights_us = n * k * element / tiers[tier].weight_bytes_per_s * 1e6;
    double edges_us = m * (n + k) * element / tiers[tier].edge_bytes_per_s * 1e6;
    return tiers[tier].overhead_us + fmax(compute_us, weights_us) + edges_us;
}

static int64_t larger(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* The library's kernel at a head size, or -1 where it declines: multiples of 8
 * up to 256, in steps of 64. 435 us or so at B4 H32 S2048 and a head of 128. */
static double library_us(double work, int64_t head)
{
    if (head % 8 != 0 || head > FAKE_MAX_HEAD)
        return -1;
    double step = FAKE_HEAD_STEP * ceil((double)head / FAKE_HEAD_STEP);
    return work * (120 + 2.7 * step);
}

/* Without a mask the library works off tiles of 128 queries and keys, 132 of queries at
 * a time: a started wave costs as much as a full one. */
static double prefill_work(const gac_sdpa_shape *s)
{
    double tiles = (double)(s->batch * s->n_q_heads) * ceil((double)s->n_q / FAKE_LENGTH_TILE);
    double worked = ceil(tiles / FAKE_UNITS) * FAKE_UNITS * FAKE_LENGTH_TILE;
    return worked * ceil((double)s->n_kv / FAKE_LENGTH_TILE) * FAKE_LENGTH_TILE /
           (4.0 * 32 * 2048 * 2048);
}

/* work is 1 at B4 H32 S2048 x 2048, half that if causal; heads of k and v count
 * by the larger. Reading k and v bounds it from below. */
static double sdpa_us(const gac_task_spec *spec)
{
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    const int64_t head = larger(s->qk_head, s->v_head);
    const double q_rows = (double)(s->batch * s->n_q_heads * s->n_q);
    const double kv_rows = (double)(s->batch * s->n_kv_heads * s->n_kv);
    const double work =
        q_rows * (double)s->n_kv / (4.0 * 32 * 2048 * 2048) * (s->causal && s->n_q > 1 ? 0.5 : 1);
    const double kv_bytes = kv_rows * (double)(s->qk_head + s->v_head) * 2;
    const double stored = (double)spec->sdpa.stored_head;
    const double copied_bytes = 2 * 2 * stored * 2 * (q_rows + kv_rows);
    double time_us = -1, extra_us = 5;
    switch (spec->sdpa.path) {
    case GAC_SDPA_LIBRARY:
        time_us = s->qk_head % 8 || s->v_head % 8 ? -1
                  : s->n_q > 1 && !s->causal      ? library_us(prefill_work(s), head)
                                                  : library_us(work, head);
        break;
    case GAC_SDPA_MATH:
        time_us = work * (9900 + 3 * (double)head);
        extra_us = 15;
        break;
    case GAC_SDPA_FLASH:
        time_us = work * (300 + 4.5 * 16 * ceil((double)head / 16));
        break;
    case GAC_SDPA_PADDED:
        time_us = library_us(work, spec->sdpa.stored_head);
        extra_us = 13 + copied_bytes / 3.6e12 * 1e6;
        break;
    case GAC_SDPA_PATH_COUNT:
        break;
    }
    return time_us < 0 ? -1 : extra_us + fmax(time_us, kv_bytes / 3.5e12 * 1e6);
}

double fake_time_us(const gac_task_spec *spec)
{
    switch (spec->kind) {
    case GAC_TASK_GEMM:
        return gemm_us(spec);
    case GAC_TASK_SDPA:
        return sdpa_us(spec);
    case GAC_TASK_PAD:
        return 2.5 + (double)(spec->pad.n_rows * (spec->pad.n_from + spec->pad.n_to)) *
                         bytes_of(spec->dtype) / 3.6e12 * 1e6;
    case GAC_TASK_COPY:
        return 2 + 2 * (double)spec->copy_bytes / 4.3e12 * 1e6;
    case GAC_TASK_KIND_COUNT:
        break;
    }
    return -1;
}

const char *fake_kernel(const gac_task_spec *spec)
{
    if (fake_time_us(spec) < 0)
        return NULL;
    switch (spec->kind) {
    case GAC_TASK_GEMM:
        if (spec->gemm.m == 1)
            return "void gemvx::kernel<int, int, __half, __half, __half, float, false, true, true, "
                   "false, 7, false, cublasGemvParamsEx<int, cublasGemvTensorStridedBatched<"
                   "__half const>, float> >(cublasGemvParamsEx<int>)";
        return tiers[gemm_tier(spec)].kernel;
    case GAC_TASK_SDPA:
        if (spec->sdpa.path == GAC_SDPA_MATH)
            return "gac_softmax_kernel";
        return spec->sdpa.path == GAC_SDPA_FLASH
                   ? "gac_flash_kernel"
                   : "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_"
                     "64x128x128_4x1x1_cga1x1x1_kernel0_0";
    case GAC_TASK_PAD:
        return "gac_pad_kernel";
    case GAC_TASK_COPY:
        return "[CUDA memcpy DtoD]";
    case GAC_TASK_KIND_COUNT:
        break;
    }
    return NULL;
}
