/* pass_heads: one warp applies the norm and the rotary embedding to one head of q or k. */
#ifndef GAC_PASS_HEADS_CUH
#define GAC_PASS_HEADS_CUH

#include "pass_common.cuh"

namespace
{

constexpr int MAX_HEAD = 256;

/* What to do with a head. cosines and sines are the table rows of its position. */
struct head_rule {
    const float *norm;            /* (size) or NULL */
    const float *cosines, *sines; /* (n_rotated / 2), or NULL: it is not rotated */
    int size, stored;
    int n_rotated; /* numbers that are rotated, the first ones */
    bool interleaved, centred;
    float eps;
    float scale; /* of the norm, if it is known already; else 0 */
};

/* The rule for head number `head` of q or of k, in a row of qkv. The row of the tables is the
 * caller's to set. */
__device__ __forceinline__ head_rule rule_for(const gac_heads_args &a, bool is_q, int head,
                                              int64_t row)
{
    head_rule rule = {};
    rule.norm = is_q ? a.q_norm : a.k_norm;
    if (rule.norm && a.norm_each)
        rule.norm += head * a.qk_size;
    if (a.whole_scales)
        rule.scale = a.whole_scales[2 * row + !is_q];
    rule.size = (int)a.qk_size;
    rule.stored = (int)a.qk_stored;
    rule.n_rotated = (int)a.rotary_size;
    rule.interleaved = a.interleaved;
    rule.centred = a.norm_centred;
    rule.eps = (float)a.eps;
    return rule;
}

/* to (stored) = from (size), normed, rotated, then padded with zeros. from and to do not
 * overlap. A number that is rotated needs its partner, which is read again. No head is stored
 * in more than MOST numbers. */
template <int MOST, typename T>
__device__ __forceinline__ void norm_and_rotate(const head_rule &rule, const T *from, T *to)
{
    constexpr int N = MOST / 32;
    const int lane = threadIdx.x % 32, half = rule.n_rotated / 2;
    float x[N], mean = 0, scale = 1, sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = lane + 32 * j;
        x[j] = i < rule.size ? to_float(from[i]) : 0.0f;
        sum += x[j];
    }
    if (rule.norm && rule.centred)
        mean = warp_sum(sum) / (float)rule.size;
    if (rule.scale > 0) {
        scale = rule.scale;
    } else if (rule.norm) {
        sum = 0;
#pragma unroll
        for (int j = 0; j < N; j++)
            sum += lane + 32 * j < rule.size ? (x[j] - mean) * (x[j] - mean) : 0.0f;
        scale = rsqrtf(warp_sum(sum) / (float)rule.size + rule.eps);
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = lane + 32 * j;
        if (i >= rule.stored)
            break;
        float y = (x[j] - mean) * scale;
        if (i >= rule.size)
            y = 0;
        else if (rule.norm)
            y *= rule.norm[i];
        if (rule.cosines && i < rule.n_rotated) {
            const bool is_first = rule.interleaved ? i % 2 == 0 : i < half;
            const int step = rule.interleaved ? 1 : half, k = is_first ? i + step : i - step;
            const int angle = rule.interleaved ? i / 2 : i % half;
            float partner = (to_float(from[k]) - mean) * scale;
            if (rule.norm)
                partner *= rule.norm[k];
            y = y * rule.cosines[angle] + (is_first ? -partner : partner) * rule.sines[angle];
        }
        to[i] = from_float<T>(y);
    }
}

/* Copies n numbers with one warp. */
template <typename T> __device__ __forceinline__ void copy_head(const T *from, T *to, int n)
{
    const int lane = threadIdx.x % 32;
    if (n % 8 == 0 && ((uintptr_t)from | (uintptr_t)to) % 16 == 0) {
        for (int i = lane; i < n / 8; i += 32)
            ((uint4 *)to)[i] = ((const uint4 *)from)[i];
    } else {
        for (int i = lane; i < n; i += 32)
            to[i] = from[i];
    }
}

inline bool check_heads(const gac_heads_args *a)
{
    const int64_t most = 1 << 30;
    return is_half_type(a->dtype) && a->batch > 0 && a->batch < most && a->n_new > 0 &&
           a->n_new < most / a->batch && a->n_q_heads > 0 && a->n_kv_heads > 0 &&
           a->n_q_heads < 65536 && a->n_q_heads % a->n_kv_heads == 0 && a->qk_size > 0 &&
           a->v_size > 0 && a->qk_stored >= a->qk_size && a->v_stored >= a->v_size &&
           a->qk_stored <= MAX_HEAD && a->v_stored <= MAX_HEAD && a->capacity > 0 &&
           a->capacity < most && a->rotary_size >= 0 && a->rotary_size <= a->qk_size &&
           a->rotary_size % 2 == 0;
}

} /* namespace */

#endif
