/* F64 kernels behind Gram matrices and factors: conversions, and copies in another order. */
#include "pass_algebra_kernels.h"
#include "pass_common.cuh"

namespace
{

constexpr int N_THREADS = 256, TILE = 32, LANES = 8;

__device__ __forceinline__ int64_t stored_index(const gac_widen_args &a, int64_t i)
{
    return a.size == a.stored ? i : i / a.size * a.stored + i % a.size;
}

/* A block has TILE columns and LANES threads for each, which share the rows. */
template <typename T>
__global__ void __launch_bounds__(TILE *LANES) gac_widen_kernel(const gac_widen_args a)
{
    __shared__ double parts[LANES][TILE];
    const int64_t i = (int64_t)blockIdx.x * TILE + threadIdx.x;
    double sum = 0;
    if (i < a.n) {
        const T *x = (const T *)a.x + stored_index(a, i);
#pragma unroll 4
        for (int64_t r = threadIdx.y; r < a.n_rows; r += LANES) {
            const double v = (double)to_float(x[r * a.x_ld]);
            a.out[r * a.n + i] = v;
            sum += fabs(v);
        }
    }
    parts[threadIdx.y][threadIdx.x] = sum;
    __syncthreads();
    if (threadIdx.y != 0 || i >= a.n)
        return;
    for (int lane = 1; lane < LANES; lane++)
        sum += parts[lane][threadIdx.x];
    a.magnitude[i] += sum;
}

/* Blocks (TILE, LANES) go through tiles of TILE by TILE numbers. */
template <typename Put>
__device__ __forceinline__ void transpose_tile(const double *from, int64_t n, int64_t n_cols,
                                               Put put)
{
    __shared__ double tile[TILE][TILE + 1];
    const int64_t row = (int64_t)blockIdx.y * TILE, col = (int64_t)blockIdx.x * TILE;
    for (int r = threadIdx.y; r < TILE; r += LANES)
        if (row + r < n && col + threadIdx.x < n_cols)
            tile[r][threadIdx.x] = from[(row + r) * n_cols + col + threadIdx.x];
    __syncthreads();
    for (int c = threadIdx.y; c < TILE; c += LANES)
        if (col + c < n_cols && row + threadIdx.x < n)
            put(col + c, row + threadIdx.x, tile[threadIdx.x][c]);
}

__global__ void __launch_bounds__(TILE *LANES)
    gac_mirror_kernel(const double *a, double *out, int64_t n)
{
    const int64_t row = (int64_t)blockIdx.y * TILE, col = (int64_t)blockIdx.x * TILE;
    if (col > row)
        return; /* the tile is above the diagonal */
    for (int r = threadIdx.y; r < TILE; r += LANES) {
        const int64_t i = row + r, j = col + threadIdx.x;
        if (i < n && j <= i)
            out[i * n + j] = a[i * n + j];
    }
    transpose_tile(a, n, n, [=](int64_t i, int64_t j, double v) {
        if (i < j) /* number (j, i) of a, below the diagonal */
            out[i * n + j] = v;
    });
}

__global__ void __launch_bounds__(TILE *LANES)
    gac_transpose_kernel(const double *from, float *to, int64_t n, int64_t n_cols, bool reverse)
{
    transpose_tile(from, n, n_cols, [=](int64_t i, int64_t j, double v) {
        to[i * n + (reverse ? n - 1 - j : j)] = (float)v;
    });
}

template <typename F> __global__ void __launch_bounds__(N_THREADS) gac_each_kernel(int64_t n, F f)
{
    for (int64_t i = (int64_t)blockIdx.x * N_THREADS + threadIdx.x; i < n;
         i += (int64_t)gridDim.x * N_THREADS)
        f(i);
}

/* Calls f(i) for i < n. */
template <typename F>
gac_status for_each(int64_t n, F f, const char *what, cudaStream_t stream, gac_error *err)
{
    if (n < 1)
        return GAC_OK;
    const int64_t n_blocks = (n + N_THREADS - 1) / N_THREADS;
    gac_each_kernel<<<(unsigned)(n_blocks < 4096 ? n_blocks : 4096), N_THREADS, 0, stream>>>(n, f);
    return launch_status(cudaGetLastError(), what, err);
}

dim3 tiles(int64_t n_rows, int64_t n_cols)
{
    return dim3((unsigned)((n_cols + TILE - 1) / TILE), (unsigned)((n_rows + TILE - 1) / TILE));
}

struct to_double {
    const float *from;
    double *to;
    int *bad;
    __device__ void operator()(int64_t i) const
    {
        const float x = from[i];
        if (!isfinite(x))
            *bad = 1;
        to[i] = (double)x;
    }
};

struct narrow {
    const double *from;
    float *to;
    __device__ void operator()(int64_t i) const
    {
        to[i] = (float)from[i];
    }
};

struct check_finite {
    const double *a;
    int *bad;
    __device__ void operator()(int64_t i) const
    {
        if (!isfinite(a[i]))
            *bad = 1;
    }
};

struct add_diagonal {
    double *a;
    int64_t n;
    double value;
    __device__ void operator()(int64_t i) const
    {
        a[i * n + i] += value;
    }
};

struct clear_upper {
    double *a;
    int64_t n;
    __device__ void operator()(int64_t i) const
    {
        if (i % n > i / n)
            a[i] = 0;
    }
};

struct reverse_rows {
    const double *from;
    double *to;
    int64_t n, n_cols;
    __device__ void operator()(int64_t i) const
    {
        to[i] = from[(n - 1 - i / n_cols) * n_cols + i % n_cols];
    }
};

struct gather {
    const double *from;
    int64_t ld;
    const int32_t *rows, *cols;
    double *to;
    int64_t n_cols;
    __device__ void operator()(int64_t i) const
    {
        const int64_t r = i / n_cols;
        to[i] = from[(rows ? rows[r] : r) * ld + cols[i % n_cols]];
    }
};

} /* namespace */

