/* Times the kernels with a cold cache. Launches rotate through sets of operands that
 * together exceed three times the L2 cache. */
#include "test_kernels.h"

namespace
{

constexpr int N_SAMPLES = 11;

size_t round_up(size_t n_bytes)
{
    return (n_bytes + 255) / 256 * 256;
}

/* Sets of operands filled with random numbers. Each launch uses one set. */
class operand_sets
{
  public:
    operand_sets(gac_dtype dtype, size_t bytes_of_one) : set_bytes(round_up(bytes_of_one))
    {
        int device = 0, l2_bytes = 0;
        must(cudaGetDevice(&device), "cudaGetDevice");
        must(cudaDeviceGetAttribute(&l2_bytes, cudaDevAttrL2CacheSize, device), "L2 size");
        /* One set more than needed to fill the cache, so that the next set has been
         * evicted. */
        n_sets = 2 + 3 * (size_t)l2_bytes / set_bytes;
        must(cudaMalloc(&base, n_sets * set_bytes), "cudaMalloc");
        gac_error err = GAC_ERROR_INIT;
        const int64_t n = (int64_t)(n_sets * set_bytes) / size_of(dtype);
        must(gac_fill_launch(dtype, base, n, 1, 1, 0, &err), err);
    }
    ~operand_sets()
    {
        cudaFree(base);
    }
    operand_sets(const operand_sets &) = delete;
    operand_sets &operator=(const operand_sets &) = delete;

    char *next()
    {
        return base + set_bytes * (n_used++ % n_sets);
    }

  private:
    char *base = nullptr;
    size_t set_bytes, n_sets, n_used = 0;
};

/* Times n consecutive launches. An extra launch before them keeps the card busy while the
 * host enqueues the others. */
template <class F> double time_row(cudaEvent_t begin, cudaEvent_t end, int n, F launch)
{
    launch();
    must(cudaEventRecord(begin), "cudaEventRecord");
    for (int i = 0; i < n; i++)
        launch();
    must(cudaEventRecord(end), "cudaEventRecord");
    must(cudaEventSynchronize(end), "timed launches");
    float time_ms = 0;
    must(cudaEventElapsedTime(&time_ms, begin, end), "cudaEventElapsedTime");
    return time_ms / n;
}

struct timing {
    double median_ms, low_ms, high_ms; /* times of one launch */
};

template <class F> timing time_launches(F launch)
{
    constexpr double SAMPLE_MS = 2; /* long compared with the resolution of an event */
    cudaEvent_t begin, end;
    must(cudaEventCreate(&begin), "cudaEventCreate");
    must(cudaEventCreate(&end), "cudaEventCreate");
    time_row(begin, end, 2, launch);
    const double guess_ms = time_row(begin, end, 2, launch);
    const int n = 1 + (int)std::min(500.0, SAMPLE_MS / guess_ms);
    std::vector<double> samples;
    for (int i = 0; i < N_SAMPLES; i++)
        samples.push_back(time_row(begin, end, n, launch));
    cudaEventDestroy(begin);
    cudaEventDestroy(end);
    std::sort(samples.begin(), samples.end());
    return { samples[N_SAMPLES / 2], samples.front(), samples.back() };
}

/* Returns the number of (query, visible key) pairs. */
double count_pairs(const gac_sdpa_shape &n)
{
    double pairs = 0;
    for (int64_t i = 0; i < n.n_q; i++)
        pairs += (double)(n.causal ? std::max<int64_t>(0, i + n.n_kv - n.n_q + 1) : n.n_kv);
    return pairs * (double)(n.batch * n.n_q_heads);
}

void time_flash(gac_dtype dtype, const gac_sdpa_shape &n)
{
    const size_t q_bytes = (size_t)(2 * n.batch * n.n_q_heads * n.n_q * n.qk_head);
    const size_t k_bytes = (size_t)(2 * n.batch * n.n_kv_heads * n.n_kv * n.qk_head);
    const size_t q_room = round_up(q_bytes), k_room = round_up(k_bytes);
    gac_error err = GAC_ERROR_INIT;
    gac_flash_args args = {};
    args.dtype = dtype;
    args.shape = n;
    gac_flash_set_contiguous(&args);
    must(gac_flash_workspace_bytes(&n, &args.workspace_bytes, &err), err);
    if (args.workspace_bytes > 0)
        must(cudaMalloc(&args.workspace, args.workspace_bytes), "cudaMalloc");
    operand_sets sets(dtype, 2 * q_room + 2 * k_room);
    const timing is = time_launches([&] {
        char *set = sets.next();
        args.q = set;
        args.k = set + q_room;
        args.v = set + q_room + k_room;
        args.out = set + q_room + 2 * k_room;
        must(gac_flash_launch(&args, 0, &err), err);
    });
    cudaFree(args.workspace);
    const double flop = 2 * count_pairs(n) * (double)(n.qk_head + n.v_head);
    const double n_bytes = 2.0 * (double)q_bytes + 2.0 * (double)k_bytes;
    printf("flash %-4s B%-2d H%d/%-2d %4dx%-4d head %3d %-6s %9.4f %9.4f %9.4f %7.1f %7.1f\n",
           name_of(dtype), (int)n.batch, (int)n.n_q_heads, (int)n.n_kv_heads, (int)n.n_q,
           (int)n.n_kv, (int)n.qk_head, n.causal ? "causal" : "", is.median_ms, is.low_ms,
           is.high_ms, flop / is.median_ms * 1e-9, n_bytes / is.median_ms * 1e-6);
    fflush(stdout);
}

} /* namespace */

