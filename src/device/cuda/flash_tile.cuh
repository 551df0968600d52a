/* flash_tile: parameters, compile-time shapes and instructions of the attention kernels,
 * and copies of rows of any alignment to shared memory. */
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
/* The running maximum is updated only after it has grown by this many powers of two.
 * Until then probabilities reach at most 2^8, which F16 and the FP32 sums hold without
 * loss, and no accumulated sum needs rescaling. */
constexpr float LAZY_LOG2 = 8.0f;

/* From the first to the last 16-byte boundary in a tensor. */
struct span {
    const char *begin, *end;
};

struct params {
    const char *q; /* (batch, n_q_heads, n_q, qk_head), strides below */
    const char *k; /* (batch, n_kv_heads, n_kv, qk_head) */
    const char *v; /* (batch, n_kv_heads, n_kv, v_head) */
    char *out;     /* (batch, n_q_heads, n_q, v_head) */
    float *part;   /* (n_splits, batch, n_q_heads, n_q, v_head): sums before normalisation */
    float2 *stats; /* (n_splits, batch, n_q_heads, n_q): maximum in log2, sum of exponentials */
    gac_flash_strides q_bytes, k_bytes, v_bytes, out_bytes;
    span q_span, k_span, v_span;
    int64_t n_all_rows; /* batch * n_q_heads * n_q */
    int n_q_heads, n_q, n_kv, qk_head, v_head;
    int group;  /* query heads per kv head */
    int n_pack; /* query heads whose rows share a tile: 1 or group */
    int n_rows; /* n_q * n_pack; row r is query r / n_pack of head r % n_pack of the pack */
    int n_row_tiles;
    int n_splits, tiles_per_split;
    float scale_log2;  /* |scale| log2(e), above 0 */
    float cap, to_cap; /* score s becomes cap tanh(to_cap s) before it is scaled; cap 0: not */
    int window;        /* keys that a row sees, the last ones; INT_MAX: all */
    bool negate;       /* scale is negative */
    bool causal;
    bool wide_out; /* rows of out are 16-byte aligned */
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
    static constexpr int COPY_ROWS = N_KEYS / N_WARPS; /* rows of K and of V that a warp copies */
    static constexpr int PITCH = 2 * D + 16;           /* bytes between rows in shared memory */
    static constexpr int Q_BYTES = N_ROWS * PITCH;
    static constexpr int TILE_BYTES = N_KEYS * PITCH;
    static constexpr int SMEM_BYTES = Q_BYTES + 4 * TILE_BYTES; /* q, K, V, K, V */
    /* Lanes that copy the D / 8 + 1 chunks of a row. One chunk may be left over, see
     * copy_windows. */
    static constexpr int WINDOW_LANES = D <= 32 ? 4 : D <= 64 ? 8 : D <= 128 ? 16 : 32;
    static constexpr int MIN_BLOCKS = N_THREADS > 128 ? 1 : 2;
    static_assert(D % 16 == 0 && WARP_KEYS % 16 == 0 && N_KEYS % 8 == 0, "fragment sizes");
    static_assert(N_ROWS / N_WARPS <= 32 && D / 8 <= WINDOW_LANES, "a warp's copies");
    static_assert(WINDOW_LANES >= 4, "copy_windows: at most eight rows at once");
};

template <class C> using scores_t = float[C::M_TILES][C::WARP_KEYS / 8][4];
template <class C> using sums_t = float[C::M_TILES][C::D / 8][4];
template <class C> using per_row_t = float[C::M_TILES][2]; /* rows lane / 4 and lane / 4 + 8 */

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

/* Returns tanh(x), off by about 1e-7. tanhf would take registers that limit how many blocks run
 * side by side. */
__device__ __forceinline__ float tanh_fast(float x)
{
    return 1.0f - __fdividef(2.0f, 1.0f + exp2_fast(2.0f * LOG2_E * x));
}

/* Copies n bytes and fills up to 16 with zeros. Does not read past the n bytes. */
__device__ __forceinline__ void copy_async(uint32_t to, const char *from, int n)
{
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(n)
                 : "memory");
}

