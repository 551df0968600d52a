/* test_kernels: declarations shared by the tests of the CUDA kernels. */
#ifndef GAC_TEST_KERNELS_H
#define GAC_TEST_KERNELS_H

#include "device/cuda/kernels.h"

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

struct session {
    std::mt19937_64 random;
    bool exact = false;
    int n_ok = 0, n_failed = 0;
};

/* Ends the program: after a CUDA failure no later result is meaningful. */
inline void must(cudaError_t code, const char *what)
{
    if (code == cudaSuccess)
        return;
    printf("FAIL %s: %s\n", what, cudaGetErrorString(code));
    exit(1);
}

inline void must(gac_status status, const gac_error &err)
{
    if (status == GAC_OK)
        return;
    printf("FAIL %s\n", err.text);
    exit(1);
}

/* Counts the checks of one kernel. */
struct tally {
    const char *kernel;
    int n_ok = 0, n_failed = 0;
    double worst = 0; /* largest error / tolerance of the checks that passed */
};

inline void record(tally &t, bool ok, double share, const std::string &name)
{
    constexpr int MOST_LINES = 30;
    if (ok) {
        t.n_ok++;
        t.worst = std::max(t.worst, share);
    } else if (++t.n_failed <= MOST_LINES) {
        printf("FAIL %s %s: error %.3g of tolerance\n", t.kernel, name.c_str(), share);
    }
}

inline void finish(session &s, const tally &t)
{
    printf("%s: %d ok, %d failed, worst error %.2f of tolerance\n", t.kernel, t.n_ok, t.n_failed,
           t.worst);
    fflush(stdout); /* if the next kernel crashes, the last line names the one before it */
    s.n_ok += t.n_ok;
    s.n_failed += t.n_failed;
}

/* Returns a random integer from low to high, inclusive. */
inline int64_t pick(session &s, int64_t low, int64_t high)
{
    return low + (int64_t)(s.random() % (uint64_t)(high - low + 1));
}

template <typename T, size_t N> T one_of(session &s, const T (&list)[N])
{
    return list[s.random() % N];
}

/* Bound on the random numbers: a sum of four uniforms, nearly normal. */
constexpr double LARGEST = 3.47;

inline float draw(session &s)
{
    const uint64_t bits = s.random();
    const uint64_t sum =
        (bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48);
    return (float)((int64_t)sum - 131070) * (1.7320508f / 65536);
}

inline int64_t size_of(gac_dtype dtype)
{
    return dtype == GAC_DTYPE_F32 ? 4 : dtype == GAC_DTYPE_F16 || dtype == GAC_DTYPE_BF16 ? 2 : 1;
}

inline const char *name_of(gac_dtype dtype)
{
    switch (dtype) {
    case GAC_DTYPE_F16:
        return "f16";
    case GAC_DTYPE_BF16:
        return "bf16";
    case GAC_DTYPE_F32:
        return "f32";
    default:
        return dtype == GAC_DTYPE_I8 ? "i8" : "f8";
    }
}

template <typename T> void put(T value, char *to)
{
    memcpy(to, &value, sizeof value);
}

template <typename T> T get(const char *from)
{
    T value;
    memcpy((void *)&value, from, sizeof value);
    return value;
}

inline void encode(gac_dtype dtype, float x, char *to)
{
    if (dtype == GAC_DTYPE_F16)
        put(__float2half_rn(x), to);
    else if (dtype == GAC_DTYPE_BF16)
        put(__float2bfloat16_rn(x), to);
    else if (dtype == GAC_DTYPE_F32)
        put(x, to);
    else if (dtype == GAC_DTYPE_I8)
        put((signed char)std::clamp(std::rint(x), -127.0f, 127.0f), to);
    else
        put(__nv_fp8_e4m3(x), to);
}

inline float decode(gac_dtype dtype, const char *from)
{
    if (dtype == GAC_DTYPE_F16)
        return __half2float(get<__half>(from));
    if (dtype == GAC_DTYPE_BF16)
        return __bfloat162float(get<__nv_bfloat16>(from));
    if (dtype == GAC_DTYPE_F32)
        return get<float>(from);
    return dtype == GAC_DTYPE_I8 ? (float)get<signed char>(from) : (float)get<__nv_fp8_e4m3>(from);
}

/* A byte that makes NaN in every float type. Tensors and their surroundings are filled
 * with it. So reads outside a tensor show in the results, and writes outside it are
 * found. */
constexpr char UNTOUCHED = (char)0xff;

inline bool all_untouched(const std::vector<char> &bytes)
{
    return std::all_of(bytes.begin(), bytes.end(), [](char c) { return c == UNTOUCHED; });
}

/* Device memory of one tensor, offset bytes past an allocated address. */
class buffer
{
  public:
    buffer(const session &s, size_t size, size_t offset)
        : n_bytes(size), guard(s.exact ? 0 : 256), front(guard + offset)
    {
        must(cudaMalloc(&base, front + n_bytes + guard + (n_bytes == 0)), "cudaMalloc");
        if (guard > 0) /* in exact mode it stays unwritten, for initcheck */
            must(cudaMemset(base, UNTOUCHED, front + n_bytes + guard), "cudaMemset");
    }
    ~buffer()
    {
        cudaFree(base);
    }
    buffer(const buffer &) = delete;
    buffer &operator=(const buffer &) = delete;

    char *data() const
    {
        return base + front;
    }
    void upload(const std::vector<char> &from)
    {
        must(cudaMemcpy(data(), from.data(), n_bytes, cudaMemcpyHostToDevice), "upload");
    }
    void clear()
    {
        must(cudaMemset(data(), UNTOUCHED, n_bytes), "cudaMemset");
    }
    std::vector<char> download() const
    {
        return read(data(), n_bytes);
    }
    bool is_guard_intact() const
    {
        return guard == 0 ||
               (all_untouched(read(base, front)) && all_untouched(read(data() + n_bytes, guard)));
    }

  private:
    static std::vector<char> read(const char *from, size_t size)
    {
        std::vector<char> bytes(size);
        must(cudaMemcpy(bytes.data(), from, size, cudaMemcpyDeviceToHost), "download");
        return bytes;
    }

    char *base = nullptr;
    size_t n_bytes, guard, front;
};

/* Returns the larger error; NaN counts as the largest. */
inline double larger_error(double worst, double x)
{
    return x <= worst ? worst : std::isnan(x) ? INFINITY : x;
}

/* Checks and timings in other files. */
void check_flash_kernel(session &s);
void time_fills();
void time_pads();
void time_softmaxes();
void time_flashes();

#endif
