/* flash_tile: the ground the attention kernel stands on: what it is told, its
 * compile-time shapes, the instructions it is made of, and how rows of any
 * alignment come to shared memory. */
#ifndef GAC_FLASH_TILE_CUH
#define GAC_FLASH_TILE_CUH

#include "kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <type_traits>

namespace
{

constexpr unsigned ALL_LANES = 0xffffffffu;
constexpr float LOG2_E = 1.4426950408889634f;
/* The running maximum follows only when it has grown by this many powers of
 * two. Until then probabilities reach 2^8, which F16 and the FP32 sums hold
 * without loss, and nothing accumulated needs scaling. */
constexpr float LAZY_LOG2 = 8.0f;

struct params {
    const char *q; /* (batch, n_q_heads, n_q, qk_head), strides below */
    const char *k; /* (batch, n_kv_heads, n_kv, qk_head) */
    const char *v; /* (batch, n_kv_heads, n_kv, v_head) */
    char *out;     /* (batch, n_q_heads, n_q, v_head) */
    float *part;   /* (n_splits, batch, n_q_heads, n_q, v_head): sums before division */
    float2 *stats; /* (n_splits, batch, n_q_heads, n_q): maximum in log2, sum of exponentials */
    gac_flash_strides q_bytes, k_bytes, v_bytes, out_bytes;
    int64_t n_all_rows; /* batch * n_q_heads * n_q */
    int n_q_heads, n_q, n_kv, qk_head, v_head;
    int group;  /* query heads per kv head */
    int n_pack; /* query heads whose rows share a tile: 1 or group */
    int n_rows; /* n_q * n_pack; row r is query r / n_pack of head r % n_pack of the pack */
    int n_row_tiles;
    int n_splits, tiles_per_split;
    float scale_log2; /* |scale| log2(e), above 0 */
    bool negate;      /* scale is negative */
    bool causal;
    bool wide_out; /* rows of out can be stored 16 bytes at a time */
};

/* The compile-time shape of one kernel. */
template <typename T_, int D_, int M_TILES_, int N_WARPS_, int N_KEYS_, bool SHARE_, bool WIDE_>
struct config {
    using T = T_;
    static constexpr int D = D_;             /* padded head size, a multiple of 16 */
    static constexpr int M_TILES = M_TILES_; /* 16-row tiles per warp */
    static constexpr int N_WARPS = N_WARPS_;
    static constexpr int N_KEYS = N_KEYS_; /* keys per tile */
    static constexpr bool SHARE = SHARE_;  /* warps share the rows and divide the keys */
    static constexpr bool WIDE = WIDE_;
    static constexpr bool KEEP_Q = D <= 64; /* q fragments stay in registers */
    static constexpr int N_THREADS = 32 * N_WARPS;
    static constexpr int WARP_ROWS = 16 * M_TILES;
    static constexpr int N_ROWS = SHARE ? WARP_ROWS : WARP_ROWS * N_WARPS;
    static constexpr int WARP_KEYS = SHARE ? N_KEYS / N_WARPS : N_KEYS;
    static constexpr int COPY_ROWS = N_KEYS / N_WARPS; /* rows of K and of V a warp copies */
    static constexpr int PITCH = 2 * D + 16;           /* bytes between rows in shared memory */
    static constexpr int Q_BYTES = N_ROWS * PITCH;
    static constexpr int TILE_BYTES = N_KEYS * PITCH;
    static constexpr int SLACK_BYTES = 128; /* see straighten_rows */
    static constexpr int SMEM_BYTES = Q_BYTES + 4 * TILE_BYTES + SLACK_BYTES; /* q, K, V, K, V */
    static constexpr int MIN_BLOCKS = N_THREADS > 128 ? 1 : 2;
    static_assert(D % 16 == 0 && WARP_KEYS % 16 == 0 && COPY_ROWS % 2 == 0, "fragment sizes");
    static_assert(N_ROWS / N_WARPS <= 32, "one bit per row a warp copies");
};

template <class C> using scores_t = float[C::M_TILES][C::WARP_KEYS / 8][4];
template <class C> using sums_t = float[C::M_TILES][C::D / 8][4];
template <class C> using per_row_t = float[C::M_TILES][2]; /* rows lane / 4 and 8 below */

__device__ __forceinline__ uint32_t smem_address(const void *p)
{
    return (uint32_t)__cvta_generic_to_shared(p);
}

__device__ __forceinline__ void ldmatrix(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void ldmatrix_trans(uint32_t (&r)[4], uint32_t address)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

/* d (16, 8) = a (16, 16) b (16, 8) + c, FP32 sums. */
template <typename T>
__device__ __forceinline__ void mma(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1,
                                    float c0, float c1, float c2, float c3)
{
    if constexpr (std::is_same<T, __half>::value)
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1),
              "f"(c2), "f"(c3));
    else
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, "
            "{%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"
            : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
            : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(c0), "f"(c1),
              "f"(c2), "f"(c3));
}