extern "C" gac_status gac_widen_launch(const gac_widen_args *a, cudaStream_t stream, gac_error *err)
{
    if (a->n < 1 || a->n_rows < 1 || a->size < 1)
        return gac_error_set(err, GAC_USAGE, "a Gram matrix of no rows");
    const unsigned n_blocks = (unsigned)((a->n + TILE - 1) / TILE);
    const dim3 threads(TILE, LANES);
    if (a->dtype == GAC_DTYPE_F16)
        gac_widen_kernel<__half><<<n_blocks, threads, 0, stream>>>(*a);
    else if (a->dtype == GAC_DTYPE_BF16)
        gac_widen_kernel<__nv_bfloat16><<<n_blocks, threads, 0, stream>>>(*a);
    else
        gac_widen_kernel<float><<<n_blocks, threads, 0, stream>>>(*a);
    return launch_status(cudaGetLastError(), "rows of a Gram matrix", err);
}

extern "C" gac_status gac_mirror_launch(const double *a, double *out, int64_t n,
                                        cudaStream_t stream, gac_error *err)
{
    gac_mirror_kernel<<<tiles(n, n), dim3(TILE, LANES), 0, stream>>>(a, out, n);
    return launch_status(cudaGetLastError(), "copy of a Gram matrix", err);
}

extern "C" gac_status gac_transpose_launch(const double *from, float *to, int64_t n, int64_t n_cols,
                                           bool reverse, cudaStream_t stream, gac_error *err)
{
    gac_transpose_kernel<<<tiles(n, n_cols), dim3(TILE, LANES), 0, stream>>>(from, to, n, n_cols,
                                                                             reverse);
    return launch_status(cudaGetLastError(), "copy of a basis", err);
}

extern "C" gac_status gac_to_double_launch(const float *from, double *to, int64_t n, int *bad,
                                           cudaStream_t stream, gac_error *err)
{
    return for_each(n, to_double{ from, to, bad }, "conversion to F64", stream, err);
}

extern "C" gac_status gac_to_float_launch(const double *from, float *to, int64_t n,
                                          cudaStream_t stream, gac_error *err)
{
    return for_each(n, narrow{ from, to }, "conversion to F32", stream, err);
}

extern "C" gac_status gac_check_finite_launch(const double *a, int64_t n, int *bad,
                                              cudaStream_t stream, gac_error *err)
{
    return for_each(n, check_finite{ a, bad }, "check of a matrix", stream, err);
}

extern "C" gac_status gac_add_diagonal_launch(double *a, int64_t n, double value,
                                              cudaStream_t stream, gac_error *err)
{
    return for_each(n, add_diagonal{ a, n, value }, "addition to a diagonal", stream, err);
}

extern "C" gac_status gac_clear_upper_launch(double *a, int64_t n, cudaStream_t stream,
                                             gac_error *err)
{
    return for_each(n * n, clear_upper{ a, n }, "triangle", stream, err);
}

extern "C" gac_status gac_reverse_rows_launch(const double *from, double *to, int64_t n,
                                              int64_t n_cols, cudaStream_t stream, gac_error *err)
{
    return for_each(n * n_cols, reverse_rows{ from, to, n, n_cols }, "order of rows", stream, err);
}

extern "C" gac_status gac_gather_launch(const double *from, int64_t ld, const int32_t *rows,
                                        const int32_t *cols, double *to, int64_t n_rows,
                                        int64_t n_cols, cudaStream_t stream, gac_error *err)
{
    return for_each(n_rows * n_cols, gather{ from, ld, rows, cols, to, n_cols }, "kept inputs",
                    stream, err);
}
