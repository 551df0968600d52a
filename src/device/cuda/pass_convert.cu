/* Converts weights from the checkpoint's layout to the kernels' layout: other types,
 * other row lengths, and gaps between slices. The caller has filled the gaps with zeros. */
#include "pass_common.cuh"

namespace
{

constexpr int N_THREADS = 256;

__device__ __forceinline__ int64_t map_index(const gac_index_map &map, int64_t i)
{
    const int64_t at = map.start + i;
    if (map.size == map.stored)
        return at - map.base;
    return at / map.size * map.stored + at % map.size - map.base;
}

/* Blocks loop over rows, threads over columns. */
template <typename F, typename T>
__global__ void __launch_bounds__(N_THREADS) gac_convert_kernel(const gac_convert_args p)
{
    const F *from = (const F *)p.from;
    T *to = (T *)p.to;
    for (int64_t r = blockIdx.x; r < p.n_rows; r += gridDim.x) {
        T *row = to + map_index(p.rows, r) * p.ld;
        for (int64_t c = (int64_t)blockIdx.y * N_THREADS + threadIdx.x; c < p.n_cols;
             c += (int64_t)gridDim.y * N_THREADS) {
            const T x = from_float<T>(to_float(from[r * p.n_cols + c]));
            if (!isfinite(to_float(x)))
                atomicMin(p.first_bad, (unsigned long long)(p.first_index + r * p.n_cols + c));
            row[map_index(p.cols, c)] = x;
        }
    }
}

template <typename F>
cudaError_t launch_to(const gac_convert_args *a, dim3 grid, cudaStream_t stream)
{
    switch (a->to_dtype) {
    case GAC_DTYPE_F16:
        gac_convert_kernel<F, __half><<<grid, N_THREADS, 0, stream>>>(*a);
        break;
    case GAC_DTYPE_BF16:
        gac_convert_kernel<F, __nv_bfloat16><<<grid, N_THREADS, 0, stream>>>(*a);
        break;
    case GAC_DTYPE_F32:
        gac_convert_kernel<F, float><<<grid, N_THREADS, 0, stream>>>(*a);
        break;
    default:
        return cudaErrorInvalidValue;
    }
    return cudaGetLastError();
}

} /* namespace */

extern "C" gac_status gac_convert_launch(const gac_convert_args *args, cudaStream_t stream,
                                         gac_error *err)
{
    if (args->n_rows < 1 || args->n_cols < 1)
        return gac_error_set(err, GAC_USAGE, "a conversion of nothing");
    const int64_t n_blocks = (args->n_cols + N_THREADS - 1) / N_THREADS;
    const dim3 grid((unsigned)(args->n_rows < 4096 ? args->n_rows : 4096),
                    (unsigned)(n_blocks < 64 ? n_blocks : 64));
    cudaError_t code = cudaErrorInvalidValue;
    if (args->from_dtype == GAC_DTYPE_F32)
        code = launch_to<float>(args, grid, stream);
    else if (args->from_dtype == GAC_DTYPE_F16)
        code = launch_to<__half>(args, grid, stream);
    else if (args->from_dtype == GAC_DTYPE_BF16)
        code = launch_to<__nv_bfloat16>(args, grid, stream);
    return launch_status(code, "conversion of weights", err);
}
