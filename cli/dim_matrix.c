#include "dim.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum {
    PREFILL_ROWS = 2048,
    DEFAULT_MARGIN_PCT = 10,
    MAX_SIDE = 1 << 24,   /* the product of two sides is exact in a double */
    MAX_CANDIDATES = 16,  /* the rank, and two for each of up to six multiples */
    MAX_SCANNED = 1 << 12 /* limit of ranks to try when searching where factors stop being faster */
};

typedef struct candidate {
    int64_t rank, multiple; /* multiple: 128, 64, …, 1 */
    double kept;            /* share of the parameters that remain */
    double prefill, decode; /* time of both factors over that of the dense matrix */
    bool aligned, within;   /* within: keeps no more than requested */
} candidate;

typedef struct matrix {
    int64_t out, in;
    double keep;
    int64_t rank; /* the largest rank that keeps no more than requested */
    const gac_contract *contract;
    gac_dtype dtype;
    double margin_pct; /* predicted times closer than this count as equal */
    bool margin_stated;
    candidate list[MAX_CANDIDATES]; /* sorted by rank */
    int n, suggested;               /* suggested: index in list, or -1 if no candidate is within */
    int64_t equal_params, faster_prefill, faster_decode;
} matrix;

static gac_status read_matrix(cli *c, const char *text, matrix *m)
{
    char q[80];
    char *middle, *end = NULL;
    long long out = strtoll(text, &middle, 10);
    long long in = *middle == 'x' ? strtoll(middle + 1, &end, 10) : 0;
    if (*text < '0' || *text > '9' || !end || *end || out < 2 || in < 2 || out > MAX_SIDE ||
        in > MAX_SIDE)
        return gac_error_set(&c->error, GAC_USAGE,
                             "\"%s\" is not a matrix OUTxIN with sides from 2 to %d",
                             gac_quote(q, sizeof q, text), MAX_SIDE);
    m->out = out;
    m->in = in;
    return GAC_OK;
}

/* Returns the time of two GEMMs, (rank, in) and then (out, rank), over that of
 * y = x W^T with W (out, in). */
static double ratio(const matrix *m, int64_t n_rows, int64_t rank)
{
    double dense = gac_contract_gemm_us(m->contract, m->dtype, n_rows, m->out, m->in);
    return (gac_contract_gemm_us(m->contract, m->dtype, n_rows, rank, m->in) +
            gac_contract_gemm_us(m->contract, m->dtype, n_rows, m->out, rank)) /
           dense;
}

static bool is_aligned(const matrix *m, int64_t rank)
{
    gac_judgement as_n, as_k;
    return gac_contract_judge(m->contract, GAC_OP_GEMM_N, m->dtype, rank, PREFILL_ROWS, m->in,
                              &as_n, NULL) == GAC_OK &&
           gac_contract_judge(m->contract, GAC_OP_GEMM_K, m->dtype, rank, PREFILL_ROWS, m->out,
                              &as_k, NULL) == GAC_OK &&
           as_n.aligned && as_k.aligned;
}

/* Returns the multiple that suits a rank, which is n of one factor and k of the
 * other. */
static int64_t contract_multiple(const matrix *m)
{
    int64_t n = gac_contract_multiple(m->contract, GAC_OP_GEMM_N, m->dtype);
    int64_t k = gac_contract_multiple(m->contract, GAC_OP_GEMM_K, m->dtype);
    return gac_max_i64(1, gac_max_i64(n, k));
}

static void add(matrix *m, int64_t rank)
{
    int at = 0;
    int64_t multiple = 128;
    if (rank < 1 || rank > gac_min_i64(m->out, m->in))
        return;
    while (at < m->n && m->list[at].rank < rank)
        at++;
    if (at < m->n && m->list[at].rank == rank)
        return;
    memmove(&m->list[at + 1], &m->list[at], (size_t)(m->n++ - at) * sizeof *m->list);
    while (rank % multiple)
        multiple /= 2;
    m->list[at] =
        (candidate){ .rank = rank,
                     .multiple = multiple,
                     .kept = (double)(rank * (m->out + m->in)) / ((double)m->out * (double)m->in),
                     .prefill = ratio(m, PREFILL_ROWS, rank),
                     .decode = ratio(m, 1, rank),
                     .aligned = is_aligned(m, rank),
                     .within = rank <= m->rank };
}

/* Sets the margin to the contract's error for GEMMs, as gac plan --strategy
 * solve does. */
static void find_margin(matrix *m)
{
    double stated = 0;
    m->margin_stated = gac_contract_median_error(m->contract, m->dtype, GAC_OP_GEMM_N, &stated);
    m->margin_pct = m->margin_stated ? stated : DEFAULT_MARGIN_PCT;
}

/* Suggests the fastest rank over prefill and decode together. Of equal ones it
 * takes the largest, which loses least. */
static int suggest(const matrix *m)
{
    double best = HUGE_VAL;
    int found = -1;
    for (int i = 0; i < m->n; i++)
        if (m->list[i].within)
            best = fmin(best, m->list[i].prefill + m->list[i].decode);
    for (int i = 0; i < m->n; i++)
        if (m->list[i].within &&
            m->list[i].prefill + m->list[i].decode <= (1 + m->margin_pct / 100) * best)
            found = i;
    return found;
}

/* Returns the largest aligned rank with which factors are predicted to be
 * faster; 0 if there is none. */
static int64_t faster_up_to(const matrix *m, int64_t n_rows)
{
    int64_t most = gac_min_i64(m->out, m->in), step = contract_multiple(m), found = 0;
    step *= 1 + most / step / MAX_SCANNED;
    for (int64_t rank = step; rank <= most; rank += step)
        if (ratio(m, n_rows, rank) < 1)
            found = rank;
    return found;
}

