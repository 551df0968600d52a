/* The body of gac_cpu_kernels. A file per vector extension includes it after defining
 * KERNELS (the table's name), KERNELS_NAME, KERNELS_USABLE (an expression) and
 * VECTOR_BYTES. CMakeLists.txt sets the matching compiler flags. */
#include "base/floats.h"
#include "device/cpu/compute_kernels.h"

#include <string.h>
#if defined(__F16C__)
#include <immintrin.h>
#endif

#define ALWAYS_INLINE static inline __attribute__((always_inline))
#define LANES ((int)(VECTOR_BYTES / sizeof(float)))
#define BLOCK 1024 /* numbers converted at a time; they stay in the L1 cache */
#define TILE_VECTORS 2
#define TILE_COLUMNS ((int)(TILE_VECTORS * VECTOR_BYTES / sizeof(double)))
#define TILE_HEIGHT (VECTOR_BYTES == 64 ? 8 : 4) /* as many rows of sums as fit the registers */

/* Vector types without alignment requirements. */
typedef float floats __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(VECTOR_BYTES), aligned(4), may_alias));
typedef double doubles __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));

static void half_to_float(const uint8_t *from, int64_t n, float *to)
{
    int64_t i = 0;
    uint16_t code;
#if defined(__AVX512F__)
    for (; i + 16 <= n; i += 16)
        _mm512_storeu_ps(to + i,
                         _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)(from + 2 * i))));
#elif defined(__F16C__)
    for (; i + 8 <= n; i += 8)
        _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(from + 2 * i))));
#endif
    for (; i < n; i++) {
        memcpy(&code, from + 2 * i, sizeof code);
        to[i] = gac_f16_to_float(code);
    }
}

static void to_float(const void *from, gac_dtype dtype, int64_t n, float *to)
{
    const uint8_t *bytes = from;
    if (dtype == GAC_DTYPE_F32) {
        memcpy(to, bytes, (size_t)n * sizeof *to);
    } else if (dtype == GAC_DTYPE_F16) {
        half_to_float(bytes, n, to);
    } else {
        for (int64_t i = 0; i < n; i++) {
            uint16_t code;
            memcpy(&code, bytes + 2 * i, sizeof code);
            uint32_t bits = (uint32_t)code << 16;
            memcpy(to + i, &bits, sizeof bits);
        }
    }
}

/* Returns whether any of n codes has all exponent bits set, which means infinity or NaN. */
ALWAYS_INLINE bool any_bad_16(const uint8_t *from, int64_t n, uint16_t exponent)
{
    uint16_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint16_t code;
        memcpy(&code, from + 2 * i, sizeof code);
        found = (uint16_t)(found | ((code & exponent) == exponent));
    }
    return found != 0;
}

ALWAYS_INLINE bool any_bad_32(const uint8_t *from, int64_t n)
{
    uint32_t found = 0;
    for (int64_t i = 0; i < n; i++) {
        uint32_t code;
        memcpy(&code, from + 4 * i, sizeof code);
        found |= (code & 0x7F800000) == 0x7F800000;
    }
    return found != 0;
}

static bool any_bad(const uint8_t *from, gac_dtype dtype, int64_t n)
{
    if (dtype == GAC_DTYPE_F32)
        return any_bad_32(from, n);
    return any_bad_16(from, n, dtype == GAC_DTYPE_F16 ? 0x7C00 : 0x7F80);
}

static int64_t find_bad(const void *data, gac_dtype dtype, int64_t n)
{
    const uint8_t *bytes = data;
    int64_t size = dtype == GAC_DTYPE_F32 ? 4 : 2;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t n_here = n - i < BLOCK ? n - i : BLOCK;
        if (!any_bad(bytes + i * size, dtype, n_here))
            continue;
        while (!any_bad(bytes + i * size, dtype, 1))
            i++;
        return i;
    }
    return -1;
}

/* Computes the part of a tile that fits the registers: n_rows rows of x (k, x_stride)
 * times TILE_COLUMNS columns of the panel. */
