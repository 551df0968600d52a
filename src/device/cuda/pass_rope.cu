/* Prepares rows of q, k and v for attention: norms, rotary embedding, cache. */
#include "pass_heads.cuh"

namespace
{

constexpr int N_WARPS = 8, NORM_THREADS = 256;

struct params {
    gac_heads_args a;
    void *q_out;
};

/* Each warp processes one head at a time, over all rows: the q heads of a row, its k
 * heads, its v heads. */
template <typename T>
__global__ void __launch_bounds__(32 * N_WARPS) gac_rope_kernel(const __grid_constant__ params p)
{
    const gac_heads_args &a = p.a;
    const int n_q = (int)a.n_q_heads, n_kv = (int)a.n_kv_heads, n_heads = n_q + 2 * n_kv;
    const int64_t n_jobs = a.batch * a.n_new * n_heads;
    const int n_past = *a.n_past;
    for (int64_t job = (int64_t)blockIdx.x * N_WARPS + threadIdx.x / 32; job < n_jobs;
         job += (int64_t)gridDim.x * N_WARPS) {
        const int64_t row = job / n_heads, sequence = row / a.n_new;
        const int64_t position = n_past + row % a.n_new;
        const int head = (int)(job % n_heads);
        const bool is_q = head < n_q, is_v = head >= n_q + n_kv;
        const int kv_head = is_v ? head - n_q - n_kv : head - n_q;
        const T *from = (const T *)a.qkv + row * a.qkv_ld;
        const int64_t slot = (sequence * n_kv + kv_head) * a.capacity + position;
        if (position >= a.capacity)
            continue; /* the caller has checked this */
        if (is_v) {
            copy_head(from + (n_q + n_kv) * a.qk_stored + kv_head * a.v_stored,
                      (T *)a.v_cache + slot * a.v_stored, (int)a.v_stored);
            continue;
        }
        head_rule rule = rule_for(a, is_q, is_q ? head : kv_head, row);
        if (a.cosines) {
            rule.cosines = a.cosines + position * (a.rotary_size / 2);
            rule.sines = a.sines + position * (a.rotary_size / 2);
        }
        T *to = is_q ? (T *)p.q_out + (row * n_q + head) * a.qk_stored
                     : (T *)a.k_cache + slot * a.qk_stored;
        norm_and_rotate<MAX_HEAD>(rule, from + head * a.qk_stored, to);
    }
}

/* A block per row, for q and for k. */
template <typename T>
__global__ void __launch_bounds__(NORM_THREADS)
    gac_whole_scales_kernel(const __grid_constant__ gac_heads_args a, float *scales)
{
    __shared__ float spare[NORM_THREADS / 32];
    const bool is_q = blockIdx.y == 0;
    const int n = (int)((is_q ? a.n_q_heads : a.n_kv_heads) * a.qk_size), size = (int)a.qk_size;
    const T *x = (const T *)a.qkv + blockIdx.x * a.qkv_ld + (is_q ? 0 : a.n_q_heads * a.qk_stored);
    float sum = 0;
    for (int i = threadIdx.x; i < n; i += NORM_THREADS) {
        const float v = to_float(x[i / size * a.qk_stored + i % size]);
        sum += v * v;
    }
    sum = block_sum(sum, spare);
    if (threadIdx.x == 0)
        scales[2 * blockIdx.x + blockIdx.y] = rsqrtf(sum / (float)n + (float)a.eps);
}

} /* namespace */

extern "C" gac_status gac_whole_scales_launch(const gac_heads_args *args, float *scales,
                                              cudaStream_t stream, gac_error *err)
{
    if (!check_heads(args))
        return gac_error_set(err, GAC_USAGE, "heads of sizes that make no sense");
    const dim3 grid((unsigned)(args->batch * args->n_new), 2);
    if (args->dtype == GAC_DTYPE_F16)
        gac_whole_scales_kernel<__half><<<grid, NORM_THREADS, 0, stream>>>(*args, scales);
    else
        gac_whole_scales_kernel<__nv_bfloat16><<<grid, NORM_THREADS, 0, stream>>>(*args, scales);
    return launch_status(cudaGetLastError(), "norm of all heads", err);
}

extern "C" gac_status gac_rope_launch(const gac_heads_args *args, void *q_out, cudaStream_t stream,
                                      gac_error *err)
{
    if (!check_heads(args))
        return gac_error_set(err, GAC_USAGE, "heads of sizes that make no sense");
    const params p = { *args, q_out };
    const int64_t n_jobs = args->batch * args->n_new * (args->n_q_heads + 2 * args->n_kv_heads);
    const int64_t n_blocks = (n_jobs + N_WARPS - 1) / N_WARPS;
    const unsigned grid = (unsigned)(n_blocks < 1 << 20 ? n_blocks : 1 << 20);
    if (args->dtype == GAC_DTYPE_F16)
        gac_rope_kernel<__half><<<grid, 32 * N_WARPS, 0, stream>>>(p);
    else
        gac_rope_kernel<__nv_bfloat16><<<grid, 32 * N_WARPS, 0, stream>>>(p);
    return launch_status(cudaGetLastError(), "rotation of heads", err);
}