template <typename T>
__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
    mma<T>(c, a, b0, b1, c[0], c[1], c[2], c[3]);
}

template <typename T> __device__ __forceinline__ uint32_t pack(float low, float high)
{
    uint32_t r;
    if constexpr (std::is_same<T, __half>::value)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
    return r;
}

__device__ __forceinline__ float exp2_fast(float x)
{
    float r;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
    return r;
}

/* Copies BYTES (4 or 16), the first n of them from memory and the rest zeros. */
template <int BYTES>
__device__ __forceinline__ void copy_async(uint32_t to, const char *from, int n)
{
    if constexpr (BYTES == 16)
        asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n)
                     : "memory");
    else
        asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(to), "l"(from), "r"(n)
                     : "memory");
}

__device__ __forceinline__ void copy_async_word(uint32_t to, const char *from)
{
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ uint32_t load_shared(uint32_t address)
{
    uint32_t r;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(r) : "r"(address) : "memory");
    return r;
}

__device__ __forceinline__ void store_shared_if(bool yes, uint32_t address, uint32_t value)
{
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %0, 0;\n@p st.shared.u32 [%1], %2;\n}" ::"r"((int)yes),
        "r"(address), "r"(value)
        : "memory");
}

__device__ __forceinline__ void store_shared_zero16(uint32_t address)
{
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"((unsigned short)0) : "memory");
}

/* WIDE: one warp copies ROWS rows (ROWS, head) to shared memory at to; rows
 * from n_valid on become zeros. A lane stays in its 16-byte column. */
template <class C, int ROWS>
__device__ __forceinline__ void copy_chunks(uint32_t to, const char *from, int64_t stride_bytes,
                                            int n_valid, int head, int lane)
{
    constexpr int N_CHUNKS = C::D / 8, STEP = 32 / N_CHUNKS;
    const int row = lane / N_CHUNKS, chunk = lane % N_CHUNKS;
    const int n_bytes = min(16, 2 * head - 16 * chunk);
    if (row >= STEP || n_bytes <= 0)
        return;
    from += row * stride_bytes + 16 * chunk;
    to += row * C::PITCH + 16 * chunk;
#pragma unroll
    for (int k = 0; k < ROWS; k += STEP) {
        if (k + row < ROWS)
            copy_async<16>(to + k * C::PITCH, from, k + row < n_valid ? n_bytes : 0);
        from += STEP * stride_bytes;
    }
}

/* Not WIDE: the same in aligned 4-byte words, lanes side by side in a row. Two
 * rows on, the position within a word is the same, hence two pointers. */