__device__ __forceinline__ void copies_commit()
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

__device__ __forceinline__ void copies_wait()
{
    asm volatile("cp.async.wait_group 0;" ::: "memory");
}

__device__ __forceinline__ void load_shared(uint32_t *r, uint32_t address)
{
    asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(address)
                 : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, const uint32_t *r)
{
    asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(r[0]), "r"(r[1]),
                 "r"(r[2]), "r"(r[3])
                 : "memory");
}

__device__ __forceinline__ void store_shared(uint32_t address, unsigned short value)
{
    asm volatile("st.shared.u16 [%0], %1;" ::"r"(address), "h"(value) : "memory");
}

/* Copies bytes first to end of the 16-byte chunk at from, with zeros around them. A chunk
 * that reaches outside the tensor is copied element by element. Not inlined, as few
 * chunks need it. */
__device__ __noinline__ void copy_careful(uint32_t to, const char *from, int first, int end,
                                          const char *begin_at, const char *end_at)
{
    if (end > 0 && from >= begin_at && from < end_at) {
        copy_async(to, from, end);
        return;
    }
#pragma unroll 1
    for (int i = 0; i < 16; i += 2)
        store_shared(to + i, i >= first && i < end ? *(const unsigned short *)(from + i)
                                                   : (unsigned short)0);
}

/* WIDE: one warp copies rows (ROWS, head) to shared memory. Rows from n_valid on become
 * zeros. Each lane copies one 16-byte column. PLAIN: all rows are valid and all chunks
 * are inside the tensor. */
template <class C, int ROWS, bool PLAIN>
__device__ __forceinline__ void copy_chunks(uint32_t to, const char *from, int64_t stride_bytes,
                                            const span &whole, int n_valid, int head, int lane)
{
    constexpr int N_CHUNKS = C::D / 8, STEP = 32 / N_CHUNKS;
    const int row = lane / N_CHUNKS, chunk = lane % N_CHUNKS;
    const int n_bytes = min(16, 2 * head - 16 * chunk);
    if (row >= STEP || n_bytes <= 0)
        return;
    from += row * stride_bytes + 16 * chunk;
    to += row * C::PITCH + 16 * chunk;
#pragma unroll(PLAIN ? ROWS : 1)
    for (int k = 0; k < ROWS; k += STEP) {
        if (k + row < ROWS) {
            if (PLAIN)
                copy_async(to + k * C::PITCH, from, n_bytes);
            else
                copy_careful(to + k * C::PITCH, from, 0, k + row < n_valid ? n_bytes : 0,
                             whole.begin, whole.end);
        }
        from += STEP * stride_bytes;
    }
}

/* Not WIDE: copies the aligned 16-byte chunks that contain each row, followed by zeros.
 * Each row arrives up to 14 bytes too far right; align_rows shifts it back. */
template <class C, int ROWS, bool PLAIN>
__device__ __forceinline__ void copy_windows(uint32_t to, const char *from, int64_t stride_bytes,
                                             const span &whole, int n_valid, int head, int lane)
{
    constexpr int LANES = C::WINDOW_LANES, STEP = 32 / LANES;
    if (C::D / 8 == LANES && 2 * head + 14 > 16 * LANES && lane < ROWS) {
        /* With D / 8 == LANES one chunk is left over for each row. */
        const char *source = from + lane * stride_bytes;
        const int at = 16 * LANES - (int)((uintptr_t)source & 15);
        const int n = max(0, 2 * head - at);
        if (PLAIN)
            copy_async(to + lane * C::PITCH + 16 * LANES, source + at, n);
        else
            copy_careful(to + lane * C::PITCH + 16 * LANES, source + at, 0, lane < n_valid ? n : 0,
                         whole.begin, whole.end);
    }
    const int row = lane / LANES, chunk = lane % LANES;
    if (chunk > C::D / 8 || 16 * chunk >= 2 * head + 14)
        return; /* no copy writes here, so the zeros of clear_tail stay */
    const char *source = from + row * stride_bytes;
    to += row * C::PITCH + 16 * chunk;
#pragma unroll(PLAIN ? 8 : 1)
    for (int k = 0; k < min(8, ROWS); k += STEP) {
        const int at = 16 * chunk - (int)((uintptr_t)source & 15); /* offset in the row */
        const int n = max(0, min(16, 2 * head - at));
        const char *piece = source + at;
#pragma unroll(PLAIN ? ROWS / 8 + 1 : 1)
        for (int r = k; r < ROWS; r += 8) { /* every eighth row has the same alignment */
            if (r + row < ROWS) {
                if (PLAIN)
                    copy_async(to + r * C::PITCH, piece, n);
                else
                    copy_careful(to + r * C::PITCH, piece, -at, r + row < n_valid ? n : 0,
                                 whole.begin, whole.end);
            }
            piece += 8 * stride_bytes;
        }
        source += STEP * stride_bytes;
    }
}