void time_flashes()
{
    static const int heads[] = { 64, 96, 104, 107, 112, 120, 128, 129, 160, 192, 256 };
    static const int few_heads[] = { 64, 107, 112, 128, 256 };
    printf("%53s%9s %9s %9s %7s %7s\n", "", "median ms", "least", "most", "TFLOP/s", "GB/s");
    for (int head : heads)
        time_flash(GAC_DTYPE_F16, { 4, 32, 32, 2048, 2048, head, head, false });
    for (int head : few_heads)
        time_flash(GAC_DTYPE_F16, { 4, 32, 32, 2048, 2048, head, head, true });
    for (int head : few_heads)
        time_flash(GAC_DTYPE_BF16, { 4, 32, 32, 2048, 2048, head, head, false });
    time_flash(GAC_DTYPE_F16, { 4, 32, 8, 2048, 2048, 107, 107, false });
    for (int head : few_heads) {
        time_flash(GAC_DTYPE_F16, { 1, 32, 8, 1, 8192, head, head, false });
        time_flash(GAC_DTYPE_F16, { 32, 32, 8, 1, 4096, head, head, false });
        time_flash(GAC_DTYPE_F16, { 16, 32, 32, 1, 4096, head, head, false });
    }
    for (int head : { 264, 299, 320, 512 }) {
        time_flash(GAC_DTYPE_F16, { 4, 32, 32, 2048, 2048, head, head, false });
        time_flash(GAC_DTYPE_F16, { 32, 32, 8, 1, 4096, head, head, false });
    }
    time_flash(GAC_DTYPE_F16, { 8, 32, 8, 4, 4096, 107, 107, true });
    time_flash(GAC_DTYPE_F16, { 8, 32, 8, 16, 4096, 107, 107, true });
    time_flash(GAC_DTYPE_F16, { 1, 32, 8, 256, 8192, 107, 107, true });
}