static void compute(matrix *m)
{
    const int64_t multiples[] = { contract_multiple(m), 8, 16, 32, 64, 128 };
    add(m, m->rank);
    for (size_t i = 0; i < sizeof multiples / sizeof *multiples; i++) {
        int64_t below = m->rank / multiples[i] * multiples[i];
        add(m, below);
        if (below < m->rank)
            add(m, below + multiples[i]);
    }
    find_margin(m);
    m->suggested = suggest(m);
    m->faster_prefill = faster_up_to(m, PREFILL_ROWS);
    m->faster_decode = faster_up_to(m, 1);
}

static void print_faster(const char *label, int64_t rank)
{
    if (rank > 0)
        printf("  %-26s up to rank %lld\n", label, (long long)rank);
    else
        printf("  %-26s never\n", label);
}

static void print_matrix(const matrix *m)
{
    char count[32];
    printf("%lldx%lld, %s parameters: rank %lld is the largest that keeps at most %g %% of them\n",
           (long long)m->out, (long long)m->in, cli_count(count, m->out * m->in),
           (long long)m->rank, 100 * m->keep);
    printf("\non %s (%s), %s, time of both factors over that of the dense matrix:\n",
           gac_contract_name(m->contract), gac_contract_gpu(m->contract), gac_dtype_name(m->dtype));
    printf("  %8s %9s %9s  %-12s %-9s %s\n", "rank", "multiple", "kept", "2048 tokens", "1 token",
           "aligned");
    for (int i = 0; i < m->n; i++) {
        const candidate *k = &m->list[i];
        bool best = i == m->suggested;
        colour shade = best ? COLOUR_GOOD : k->aligned ? COLOUR_NONE : COLOUR_WARN;
        printf("%s%c %8lld %9lld %7.2f %%  × %-10.3f × %-7.3f %s%s%s\n", colour_on(stdout, shade),
               best ? '*' : ' ', (long long)k->rank, (long long)k->multiple, 100 * k->kept,
               k->prefill, k->decode, k->aligned ? "yes" : "no",
               best         ? ", suggested"
               : !k->within ? ", keeps more"
                            : "",
               colour_off(stdout, shade));
    }
    printf("\nSuggested: the fastest rank that keeps no more. Times within %.3g %%, %s,\n"
           "count as equal; among equals the largest rank wins.\n"
           "Factors of rank %lld have as many parameters as the matrix. They are faster than it:\n",
           m->margin_pct,
           m->margin_stated ? "the contract's stated error"
                            : "assumed since the contract states no error",
           (long long)m->equal_params);
    print_faster("at 2048 tokens (prefill)", m->faster_prefill);
    print_faster("at 1 token (decode)", m->faster_decode);
}

static gac_status print_json(cli *c, const matrix *m)
{
    int64_t to = m->suggested >= 0 ? m->list[m->suggested].rank : m->rank;
    json_t *result = gac_json_result("gac.dim/1", c->argc, c->argv), *list = json_array();
    for (int i = 0; i < m->n; i++) {
        const candidate *k = &m->list[i];
        json_array_append_new(
            list, json_pack("{s:I, s:I, s:f, s:b, s:f, s:f, s:b, s:b}", "rank", (json_int_t)k->rank,
                            "multiple", (json_int_t)k->multiple, "kept", k->kept, "aligned",
                            k->aligned, "prefill_ratio", k->prefill, "decode_ratio", k->decode,
                            "within", k->within, "suggested", i == m->suggested));
    }
    json_t *body = json_pack(
        "{s:I, s:I, s:s, s:f, s:s, s:s, s:I, s:I, s:f, s:f, s:o, s:{s:I, s:I, s:I}}", "from",
        (json_int_t)m->rank, "to", (json_int_t)to, "strategy", "keep", "overhead_pct",
        100.0 * (double)(to - m->rank) / (double)m->rank, "contract",
        gac_contract_name(m->contract), "dtype", gac_dtype_name(m->dtype), "out",
        (json_int_t)m->out, "in", (json_int_t)m->in, "keep", m->keep, "margin_pct", m->margin_pct,
        "candidates", list, "break_even", "params", (json_int_t)m->equal_params, "prefill",
        (json_int_t)m->faster_prefill, "decode", (json_int_t)m->faster_decode);
    json_object_update(result, body);
    json_decref(body);
    gac_status status = cli_print_result(c, result);
    json_decref(result);
    return status;
}

gac_status dim_matrix(cli *c, const dim_options *o, const char *text)
{
    matrix m = { .keep = o->keep };
    gac_contract *contract = NULL;
    gac_status status = read_matrix(c, text, &m);
    if (status != GAC_OK)
        return status;
    double equal = (double)m.out * (double)m.in / (double)(m.out + m.in);
    m.equal_params = (int64_t)equal;
    m.rank = (int64_t)(equal * m.keep + 1e-9); /* 1e-9 because 0.7 is a little less than 7/10 */
    if (m.rank < 1)
        return gac_error_set(&c->error, GAC_USAGE,
                             "--keep: even rank 1 keeps %.3g of the parameters of a %lldx%lld "
                             "matrix",
                             1 / equal, (long long)m.out, (long long)m.in);
    status = dim_contract(c, o, &contract, &m.dtype);
    m.contract = contract;
    if (status == GAC_OK) {
        compute(&m);
        status = c->json ? print_json(c, &m) : GAC_OK;
        if (!c->json)
            print_matrix(&m);
    }
    gac_contract_free(contract);
    return status;
}