template <class C, int ROWS, bool FULL>
__device__ __forceinline__ void copy_words(uint32_t to, const char *from, int64_t stride_bytes,
                                           int n_valid, int head, int lane)
{
    constexpr int N_STEPS = (C::D / 2 + 31) / 32;
    const char *source[2];
    int n_words[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        const uintptr_t start = (uintptr_t)(from + i * stride_bytes);
        n_words[i] = (head + (int)(start >> 1 & 1) + 1) / 2 - lane;
        source[i] = (const char *)(start & ~(uintptr_t)3) + 4 * lane;
    }
    if (C::D % 64 == 0 && head == C::D && lane < ROWS) {
        /* The last half word of an odd row is one too many for the steps below. */
        const uintptr_t start = (uintptr_t)(from + lane * stride_bytes);
        if (start & 2)
            copy_async<4>(to + lane * C::PITCH + 2 * C::D, (const char *)start - 2 + 2 * C::D,
                          lane < n_valid ? 4 : 0);
    }
    to += 4 * lane;
#pragma unroll
    for (int k = 0; k < ROWS; k++) {
#pragma unroll
        for (int i = 0; i < N_STEPS; i++) {
            if (32 * i >= n_words[k & 1])
                continue;
            if (FULL)
                copy_async_word(to + k * C::PITCH + 128 * i, source[k & 1] + 128 * i);
            else
                copy_async<4>(to + k * C::PITCH + 128 * i, source[k & 1] + 128 * i,
                              k < n_valid ? 4 : 0);
        }
        source[k & 1] += 2 * stride_bytes;
    }
}

template <class C, int ROWS>
__device__ __forceinline__ void copy_rows(uint32_t to, const char *from, int64_t stride_bytes,
                                          int n_valid, int head, int lane)
{
    if constexpr (C::WIDE)
        copy_chunks<C, ROWS>(to, from, stride_bytes, n_valid, head, lane);
    else if (n_valid >= ROWS)
        copy_words<C, ROWS, true>(to, from, stride_bytes, n_valid, head, lane);
    else
        copy_words<C, ROWS, false>(to, from, stride_bytes, n_valid, head, lane);
}

/* Bit 0: even rows start in the middle of a word; bit 1: odd rows do. */
__device__ __forceinline__ uint32_t odd_rows(const char *from, int64_t stride_bytes)
{
    const uint32_t first = (uint32_t)(uintptr_t)from >> 1 & 1;
    const uint32_t second = (uint32_t)((uintptr_t)from + stride_bytes) >> 1 & 1;
    return first | second << 1;
}

/* Shifts rows first, first + 2, .. of ROWS one element to the left. All words
 * of a batch of rows are read before any is written; lanes past the end of a
 * row read on, at most SLACK_BYTES. */
template <class C, int ROWS>
__device__ __forceinline__ void shift_rows(uint32_t rows, int first, int lane)
{
    constexpr int N_STEPS = (C::D / 2 + 31) / 32, N = (ROWS + 1) / 2, BATCH = N < 4 ? N : 4;
    static_assert(N % BATCH == 0, "whole batches");
    static_assert(128 * N_STEPS + 4 <= C::PITCH + C::SLACK_BYTES, "words past the last row");
    rows += first * C::PITCH + 4 * lane;
#pragma unroll
    for (int k = 0; k < N; k += BATCH) {
        uint32_t word[BATCH][N_STEPS], next[BATCH][N_STEPS];
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int i = 0; i < N_STEPS; i++) {
                word[b][i] = load_shared(rows + 2 * (k + b) * C::PITCH + 128 * i);
                next[b][i] = load_shared(rows + 2 * (k + b) * C::PITCH + 128 * i + 4);
            }
        __syncwarp();
#pragma unroll
        for (int b = 0; b < BATCH; b++)
#pragma unroll
            for (int i = 0; i < N_STEPS; i++)
                store_shared_if(lane + 32 * i < C::D / 2, rows + 2 * (k + b) * C::PITCH + 128 * i,
                                __byte_perm(word[b][i], next[b][i], 0x5432));
    }
}

/* Not WIDE: puts right the rows that start in the middle of a word (see
 * odd_rows), and clears the element after the head, which was copied with its
 * other half. The warp that copied the rows calls this once they are there. */
template <class C, int ROWS>
__device__ __forceinline__ void straighten_rows(uint32_t rows, uint32_t odd, int head, int lane)
{
    if (!(head & 1) && !odd)
        return;
    __syncwarp();
#pragma unroll 1
    for (int first = 0; first < 2; first++)
        if (odd >> first & 1)
            shift_rows<C, ROWS>(rows, first, lane);
    __syncwarp();
    if (lane < ROWS)
        store_shared_zero16(rows + lane * C::PITCH + 2 * head);
}

} /* namespace */

#endif