namespace
{

void head_of_moves()
{
    printf("\n%43s%9s %9s %9s %7s %7s %8s\n", "", "median ms", "least", "most", "GB/s", "copy",
           "of copy");
}

/* Times launch(set), which moves moved_bytes within a set of set_bytes, and compares it
 * with a device copy of as many bytes. The copy is rounded down to 64 KiB, because a copy
 * of an odd size is slower. */
template <class F> void time_move(const char *name, size_t set_bytes, size_t moved_bytes, F launch)
{
    const size_t half = moved_bytes / 2 >> 16 << 16;
    operand_sets sets(GAC_DTYPE_F16, std::max(set_bytes, 2 * half));
    const timing is = time_launches([&] { launch(sets.next()); });
    const timing copy = time_launches([&] {
        char *set = sets.next();
        must(cudaMemcpyAsync(set + half, set, half, cudaMemcpyDeviceToDevice, 0), "copy");
    });
    printf("%-42s %9.4f %9.4f %9.4f %7.1f %7.1f %6.1f %%\n", name, is.median_ms, is.low_ms,
           is.high_ms, (double)moved_bytes / is.median_ms * 1e-6,
           2.0 * (double)half / copy.median_ms * 1e-6, 100 * copy.median_ms / is.median_ms);
    fflush(stdout);
}

/* Times n_jobs equal jobs in one launch. */
void time_pad(int n_jobs, int element_bytes, int64_t n_rows, int64_t n_from, int64_t n_to)
{
    const size_t from_bytes = (size_t)(n_rows * n_from * element_bytes);
    const size_t to_bytes = (size_t)(n_rows * n_to * element_bytes);
    const size_t from_room = round_up(from_bytes), job_room = from_room + round_up(to_bytes);
    char name[80];
    snprintf(name, sizeof name, "pad %d x (%lld, %lld -> %lld) of %d bytes", n_jobs,
             (long long)n_rows, (long long)n_from, (long long)n_to, element_bytes);
    time_move(name, n_jobs * job_room, n_jobs * (from_bytes + to_bytes), [&](char *set) {
        gac_pad_job jobs[GAC_PAD_MAX_JOBS];
        for (int i = 0; i < n_jobs; i++)
            jobs[i] = { set + i * job_room, set + i * job_room + from_room, n_rows, n_from, n_to,
                        element_bytes };
        gac_error err = GAC_ERROR_INIT;
        must(gac_pad_launch(jobs, n_jobs, 0, &err), err);
    });
}

constexpr size_t MOVED = (size_t)1 << 27; /* bytes moved by a softmax or a fill */

} /* namespace */

void time_pads()
{
    static const int64_t lengths[][2] = { { 107, 112 }, { 112, 107 }, { 107, 128 },
                                          { 128, 107 }, { 64, 64 },   { 4097, 4104 } };
    head_of_moves();
    for (int element_bytes : { 1, 2, 4 })
        for (const int64_t *n : lengths) /* as many numbers as B4 H32 S2048 head 107 */
            time_pad(1, element_bytes, 262144 * 107 / n[0], n[0], n[1]);
    time_pad(3, 2, 262144, 107, 112); /* q, k and v */
    time_pad(4, 2, 1000, 107, 112);
}

void time_softmaxes()
{
    head_of_moves();
    for (int64_t n_kv : { 2048, 2047 }) {
        const gac_softmax_args args = {
            GAC_DTYPE_F16, nullptr, nullptr, (int64_t)MOVED / 2 / n_kv, 1, n_kv, 0.1, false
        };
        const std::string name = "softmax f16 in place, rows of " + std::to_string(n_kv);
        time_move(name.c_str(), MOVED, 2 * 2 * (size_t)(args.n_rows * n_kv), [&](char *set) {
            gac_softmax_args here = args;
            here.scores = here.out = set;
            gac_error err = GAC_ERROR_INIT;
            must(gac_softmax_launch(&here, 0, &err), err);
        });
    }
}

void time_fills()
{
    head_of_moves();
    for (gac_dtype dtype : { GAC_DTYPE_F16, GAC_DTYPE_F8_E4M3 }) {
        const std::string name = std::string("fill ") + name_of(dtype) + ", only writes";
        time_move(name.c_str(), MOVED, MOVED, [&](char *set) {
            gac_error err = GAC_ERROR_INIT;
            must(gac_fill_launch(dtype, set, MOVED / size_of(dtype), 7, 1, 0, &err), err);
        });
    }
}
