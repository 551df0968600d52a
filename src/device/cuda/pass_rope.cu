/* Prepares rows of q, k and v for attention: norms, rotary embedding, cache. */
#include "pass_heads.cuh"

namespace
{

constexpr int N_WARPS = 8;

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
        const int64_t half = a.qk_size / 2;
        const head_rule rule = { is_q ? a.q_norm : a.k_norm,
                                 a.cosines ? a.cosines + position * half : nullptr,
                                 a.sines ? a.sines + position * half : nullptr,
                                 (int)a.qk_size,
                                 (int)a.qk_stored,
                                 (float)a.eps };
        T *to = is_q ? (T *)p.q_out + (row * n_q + head) * a.qk_stored
                     : (T *)a.k_cache + slot * a.qk_stored;
        norm_and_rotate(rule, from + head * a.qk_stored, to);
    }
}

} /* namespace */

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
