/* Compares flash attention with softmax(scale q k^T) v in double. */
#include "test_kernels.h"

#include <atomic>
#include <thread>

namespace
{

/* Calls f(i) for all i < n on all cores. */
template <class F> void in_parallel(int64_t n, F f)
{
    std::atomic<int64_t> next(0);
    std::vector<std::thread> threads;
    for (unsigned t = 0; t < std::max(1u, std::thread::hardware_concurrency()); t++)
        threads.emplace_back([&] {
            for (int64_t i; (i = next++) < n;)
                f(i);
        });
    for (std::thread &t : threads)
        t.join();
}

enum layout {
    BY_HEAD,        /* (batch, head, row, element), contiguous */
    BY_ROW,         /* (batch, row, head, element), contiguous */
    ROWS_APART,     /* by head, row stride a multiple of 8 elements */
    ROWS_UNALIGNED, /* by head, 3 elements between rows */
};

struct flash_case {
    gac_sdpa_shape shape;
    gac_dtype dtype;
    enum layout layout;
    int64_t offset; /* offset of every tensor, in elements */
    double scale;
    bool with_workspace;
};

/* (batch, n_heads, n_rows, size), two bytes per element. */
struct tensor {
    int64_t batch, n_heads, n_rows, size;
    gac_flash_strides strides;
    std::vector<char> raw; /* from the first element to the last, with gaps */
    std::vector<float> values;