ALWAYS_INLINE void tile_part(const double *x, int x_stride, const double *panel, int64_t k,
                             int n_rows, double *sums)
{
    doubles acc[TILE_HEIGHT][TILE_VECTORS];
    for (int r = 0; r < n_rows; r++) {
        for (int v = 0; v < TILE_VECTORS; v++)
            acc[r][v] = ((const doubles *)(sums + r * GAC_PANEL))[v];
    }
    for (int64_t i = 0; i < k; i++, x += x_stride, panel += GAC_PANEL) {
        doubles w[TILE_VECTORS];
        for (int v = 0; v < TILE_VECTORS; v++)
            w[v] = ((const doubles *)panel)[v];
        for (int r = 0; r < n_rows; r++) {
            for (int v = 0; v < TILE_VECTORS; v++)
                acc[r][v] += x[r] * w[v];
        }
    }
    for (int r = 0; r < n_rows; r++) {
        for (int v = 0; v < TILE_VECTORS; v++)
            ((doubles *)(sums + r * GAC_PANEL))[v] = acc[r][v];
    }
}

static void tile(const double *x, const double *panel, int64_t k, int n_rows, double *sums)
{
    for (int column = 0; column < GAC_PANEL; column += TILE_COLUMNS) {
        if (n_rows == 1) {
            tile_part(x, 1, panel + column, k, 1, sums + column);
        } else if (n_rows == 4) {
            tile_part(x, 4, panel + column, k, 4, sums + column);
        } else {
            for (int row = 0; row < 8; row += TILE_HEIGHT)
                tile_part(x + row, 8, panel + column, k, TILE_HEIGHT,
                          sums + row * GAC_PANEL + column);
        }
    }
}

ALWAYS_INLINE float sum_lanes(const floats *v)
{
    float sum = 0;
    for (int i = 0; i < LANES; i++)
        sum += (*v)[i];
    return sum;
}

/* out[r] += x[r, :n] w[:n]. A single row uses four independent accumulators to hide
 * latency. */
ALWAYS_INLINE void dots_part(const float *x, int64_t x_stride, int n_x, const float *w, int64_t n,
                             float *out)
{
    const int depth = n_x == 1 ? 4 : 1;
    floats acc[4] = { { 0 } };
    int64_t i = 0;
    for (; i + depth * LANES <= n; i += depth * LANES) {
        for (int d = 0; d < depth; d++) {
            floats one = *(const floats *)(w + i + d * LANES);
            for (int r = 0; r < n_x; r++)
                acc[r + d] += one * *(const floats *)(x + r * x_stride + i + d * LANES);
        }
    }
    for (int d = 1; d < depth; d++)
        acc[0] += acc[d];
    for (int r = 0; r < n_x; r++) {
        float sum = sum_lanes(&acc[r]);
        for (int64_t j = i; j < n; j++)
            sum += w[j] * x[r * x_stride + j];
        out[r] += sum;
    }
}

static void dots(const float *x, int64_t x_stride, int n_x, const void *w, gac_dtype dtype,
                 int64_t k, float *out)
{
    const uint8_t *bytes = w;
    int64_t size = dtype == GAC_DTYPE_F32 ? 4 : 2;
    float block[BLOCK];
    memset(out, 0, (size_t)n_x * sizeof *out);
    for (int64_t i = 0; i < k; i += BLOCK) {
        int64_t n = k - i < BLOCK ? k - i : BLOCK;
        to_float(bytes + i * size, dtype, n, block);
        int r = 0;
        for (; r + 4 <= n_x; r += 4)
            dots_part(x + r * x_stride + i, x_stride, 4, block, n, out + r);
        for (; r + 2 <= n_x; r += 2)
            dots_part(x + r * x_stride + i, x_stride, 2, block, n, out + r);
        if (r < n_x)
            dots_part(x + r * x_stride + i, x_stride, 1, block, n, out + r);
    }
}

static void mix(const float *p, const float *v, int64_t v_stride, int64_t n, int64_t width,
                float *restrict out)
{
    memset(out, 0, (size_t)width * sizeof *out);
    for (int64_t i = 0; i < n; i++) {
        for (int64_t d = 0; d < width; d++)
            out[d] += p[i] * v[i * v_stride + d];
    }
}

ALWAYS_INLINE floats larger(floats a, floats b)
{
    ints mask = a > b;
    return (floats)((mask & (ints)a) | (~mask & (ints)b));
}

static float largest(const float *row, int64_t n)
{
    float most = row[0];
    int64_t i = 0;
    if (n >= LANES) {
        floats lanes = *(const floats *)row;
        for (; i + LANES <= n; i += LANES)
            lanes = larger(*(const floats *)(row + i), lanes);
        for (int j = 0; j < LANES; j++)
            most = lanes[j] > most ? lanes[j] : most;
    }
    for (; i < n; i++)
        most = row[i] > most ? row[i] : most;
    return most;
}