template <class C, int ROWS>
__device__ __forceinline__ void copy_rows(uint32_t to, const char *from, int64_t stride_bytes,
                                          const span &whole, int n_valid, int head, int lane)
{
    const bool plain = n_valid >= ROWS && stride_bytes >= 0 && from >= whole.begin &&
                       from + ((ROWS - 1) * stride_bytes + C::PITCH) <= whole.end;
    if constexpr (C::WIDE) {
        if (plain)
            copy_chunks<C, ROWS, true>(to, from, stride_bytes, whole, n_valid, head, lane);
        else
            copy_chunks<C, ROWS, false>(to, from, stride_bytes, whole, n_valid, head, lane);
    } else if (plain) {
        copy_windows<C, ROWS, true>(to, from, stride_bytes, whole, n_valid, head, lane);
    } else {
        copy_windows<C, ROWS, false>(to, from, stride_bytes, whole, n_valid, head, lane);
    }
}

/* Not WIDE: shifts ROWS rows that copy_windows copied to their aligned position. start is
 * the source address of the first row; only the low bits of start and stride matter. The
 * warp that copied the rows calls this after they have arrived. A lane reads its part of
 * a row and the chunk after it, which another lane overwrites; hence the __syncwarp in
 * between. Eight consecutive lanes access the same chunk of eight rows, in different
 * banks. */
template <class C, int ROWS>
__device__ __forceinline__ void align_rows(uint32_t rows, uint32_t start, uint32_t stride, int lane)
{
    constexpr int R = C::D <= 128 ? 16 : 8, N_PARTS = 32 / R, N = C::D / 8 / N_PARTS;
    static_assert(N * N_PARTS * 8 == C::D && (ROWS <= R || ROWS % R == 0), "whole parts");
    if (!((start | stride) & 15))
        return;
    __syncwarp();
#pragma unroll
    for (int first = 0; first < ROWS; first += R) {
        const int row = first + min(lane % R, ROWS - 1);
        const uint32_t at = rows + row * C::PITCH + lane / R * (16 * N);
        const uint32_t shift = start + row * stride; /* in bytes, modulo 16 */
        uint32_t w[4 * N + 4];
#pragma unroll
        for (int i = 0; i <= N; i++)
            load_shared(w + 4 * i, at + 16 * i);
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 4 * N + 2; i++)
            w[i] = shift & 8 ? w[i + 2] : w[i];
#pragma unroll
        for (int i = 0; i < 4 * N + 1; i++)
            w[i] = shift & 4 ? w[i + 1] : w[i];
        const uint32_t order = shift & 2 ? 0x5432 : 0x3210;
#pragma unroll
        for (int i = 0; i < 4 * N; i++)
            w[i] = __byte_perm(w[i], w[i + 1], order);
        if (ROWS % R == 0 || lane % R < ROWS)
#pragma unroll
            for (int i = 0; i < N; i++)
                store_shared(at + 16 * i, w + 4 * i);
    }
}

} /* namespace */

#endif
