/* Compares the library's own CUDA kernels with CPU references on random numbers.
 *
 * Usage: test_kernels [check | exact | time] [--only KERNEL] [--seed N]
 *   check  awkward shapes, layouts and offsets, with guard bytes around every tensor
 *   exact  fewer and smaller cases; every tensor ends with its allocation;
 *          for compute-sanitizer (sanitize.sh)
 *   time   prints a table of times with a cold cache and asserts nothing
 * KERNEL is fill, pad, softmax, flash or hold; the default is all. Exit 0 if nothing
 * failed, 1 otherwise, 2 for a wrong command line, 77 (skipped) without a GPU. */
#include "test_kernels.h"

#include <ctime>
#include <memory>

namespace
{

struct pad_case {
    int64_t n_rows, n_from, n_to;
    int element_bytes;
    int64_t from_offset, to_offset; /* in elements */
};

std::string describe(const std::vector<pad_case> &cases)
{
    std::string all = std::to_string(cases.size()) + " in a launch:";
    for (const pad_case &c : cases) {
        char text[120];
        snprintf(text, sizeof text, " (%lld, %lld -> %lld) of %d bytes at %d, %d",
                 (long long)c.n_rows, (long long)c.n_from, (long long)c.n_to, c.element_bytes,
                 (int)c.from_offset, (int)c.to_offset);
        all += text;
    }
    return all;
}

std::vector<char> random_bytes(session &s, size_t n)
{
    std::vector<char> bytes(n);
    for (char &c : bytes)
        c = (char)s.random();
    return bytes;
}

std::vector<char> pad_reference(const pad_case &c, const std::vector<char> &from)
{
    const int64_t from_bytes = c.n_from * c.element_bytes, to_bytes = c.n_to * c.element_bytes;
    std::vector<char> to(c.n_rows * to_bytes, 0);
    for (int64_t i = 0; i < c.n_rows; i++)
        memcpy(&to[i * to_bytes], &from[i * from_bytes], std::min(from_bytes, to_bytes));
    return to;
}

/* Runs all cases in one launch. */
void check_pads(session &s, tally &t, const std::vector<pad_case> &cases)
{
    std::vector<std::unique_ptr<buffer>> from, to;
    std::vector<std::vector<char>> references;
    std::vector<gac_pad_job> jobs;
    for (const pad_case &c : cases) {
        const size_t row = (size_t)(c.n_rows * c.element_bytes);
        const std::vector<char> bytes = random_bytes(s, row * c.n_from);
        references.push_back(pad_reference(c, bytes));
        from.push_back(std::make_unique<buffer>(s, bytes.size(), c.from_offset * c.element_bytes));
        to.push_back(std::make_unique<buffer>(s, row * c.n_to, c.to_offset * c.element_bytes));
        from.back()->upload(bytes);
        jobs.push_back({ from.back()->data(), to.back()->data(), c.n_rows, c.n_from, c.n_to,
                         c.element_bytes });
    }
    gac_error err = GAC_ERROR_INIT;
    must(gac_pad_launch(jobs.data(), (int)jobs.size(), 0, &err), err);
    must(cudaDeviceSynchronize(), describe(cases).c_str());
    bool ok = true;
    for (size_t i = 0; i < cases.size(); i++)
        ok = ok && to[i]->download() == references[i] && to[i]->is_guard_intact();
    record(t, ok, ok ? 0 : INFINITY, describe(cases));
}

pad_case random_pad(session &s, int64_t most_bytes)
{
    static const int sizes[] = { 1, 2, 4 };
    static const int64_t longest[] = { 20, 300, 5000 };
    static const int64_t offsets[] = { 0, 0, 0, 1, 2, 3, 16 };
    pad_case c = {};
    c.element_bytes = one_of(s, sizes);
    c.n_from = pick(s, 1, one_of(s, longest));
    c.n_to = pick(s, 0, 1) ? c.n_from + pick(s, 0, 20) : pick(s, 1, one_of(s, longest));
    c.n_rows = pick(s, 1, 1 + most_bytes / (std::max(c.n_from, c.n_to) * c.element_bytes));
    c.from_offset = one_of(s, offsets);
    c.to_offset = one_of(s, offsets);
    return c;
}

void check_pad_kernel(session &s)
{
    static const int sizes[] = { 1, 2, 4 };
    static const int64_t lengths[] = { 1,   3,   7,   8,   9,   16,   31,   32,
                                       107, 112, 127, 128, 500, 4097, 20000 };
    static const int64_t rows[] = { 1, 2, 5, 16, 100, 333, 1000 };
    const int64_t most_bytes = s.exact ? 20000 : 1 << 23;
    tally t = { "pad" };
    for (int size : sizes)
        for (int64_t n_from : lengths)
            for (int64_t n_to : lengths)
                for (int64_t n_rows : rows) {
                    const bool is_large = n_rows * std::max(n_from, n_to) * size > most_bytes;
                    if (is_large || (s.exact && s.random() % 16))
                        continue;
                    const int64_t offset = s.random() % 5 == 0;
                    check_pads(s, t, { { n_rows, n_from, n_to, size, offset, offset } });
                }
    for (int i = 0; i < (s.exact ? 60 : 400); i++) {
        std::vector<pad_case> cases;
        for (int n_jobs = 1 + i % GAC_PAD_MAX_JOBS; n_jobs > 0; n_jobs--)
            cases.push_back(random_pad(s, s.exact ? 50000 : 1000000));
        check_pads(s, t, cases);
    }
    const gac_pad_job none = {};
    record(t, gac_pad_launch(&none, 1, 0, nullptr) == GAC_USAGE, 0, "takes an empty job");
    record(t, gac_pad_launch(&none, 0, 0, nullptr) == GAC_USAGE, 0, "takes no jobs");
    record(t, gac_pad_launch(&none, GAC_PAD_MAX_JOBS + 1, 0, nullptr) == GAC_USAGE, 0,
           "takes too many jobs");
    finish(s, t);
}

struct softmax_case {
    gac_dtype dtype;
    int64_t n_rows, n_q, n_kv;
    bool causal, in_place;
};

constexpr double SOFTMAX_SCALE = 0.37;

/* Returns the largest |got - reference| / (reference + 1e-4). Weights below 1e-4 hardly
 * matter and are subnormal in F16. */
double softmax_error(const softmax_case &c, const std::vector<char> &scores,
                     const std::vector<char> &got)
{
    const int64_t size = size_of(c.dtype);
    double worst = 0;
    for (int64_t r = 0; r < c.n_rows; r++) {
        const int64_t hidden = c.causal ? c.n_q - 1 - r % c.n_q : 0;
        const int64_t n_seen = std::max<int64_t>(0, c.n_kv - hidden);
        std::vector<double> x(c.n_kv);
        double top = -INFINITY, sum = 0;
        for (int64_t j = 0; j < n_seen; j++) {
            x[j] = SOFTMAX_SCALE * decode(c.dtype, &scores[(r * c.n_kv + j) * size]);
            top = std::max(top, x[j]);
        }
        for (int64_t j = 0; j < n_seen; j++)
            sum += std::exp(x[j] - top);
        for (int64_t j = 0; j < c.n_kv; j++) {
            const double reference = j < n_seen ? std::exp(x[j] - top) / sum : 0;
            const double is = decode(c.dtype, &got[(r * c.n_kv + j) * size]);
            worst = larger_error(worst, std::fabs(is - reference) / (reference + 1e-4));
        }
    }
    return worst;
}

void check_softmax(session &s, tally &t, const softmax_case &c)
{
    const int64_t n = c.n_rows * c.n_kv, size = size_of(c.dtype);
    std::vector<char> scores(n * size);
    for (int64_t i = 0; i < n; i++)
        encode(c.dtype, 4 * draw(s), &scores[i * size]);
    buffer from(s, scores.size(), 0), to(s, scores.size(), 0);
    from.upload(scores);
    const buffer &out = c.in_place ? from : to;
    const gac_softmax_args args = { c.dtype, from.data(), out.data(),    c.n_rows,
                                    c.n_q,   c.n_kv,      SOFTMAX_SCALE, c.causal };
    char name[120];
    snprintf(name, sizeof name, "%s (%d, %d), %d queries%s%s", name_of(c.dtype), (int)c.n_rows,
             (int)c.n_kv, (int)c.n_q, c.causal ? ", causal" : "", c.in_place ? ", in place" : "");
    gac_error err = GAC_ERROR_INIT;
    must(gac_softmax_launch(&args, 0, &err), err);
    must(cudaDeviceSynchronize(), name);
    /* A few unit roundoffs. F32 uses an approximate exp2 and long sums. */
    const double tolerance = c.dtype == GAC_DTYPE_F16    ? 2e-3
                             : c.dtype == GAC_DTYPE_BF16 ? 6e-3
                                                         : 1e-5;
    const double share = softmax_error(c, scores, out.download()) / tolerance;
    record(t, share <= 1 && out.is_guard_intact(), share, name);
}

void check_softmax_kernel(session &s)
{
    static const gac_dtype dtypes[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16, GAC_DTYPE_F32 };
    static const int64_t lengths[] = { 1,    7,    8,    31,   64,   107,  512,  1000,
                                       1024, 1025, 1032, 2048, 5000, 8192, 8193, 10000 };
    static const int64_t queries[] = { 1, 3, 50 };
    tally t = { "softmax" };
    for (gac_dtype dtype : dtypes)
        for (int64_t n_kv : lengths)
            for (int64_t n_q : queries)
                for (int i = 0; i < 4; i++)
                    if (!s.exact || n_q == 3)
                        check_softmax(s, t, { dtype, 3 * n_q, n_q, n_kv, i % 2 == 1, i / 2 == 1 });
    finish(s, t);
}

uint32_t mix(uint32_t x)
{
    x = (x ^ x >> 16) * 0x7feb352du;
    x = (x ^ x >> 15) * 0x846ca68bu;
    return x ^ x >> 16;
}

/* Returns the number that kernels.h promises for a seed and an index below 2^32. */
float fill_reference(uint64_t seed, uint32_t index, double scale)
{
    const uint32_t key = mix(mix((uint32_t)seed) ^ (uint32_t)(seed >> 32)) + mix(1);
    const uint32_t a = mix(index ^ key), b = mix(a + 0x9e3779b9u);
    const int sum = (int)((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16));
    return (float)(sum - 131070) * (float)(scale * 1.7320508075688772 / 65536);
}

/* Checks every bit, and that the numbers are random: mean 0, deviation scale, and no
 * correlation between neighbours, each within about 6 deviations. */
void check_fill(session &s, tally &t, gac_dtype dtype, int64_t n, double scale)
{
    const uint64_t seed = s.random();
    const int64_t size = size_of(dtype);
    buffer out(s, n * size, 0);
    gac_error err = GAC_ERROR_INIT;
    must(gac_fill_launch(dtype, out.data(), n, seed, scale, 0, &err), err);
    must(cudaDeviceSynchronize(), "fill");
    const std::vector<char> got = out.download();
    std::vector<char> reference(n * size);
    double sum = 0, squares = 0, neighbours = 0, before = 0;
    for (int64_t i = 0; i < n; i++) {
        encode(dtype, fill_reference(seed, (uint32_t)i, scale), &reference[i * size]);
        const double x = decode(dtype, &got[i * size]) / scale;
        sum += x;
        squares += x * x;
        neighbours += x * before;
        before = x;
    }
    const double chance = 6 / std::sqrt((double)n);
    const double coarse = 0.03; /* effect of rounding to F8 or I8 on the variance */
    const bool is_random =
        n < 1000 || (std::fabs(sum / n) < chance && std::fabs(squares / n - 1) < chance + coarse &&
                     std::fabs(neighbours / n) < chance);
    char name[160];
    snprintf(name, sizeof name, "%s, %lld elements, mean %.2g, variance %.4f, neighbours %.2g",
             name_of(dtype), (long long)n, sum / n, squares / n, neighbours / n);
    const bool ok = got == reference && is_random && out.is_guard_intact();
    record(t, ok, ok ? 0 : INFINITY, name);
}

void check_fill_kernel(session &s)
{
    static const gac_dtype dtypes[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16, GAC_DTYPE_F32,
                                        GAC_DTYPE_F8_E4M3, GAC_DTYPE_I8 };
    static const int64_t counts[] = { 1, 3, 15, 16, 17, 1003, 100003, 1000003 };
    tally t = { "fill" };
    for (gac_dtype dtype : dtypes)
        for (int64_t n : counts)
            if (!s.exact || n < 10000)
                check_fill(s, t, dtype, n, dtype == GAC_DTYPE_I8 ? 2.4 : 0.5);
    finish(s, t);
}

/* Checks that the kernel holds as long as asked, measured with events, and reads a
 * plausible clock. Under a sanitizer it only has to end. */
void check_hold(session &s, tally &t, double time_us, double highest_mhz)
{
    cudaEvent_t start, stop;
    float took_ms = 0, *clock_mhz = nullptr;
    gac_error err = GAC_ERROR_INIT;
    must(cudaHostAlloc((void **)&clock_mhz, sizeof *clock_mhz, cudaHostAllocMapped), "host memory");
    must(cudaEventCreate(&start), "cudaEventCreate");
    must(cudaEventCreate(&stop), "cudaEventCreate");
    must(cudaEventRecord(start), "cudaEventRecord");
    must(gac_hold_launch(time_us, clock_mhz, 0, &err), err);
    must(cudaEventRecord(stop), "cudaEventRecord");
    must(cudaEventSynchronize(stop), "hold");
    must(cudaEventElapsedTime(&took_ms, start, stop), "cudaEventElapsedTime");
    char name[120];
    snprintf(name, sizeof name, "%g us: took %.1f us at %.0f of %.0f MHz", time_us, 1e3 * took_ms,
             *clock_mhz, highest_mhz);
    const bool ok = *clock_mhz > 100 && *clock_mhz < 1.02 * highest_mhz &&
                    1e3 * took_ms > time_us &&
                    1e3 * took_ms < time_us + 5000; /* the first launch also loads code */
    record(t, ok || (s.exact && *clock_mhz > 0), 0, name);
    cudaEventDestroy(start);
    cudaEventDestroy(stop);
    cudaFreeHost(clock_mhz);
}

void check_hold_kernel(session &s)
{
    int clock_khz = 0;
    gac_error err = GAC_ERROR_INIT;
    tally t = { "hold" };
    float nowhere = 0;
    must(cudaDeviceGetAttribute(&clock_khz, cudaDevAttrClockRate, 0), "cudaDeviceGetAttribute");
    for (int i = 0; i < 4; i++)
        for (double time_us : { 5.0, 20.0, 123.0, 500.0, 5000.0 })
            check_hold(s, t, time_us, 1e-3 * clock_khz);
    for (double time_us : { -1.0, 2e6, (double)NAN })
        record(t, gac_hold_launch(time_us, &nowhere, 0, &err) == GAC_USAGE, 0,
               "a time of nonsense");
    record(t, gac_hold_launch(1, nullptr, 0, &err) == GAC_USAGE, 0, "nowhere to put the clock");
    finish(s, t);
}

struct kernel {
    const char *name;
    void (*check)(session &);
    void (*time)(); /* NULL if there is nothing to time */
};

const kernel kernels[] = {
    { "fill", check_fill_kernel, time_fills },
    { "pad", check_pad_kernel, time_pads },
    { "softmax", check_softmax_kernel, time_softmaxes },
    { "flash", check_flash_kernel, time_flashes },
    { "hold", check_hold_kernel, nullptr },
};

struct options {
    std::string mode = "check";
    std::string only; /* empty means all */
    uint64_t seed = (uint64_t)time(nullptr);
};

bool parse(int argc, char **argv, options *o)
{
    for (int i = 1; i < argc; i++) {
        const std::string word = argv[i];
        char *end = nullptr;
        if (word == "check" || word == "exact" || word == "time") {
            o->mode = word;
        } else if (word == "--only" && i + 1 < argc) {
            o->only = argv[++i];
        } else if (word == "--seed" && i + 1 < argc && *argv[i + 1]) {
            o->seed = strtoull(argv[++i], &end, 10);
            if (*end)
                return false;
        } else {
            return false;
        }
    }
    const auto is_only = [o](const kernel &k) { return o->only == k.name; };
    return o->only.empty() || std::any_of(std::begin(kernels), std::end(kernels), is_only);
}

} /* namespace */