/* exp(x), with x clamped to -87 .. 88. Splits x = n log 2 + r, with log 2 in two parts so
 * that r is accurate. exp(r) is a polynomial (Cephes), within 2 units in the last place.
 * NaN stays NaN. */
ALWAYS_INLINE floats exp_of(floats x)
{
    const floats zero = { 0 };
    const floats low = zero - 87.0F, high = zero + 88.0F,
                 round = zero + 12582912.0F; /* 1.5 * 2^23: adding it rounds to an integer */
    const ints is_number = x == x;
    floats bounded = -larger(-larger(x, low), -high);
    bounded = (floats)((is_number & (ints)bounded) | (~is_number & (ints)x));
    floats n = bounded * 1.44269504F + round;
    ints power = ((ints)n - (ints)round) << 23;
    n -= round;
    floats r = bounded - n * 0.693359375F + n * 2.12194440e-4F;
    floats p = zero + 1.9875691500e-4F;
    p = p * r + 1.3981999507e-3F;
    p = p * r + 8.3334519073e-3F;
    p = p * r + 4.1665795894e-2F;
    p = p * r + 1.6666665459e-1F;
    p = p * r + 5.0000001201e-1F;
    p = p * r * r + r + 1.0F;
    return (floats)((is_number & ((ints)p + power)) | (~is_number & (ints)x));
}

static float exps(float *row, int64_t n, float most)
{
    const floats zero = { 0 };
    floats sums = zero;
    float sum = 0;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        floats e = exp_of(*(floats *)(row + i) - most);
        *(floats *)(row + i) = e;
        sums += e;
    }
    floats rest = zero;
    memcpy(&rest, row + i, (size_t)(n - i) * sizeof *row);
    rest = exp_of(rest - most);
    for (int j = 0; j < n - i; j++)
        sum += rest[j];
    memcpy(row + i, &rest, (size_t)(n - i) * sizeof *row);
    return sum + sum_lanes(&sums);
}

static double exp_sum(const float *row, int64_t n, float most)
{
    float block[BLOCK];
    double sum = 0;
    for (int64_t i = 0; i < n; i += BLOCK) {
        int64_t n_here = n - i < BLOCK ? n - i : BLOCK;
        memcpy(block, row + i, (size_t)n_here * sizeof *block);
        sum += (double)exps(block, n_here, most);
    }
    return sum;
}

static void silu(const float *gate, const float *up, int64_t n, float *out)
{
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        floats g = *(const floats *)(gate + i), u = *(const floats *)(up + i);
        *(floats *)(out + i) = g / (exp_of(-g) + 1.0F) * u;
    }
    floats g = { 0 }, u = { 0 };
    memcpy(&g, gate + i, (size_t)(n - i) * sizeof *gate);
    memcpy(&u, up + i, (size_t)(n - i) * sizeof *up);
    g = g / (exp_of(-g) + 1.0F) * u;
    memcpy(out + i, &g, (size_t)(n - i) * sizeof *out);
}

/* x times the logistic function of 2 sqrt(2 / pi) (x + 0.044715 x^3), which is
 * x (1 + tanh(...)) / 2. */
ALWAYS_INLINE floats gelu_tanh_of(floats x)
{
    return x / (exp_of(x * (x * x * -0.0713548163F - 1.59576912F)) + 1.0F);
}

static void gelu_tanh(const float *x, const float *factor, int64_t n, float *out)
{
    const floats zero = { 0 }, one = zero + 1.0F;
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        floats f = factor ? *(const floats *)(factor + i) : one;
        *(floats *)(out + i) = gelu_tanh_of(*(const floats *)(x + i)) * f;
    }
    floats rest = zero, f = one;
    memcpy(&rest, x + i, (size_t)(n - i) * sizeof *x);
    if (factor)
        memcpy(&f, factor + i, (size_t)(n - i) * sizeof *factor);
    rest = gelu_tanh_of(rest) * f;
    memcpy(out + i, &rest, (size_t)(n - i) * sizeof *out);
}

static bool usable(void)
{
    return KERNELS_USABLE;
}

const gac_cpu_kernels KERNELS = {
    .name = KERNELS_NAME,
    .usable = usable,
    .to_float = to_float,
    .find_bad = find_bad,
    .tile = tile,
    .dots = dots,
    .mix = mix,
    .largest = largest,
    .exps = exps,
    .exp_sum = exp_sum,
    .silu = silu,
    .gelu_tanh = gelu_tanh,
};