    int64_t row_at(int64_t b, int64_t h, int64_t i) const
    {
        return b * strides.batch + h * strides.head + i * strides.row;
    }
};

tensor make_tensor(const flash_case &c, int64_t n_heads, int64_t n_rows, int64_t size)
{
    const int64_t row = c.layout == ROWS_APART       ? (size + 7) / 8 * 8 + 8
                        : c.layout == ROWS_UNALIGNED ? size + 3
                                                     : size;
    tensor t = { c.shape.batch, n_heads, n_rows, size, {}, {}, {} };
    t.strides.batch = n_heads * n_rows * row;
    t.strides.head = c.layout == BY_ROW ? row : n_rows * row;
    t.strides.row = c.layout == BY_ROW ? n_heads * row : row;
    t.raw.assign(2 * (size_t)(t.row_at(t.batch - 1, n_heads - 1, n_rows - 1) + size), UNTOUCHED);
    return t;
}

/* Calls f(offset in elements) for every element. */
template <class F> void for_each_element(const tensor &t, F f)
{
    for (int64_t b = 0; b < t.batch; b++)
        for (int64_t h = 0; h < t.n_heads; h++)
            for (int64_t i = 0; i < t.n_rows; i++)
                for (int64_t e = 0; e < t.size; e++)
                    f(t.row_at(b, h, i) + e);
}

tensor random_tensor(session &s, const flash_case &c, int64_t n_heads, int64_t n_rows, int64_t size)
{
    tensor t = make_tensor(c, n_heads, n_rows, size);
    t.values.assign(t.raw.size() / 2, NAN);
    for_each_element(t, [&](int64_t at) {
        encode(c.dtype, draw(s), &t.raw[2 * at]);
        t.values[at] = decode(c.dtype, &t.raw[2 * at]);
    });
    return t;
}

/* Computes row i of head h in double: out (v_head). */
void attend(const flash_case &c, const tensor &q, const tensor &k, const tensor &v, int64_t b,
            int64_t h, int64_t i, std::vector<double> &out)
{
    const gac_sdpa_shape &n = c.shape;
    const int64_t kv_head = h / (n.n_q_heads / n.n_kv_heads);
    const int64_t n_seen = n.causal ? std::max<int64_t>(0, i + n.n_kv - n.n_q + 1) : n.n_kv;
    const double scale = c.scale == 0 ? 1 / std::sqrt((double)n.qk_head) : c.scale;
    const float *q_row = &q.values[q.row_at(b, h, i)];
    std::vector<double> scores(n_seen);
    double top = -INFINITY, sum = 0;
    for (int64_t j = 0; j < n_seen; j++) {
        const float *k_row = &k.values[k.row_at(b, kv_head, j)];
        double dot = 0;
        for (int64_t e = 0; e < n.qk_head; e++)
            dot += (double)q_row[e] * k_row[e];
        scores[j] = scale * dot;
        top = std::max(top, scores[j]);
    }
    out.assign(n.v_head, 0);
    for (int64_t j = 0; j < n_seen; j++) {
        const float *v_row = &v.values[v.row_at(b, kv_head, j)];
        const double weight = std::exp(scores[j] - top);
        sum += weight;
        for (int64_t e = 0; e < n.v_head; e++)
            out[e] += weight * v_row[e];
    }
    for (double &x : out)
        x = n_seen > 0 ? x / sum : 0;
}

/* Returns the largest |got - reference| / (1 + |reference|). */
double flash_error(const flash_case &c, const tensor &q, const tensor &k, const tensor &v,
                   const tensor &got)
{
    const gac_sdpa_shape &n = c.shape;
    const int64_t n_rows = n.batch * n.n_q_heads * n.n_q;
    std::vector<double> errors(n_rows, 0);
    in_parallel(n_rows, [&](int64_t index) {
        const int64_t i = index % n.n_q, head = index / n.n_q;
        const int64_t h = head % n.n_q_heads, b = head / n.n_q_heads;
        std::vector<double> reference;
        attend(c, q, k, v, b, h, i, reference);
        for (int64_t e = 0; e < n.v_head; e++) {
            const double x = decode(c.dtype, &got.raw[2 * (got.row_at(b, h, i) + e)]);
            const double error = std::fabs(x - reference[e]) / (1 + std::fabs(reference[e]));
            errors[index] = larger_error(errors[index], error);
        }
    });
    double worst = 0;
    for (double error : errors)
        worst = larger_error(worst, error);
    return worst;
}

std::string describe(const flash_case &c)
{
    static const char *const layouts[] = { "by head", "by row", "rows apart", "rows astray" };
    const gac_sdpa_shape &n = c.shape;
    char text[200];
    snprintf(text, sizeof text, "%s b=%d h=%d/%d q=%d kv=%d qk=%d v=%d%s, %s at %d, scale %g%s",
             name_of(c.dtype), (int)n.batch, (int)n.n_q_heads, (int)n.n_kv_heads, (int)n.n_q,
             (int)n.n_kv, (int)n.qk_head, (int)n.v_head, n.causal ? " causal" : "",
             layouts[c.layout], (int)c.offset, c.scale, c.with_workspace ? "" : ", no workspace");
    return text;
}

/* Rounding the weights to dtype moves a mean of v by at most the unit roundoff of
 * LARGEST. Rounding the result adds a relative error, which flash_error accounts for. */
double flash_tolerance(gac_dtype dtype)
{
    return LARGEST * (dtype == GAC_DTYPE_F16 ? 0x1p-11 : 0x1p-8);
}

void check_flash(session &s, tally &t, const flash_case &c)
{
    const gac_sdpa_shape &n = c.shape;
    const tensor q = random_tensor(s, c, n.n_q_heads, n.n_q, n.qk_head);
    const tensor k = random_tensor(s, c, n.n_kv_heads, n.n_kv, n.qk_head);
    const tensor v = random_tensor(s, c, n.n_kv_heads, n.n_kv, n.v_head);
    tensor out = make_tensor(c, n.n_q_heads, n.n_q, n.v_head);
    gac_error err = GAC_ERROR_INIT;
    size_t workspace_bytes = 0;
    must(gac_flash_workspace_bytes(&n, &workspace_bytes, &err), err);

    const size_t offset = 2 * (size_t)c.offset;
    buffer on_q(s, q.raw.size(), offset), on_k(s, k.raw.size(), offset);
    buffer on_v(s, v.raw.size(), offset), on_out(s, out.raw.size(), offset);
    buffer workspace(s, workspace_bytes, 0);
    on_q.upload(q.raw);
    on_k.upload(k.raw);
    on_v.upload(v.raw);
    on_out.clear();
    gac_flash_args args = {};
    args.dtype = c.dtype;
    args.shape = n;
    args.scale = c.scale;
    args.q = on_q.data();
    args.k = on_k.data();
    args.v = on_v.data();
    args.out = on_out.data();
    gac_flash_set_contiguous(&args);
    if (c.layout != BY_HEAD) {
        args.q_strides = q.strides;
        args.k_strides = k.strides;
        args.v_strides = v.strides;
        args.out_strides = out.strides;
    }
    if (c.with_workspace && workspace_bytes > 0) {
        args.workspace = workspace.data();
        args.workspace_bytes = workspace_bytes;
    }
    must(gac_flash_launch(&args, 0, &err), err);
    must(cudaDeviceSynchronize(), describe(c).c_str());

    out.raw = on_out.download();
    const double share = flash_error(c, q, k, v, out) / flash_tolerance(c.dtype);
    bool intact = on_out.is_guard_intact() && workspace.is_guard_intact();
    for_each_element(out, [&](int64_t at) { memset(&out.raw[2 * at], UNTOUCHED, 2); });
    intact = intact && all_untouched(out.raw); /* checks the gaps between rows */
    record(t, share <= 1 && intact, share, describe(c) + (intact ? "" : " (wrote outside)"));
}

/* Pairs of query heads and kv heads. */
constexpr int GROUPS[][2] = { { 2, 2 }, { 2, 1 }, { 6, 2 }, { 8, 1 }, { 4, 2 } };
constexpr gac_dtype DTYPES[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16 };
constexpr layout LAYOUTS[] = { BY_HEAD, BY_ROW, ROWS_APART, ROWS_UNALIGNED };

/* Checks every head size with every pair of lengths. Other parameters are random. */
void check_grid(session &s, tally &t)
{
    static const int heads[] = {
        1, 7, 40, 63, 64, 96, 107, 112, 127, 128, 129, 160, 200, 255, 256
    };
    static const int lengths[] = { 1, 3, 17, 64, 65, 200, 1000 };
    static const double scales[] = { 0, 0, 0.3, -0.2 };
    static const int64_t offsets[] = { 0, 0, 1, 8 };
    for (int head : heads) {
        for (int pair = 0; pair < 7 * 7 * 2; pair++) {
            const int n_q = lengths[pair / 2 % 7], n_kv = lengths[pair / 2 / 7];
            const bool is_big = n_q == 1000 && n_kv == 1000; /* slow on the CPU */
            const int *group = GROUPS[is_big ? 1 : pick(s, 0, 4)];
            const int64_t batch = is_big ? 1 : 1 + (pick(s, 0, 6) == 0);
            check_flash(s, t,
                        { { batch, group[0], group[1], n_q, n_kv, head, head, pair % 2 == 1 },
                          one_of(s, DTYPES),
                          one_of(s, LAYOUTS),
                          one_of(s, offsets),
                          one_of(s, scales),
                          pick(s, 0, 2) > 0 });
        }
    }
}

/* The same for head sizes above 256, including one of two. */
void check_above(session &s, tally &t)
{
    static const int heads[] = { 257, 264, 288, 299, 320, 384, 511, 512, 513, 576, 1000 };
    static const int lengths[] = { 1, 2, 17, 65, 130, 333 };
    static const double scales[] = { 0, 0, 0.1, -0.1 };
    static const int64_t offsets[] = { 0, 0, 1, 8 };
    for (int head : heads) {
        for (int pair = 0; pair < 6 * 6 * 2; pair++) {
            const int *group = GROUPS[pick(s, 0, 4)];
            check_flash(s, t,
                        { { 1 + (pick(s, 0, 6) == 0), group[0], group[1], lengths[pair / 2 % 6],
                            lengths[pair / 2 / 6], head, head, pair % 2 == 1 },
                          one_of(s, DTYPES),
                          one_of(s, LAYOUTS),
                          one_of(s, offsets),
                          one_of(s, scales),
                          pick(s, 0, 2) > 0 });
        }
    }
    for (int i = 0; i < 200; i++) { /* at least one of the two heads is above 256 */
        const int *group = GROUPS[pick(s, 0, 4)];
        const int64_t above = pick(s, 257, 700), other = pick(s, 1, 700), side = pick(s, 0, 1);
        const int64_t n_q = pick(s, 1, pick(s, 0, 1) ? 20 : 300);
        check_flash(s, t,
                    { { pick(s, 1, 2), group[0], group[1], n_q, pick(s, 1, 700),
                        side ? above : other, side ? other : above, pick(s, 0, 1) == 1 },
                      one_of(s, DTYPES),
                      one_of(s, LAYOUTS),
                      pick(s, 0, 8),
                      0,
                      pick(s, 0, 1) == 1 });
    }
    static const flash_case more[] = {
        { { 1, 4, 1, 1, 3001, 299, 299, false }, GAC_DTYPE_F16, BY_HEAD, 0, 0, true },
        { { 1, 8, 8, 1, 4096, 576, 512, false }, GAC_DTYPE_BF16, BY_HEAD, 0, 0, true },
        { { 1, 4, 2, 1000, 1000, 320, 320, true }, GAC_DTYPE_F16, BY_HEAD, 0, 0, true },
        { { 1, 2, 1, 1000, 1003, 512, 512, false }, GAC_DTYPE_BF16, BY_ROW, 0, 0, false },
        { { 1, 2, 1, 3, 70, 5000, 3000, true }, GAC_DTYPE_F16, BY_ROW, 0, 0, true },
    };
    for (const flash_case &c : more)
        check_flash(s, t, c);
}

/* Random valid arguments, with unequal head sizes. */
void check_random(session &s, tally &t)
{
    for (int i = 0; i < 300; i++) {
        const int *group = GROUPS[pick(s, 0, 4)];
        const int64_t n_q = pick(s, 1, pick(s, 0, 1) ? 20 : 300);
        check_flash(s, t,
                    { { pick(s, 1, 2), group[0], group[1], n_q, pick(s, 1, 700), pick(s, 1, 256),
                        pick(s, 1, 256), pick(s, 0, 1) == 1 },
                      one_of(s, DTYPES),
                      one_of(s, LAYOUTS),
                      pick(s, 0, 8),
                      0,
                      pick(s, 0, 1) == 1 });
    }
}

/* Small cases, because the sanitizer slows kernels a hundredfold. They cover every
 * template size, aligned and unaligned rows, few and many rows, and divided and undivided
 * keys. */
void check_small(session &s, tally &t)
{
    static const int heads[] = { 1,   3,   8,   9,   33,  64,  65,  80,  96,  107, 112,
                                 121, 128, 129, 161, 193, 225, 256, 257, 299, 512 };
    static const int64_t offsets[] = { 0, 1, 8 };
    static const int lengths[] = { 1, 3, 40, 130 };
    for (int head : heads)
        for (int64_t offset : offsets)
            for (int n_q : lengths)
                check_flash(s, t,
                            { { 1, 2, 1, n_q, 67 + 2 * offset, head, head, offset == 1 },
                              one_of(s, DTYPES),
                              one_of(s, LAYOUTS),
                              offset,
                              0,
                              true });
    static const flash_case more[] = {
        { { 1, 2, 1, 130, 131, 107, 63, false }, GAC_DTYPE_F16, ROWS_APART, 0, 0, true },
        { { 1, 2, 1, 130, 131, 63, 107, true }, GAC_DTYPE_BF16, ROWS_APART, 1, 0, true },
        { { 1, 4, 1, 1, 3001, 107, 107, false }, GAC_DTYPE_F16, BY_HEAD, 0, 0, true },
        { { 2, 4, 2, 1, 2999, 64, 31, false }, GAC_DTYPE_BF16, BY_HEAD, 1, 0, true },
        { { 1, 4, 2, 40, 7, 64, 64, true }, GAC_DTYPE_F16, BY_ROW, 0, -0.2, false },
        { { 1, 2, 1, 130, 131, 40, 299, true }, GAC_DTYPE_F16, BY_HEAD, 0, 0, true },
        { { 1, 2, 1, 130, 131, 576, 63, false }, GAC_DTYPE_BF16, ROWS_UNALIGNED, 1, 0, true },
        { { 1, 4, 1, 1, 1501, 299, 299, false }, GAC_DTYPE_F16, BY_HEAD, 1, 0, true },
        { { 1, 4, 1, 1, 1501, 320, 576, false }, GAC_DTYPE_BF16, BY_HEAD, 0, 0, true },
        { { 1, 2, 2, 40, 700, 264, 264, true }, GAC_DTYPE_F16, BY_HEAD, 0, -0.1, true },
    };
    for (const flash_case &c : more)
        check_flash(s, t, c);
}

/* Invalid arguments are refused before any launch. */
void check_refusals(tally &t)
{
    static const gac_sdpa_shape bad[] = {
        { 1, 2, 1, 4, 4, ((int64_t)1 << 30) + 1, 64, false },
        { 1, 2, 1, 4, 4, 64, ((int64_t)1 << 30) + 1, false },
        { 16, 1 << 30, 1, 1, 4, 64, 1 << 30, false },
        { 1, 2, 1, 4, 4, 0, 64, false },
        { 1, 2, 1, 4, 4, 64, -1, false },
        { 1, 3, 2, 4, 4, 64, 64, false },
        { 0, 2, 1, 4, 4, 64, 64, false },
        { 1, 2, 1, 4, 0, 64, 64, false },
    };
    for (const gac_sdpa_shape &shape : bad) {
        gac_flash_args args = {};
        args.dtype = GAC_DTYPE_F16;
        args.shape = shape;
        gac_flash_set_contiguous(&args);
        record(t, gac_flash_launch(&args, 0, nullptr) == GAC_USAGE, 0, "takes a bad shape");
    }
}

} /* namespace */

void check_flash_kernel(session &s)
{
    tally t = { "flash" };
    check_refusals(t);
    if (s.exact) {
        check_small(s, t);
    } else {
        check_grid(s, t);
        check_above(s, t);
        check_random(s, t);
    }
    finish(s, t);
}
