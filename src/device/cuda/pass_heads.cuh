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
    const float *cosines, *sines; /* (size / 2) or NULL */
    int size, stored;
    float eps;
};

/* Reads numbers i and i + 1 of one half of a head. wide: they share an aligned word. */
template <typename T>
__device__ __forceinline__ float2 read_two(const T *from, int i, int half, bool wide)
{
    if (i >= half)
        return float2{ 0, 0 };
    if (wide)
        return unpack_pair<T>(*(const uint32_t *)(from + i));
    return float2{ to_float(from[i]), i + 1 < half ? to_float(from[i + 1]) : 0.0f };
}

template <typename T>
__device__ __forceinline__ void write_two(T *to, int i, int half, bool wide, float2 v)
{
    if (i >= half)
        return;
    if (wide) {
        *(uint32_t *)(to + i) = pack_pair<T>(v.x, v.y);
    } else {
        to[i] = from_float<T>(v.x);
        if (i + 1 < half)
            to[i + 1] = from_float<T>(v.y);
    }
}

__device__ __forceinline__ float2 read_table(const float *table, int i, int half, float missing)
{
    return float2{ table && i < half ? table[i] : missing,
                   table && i + 1 < half ? table[i + 1] : missing };
}

/* to (stored) = from (size) / rms * norm, rotated, then padded with zeros. A lane holds
 * numbers 2 lane and 2 lane + 1 of both halves, and the same 64 further on. The last
 * number of an odd size is not rotated. */
template <typename T>
__device__ __forceinline__ void norm_and_rotate(const head_rule &rule, const T *from, T *to)
{
    constexpr int N = MAX_HEAD / 2 / 64;
    const int lane = threadIdx.x % 32, half = rule.size / 2;
    const bool wide = half % 2 == 0 && ((uintptr_t)from | (uintptr_t)to) % 4 == 0;
    const bool odd = rule.size % 2;
    float2 a[N], b[N];
    float tail = odd ? to_float(from[rule.size - 1]) : 0.0f, sum = 0;
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = 2 * lane + 64 * j;
        a[j] = read_two(from, i, half, wide);
        b[j] = read_two(from + half, i, half, wide);
        sum += a[j].x * a[j].x + a[j].y * a[j].y + b[j].x * b[j].x + b[j].y * b[j].y;
    }
    if (rule.norm) {
        sum = warp_sum(sum) + tail * tail;
        const float scale = rsqrtf(sum / (float)rule.size + rule.eps);
        tail *= odd ? scale * rule.norm[rule.size - 1] : 0.0f;
#pragma unroll
        for (int j = 0; j < N; j++) {
            const int i = 2 * lane + 64 * j;
            const float2 u = read_table(rule.norm, i, half, 0);
            const float2 v = read_table(rule.norm + half, i, half, 0);
            a[j] = float2{ a[j].x * scale * u.x, a[j].y * scale * u.y };
            b[j] = float2{ b[j].x * scale * v.x, b[j].y * scale * v.y };
        }
    }
#pragma unroll
    for (int j = 0; j < N; j++) {
        const int i = 2 * lane + 64 * j;
        const float2 c = read_table(rule.cosines, i, half, 1);
        const float2 s = read_table(rule.sines, i, half, 0);
        write_two(to, i, half, wide,
                  float2{ a[j].x * c.x - b[j].x * s.x, a[j].y * c.y - b[j].y * s.y });
        write_two(to + half, i, half, wide,
                  float2{ b[j].x * c.x + a[j].x * s.x, b[j].y * c.y + a[j].y * s.y });
    }
    if (odd && lane == 0)
        to[rule.size - 1] = from_float<T>(tail);
    for (int i = rule.size + lane; i < rule.stored; i += 32)
        to[i] = from_float<T>(0.0f);
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
           a->capacity < most;
}

} /* namespace */

#endif