int main(int argc, char **argv)
{
    options o;
    if (!parse(argc, argv, &o)) {
        fprintf(stderr, "usage: test_kernels [check | exact | time] [--only KERNEL] [--seed N]\n");
        return 2;
    }
    int n_devices = 0;
    const cudaError_t found = cudaGetDeviceCount(&n_devices);
    if (found == cudaErrorNoDevice || found == cudaErrorInsufficientDriver ||
        (found == cudaSuccess && n_devices == 0)) {
        printf("skipped: no GPU: %s\n", cudaGetErrorString(found));
        return 77;
    }
    must(found, "cudaGetDeviceCount");
    cudaDeviceProp device;
    must(cudaGetDeviceProperties(&device, 0), "cudaGetDeviceProperties");
    printf("%s, %d multiprocessors, %d MiB of L2, %s, seed %llu\n", device.name,
           device.multiProcessorCount, device.l2CacheSize >> 20, o.mode.c_str(),
           (unsigned long long)o.seed);
    fflush(stdout);
    session s;
    s.random.seed(o.seed);
    s.exact = o.mode == "exact";
    for (const kernel &k : kernels)
        if (o.only.empty() || o.only == k.name)
            o.mode != "time" ? k.check(s) : k.time ? k.time() : void();
    if (o.mode == "time")
        return 0;
    printf("%d ok, %d failed\n", s.n_ok, s.n_failed);
    return s.n_failed > 0 || s.n_ok == 0;
}
