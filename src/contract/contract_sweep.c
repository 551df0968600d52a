#include "contract/contract_sweep.h"

#include "contract/contract_changes.h"
#include "contract/contract_tally.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

enum { MIN_SIZE = 64, MAX_SIZE = 16384, MIN_HEAD = 16, DENSE_HEAD = 256, MAX_HEAD = 1024 };
enum { MAX_ROWS = (GAC_SWEEP_LINES - GAC_SWEEP_PHASES) / 2, DECODE = 2 };
/* Between sizes: kernels are chosen anew for as many columns at most; where no table has every
 * size fewer do, so many apart that tiles are cut everywhere. */
enum { DENSE = 8, SPARSE = 53 };

static void add_number(int64_t *list, int *n, int max, int64_t value)
{
    for (int i = 0; i < *n; i++)
        if (list[i] == value)
            return;
    if (*n < max)
        list[(*n)++] = value;
}

static int64_t table_size(const gac_table *t, int axis, int i)
{
    return llround(exp(t->log_size[axis][i]));
}

/* The rows of tables of every size, or with rows the other widths that these have there. */
static void add_tables(const gac_side *s, const gac_table *tables, int n_tables, gac_op_axis facing,
                       int64_t rows, int64_t *list, int *n, int max)
{
    for (int i = 0; i < n_tables; i++) {
        const gac_table *t = &tables[i];
        if (rows > 0 && !gac_table_has(t, 0, (double)rows))
            continue;
        int axis = rows > 0 ? 2 : 0;
        for (int j = 0; j < t->n[axis]; j++)
            if (rows == 0 || gac_side_aligns(s, facing, table_size(t, axis, j)))
                add_number(list, n, max, table_size(t, axis, j));
    }
}

static void add_side(const gac_side *s, gac_op_axis seen, int64_t rows, int64_t *list, int *n,
                     int max)
{
    const gac_dtype_rules *r = s->rules;
    if (seen == GAC_OP_GEMM_K) {
        add_tables(s, r->dense_k, r->n_dense_k, GAC_OP_GEMM_N, rows, list, n, max);
        return;
    }
    add_tables(s, r->dense, r->n_dense, GAC_OP_GEMM_K, rows, list, n, max);
    add_tables(s, r->dense_part, r->n_dense_part, GAC_OP_GEMM_K, rows, list, n, max);
}

static int order_lines(const void *a, const void *b)
{
    const gac_sweep_line *x = a, *y = b;
    return x->rows < y->rows ? -1 : x->rows > y->rows;
}

static void add_gemm_lines(gac_sweep *s, gac_op_axis seen)
{
    static const int64_t common[] = { 1, 16, 256, 1024, 2048, 4096 }, between[] = { 4, 64, 8192 };
    static const int64_t widths[] = { 4096, 2048, 8192, 512 };
    int64_t rows[MAX_ROWS];
    int n = 0;
    gac_sweep_line *first = &s->lines[s->n_lines];
    for (size_t i = 0; i < sizeof common / sizeof *common; i++)
        add_number(rows, &n, MAX_ROWS, common[i]);
    int max = MAX_ROWS - (int)(sizeof between / sizeof *between);
    add_side(s->a, seen, 0, rows, &n, max);
    add_side(s->b, seen, 0, rows, &n, max);
    int n_dense = n;
    for (size_t i = 0; i < sizeof between / sizeof *between; i++)
        add_number(rows, &n, MAX_ROWS, between[i]);
    for (int i = 0; i < n; i++) {
        gac_sweep_line *l = &s->lines[s->n_lines++];
        *l = (gac_sweep_line){ .seen = seen, .rows = rows[i], .dense = i < n_dense };
        size_t n_widths = sizeof widths / sizeof *widths - (seen == GAC_OP_GEMM_K);
        for (size_t j = 0; j < n_widths; j++)
            add_number(l->others, &l->n_others, GAC_SWEEP_OTHERS, widths[j]);
        add_side(s->a, seen, l->rows, l->others, &l->n_others, GAC_SWEEP_OTHERS);
        add_side(s->b, seen, l->rows, l->others, &l->n_others, GAC_SWEEP_OTHERS);
    }
    qsort(first, (size_t)n, sizeof *first, order_lines);
}

/* Batch, heads of queries and of keys; lengths. */
static const int64_t groups[2][4][3] = {
    { { 1, 8, 8 }, { 1, 32, 8 }, { 4, 32, 32 }, { 16, 32, 8 } },
    { { 1, 32, 8 }, { 4, 32, 8 }, { 16, 32, 32 }, { 64, 32, 8 } }
};
static const int64_t lengths[] = { 128, 256, 512, 1024, 2048, 4096, 8192 };
enum { N_GROUPS = 4, N_LENGTHS = 7 };

gac_sdpa_shape gac_sweep_shape(int phase, int64_t index, int64_t head)
{
    bool decode = phase == DECODE;
    const int64_t *g = groups[decode][index / N_LENGTHS];
    int64_t length = lengths[index % N_LENGTHS] * (decode ? 2 : 1); /* contexts are longer */
    return (gac_sdpa_shape){ g[0],   g[1], g[2], decode ? 1 : length,
                             length, head, head, !decode && phase > 0 };
}

static void add_head_lines(gac_sweep *s)
{
    for (int phase = 0; phase < GAC_SWEEP_PHASES; phase++) {
        gac_sweep_line *l = &s->lines[s->n_lines++];
        *l = (gac_sweep_line){ .seen = GAC_OP_SDPA_HEAD, .phase = phase, .dense = true };
        for (int i = 0; i < N_GROUPS * N_LENGTHS; i++)
            l->others[l->n_others++] = i;
    }
}

static double us_of(const gac_side *s, const gac_sweep_line *l, int64_t size, int64_t other)
{
    if (l->seen == GAC_OP_GEMM_N)
        return gac_contract_gemm_us(s->contract, s->dtype, l->rows, size, other);
    if (l->seen == GAC_OP_GEMM_K)
        return gac_contract_gemm_us(s->contract, s->dtype, l->rows, other, size);
    gac_sdpa_shape shape = gac_sweep_shape(l->phase, other, size);
    return gac_contract_sdpa_us(s->contract, s->dtype, &shape);
}

static int64_t stride_at(const gac_sweep *s, const gac_sweep_line *l, const gac_size_class *c,
                         int64_t size)
{
    if (l->seen == GAC_OP_SDPA_HEAD)
        return size < DENSE_HEAD ? 1 : SPARSE;
    bool aligned =
        gac_side_aligns(s->a, l->seen, c->example) || gac_side_aligns(s->b, l->seen, c->example);
    return l->dense && aligned ? DENSE : SPARSE;
}

/* Every size that is aligned, some of each class that is not. */
static bool take_sizes(const gac_sweep *s, gac_sweep_line *l)
{
    bool is_head = l->seen == GAC_OP_SDPA_HEAD;
    int64_t first = is_head ? MIN_HEAD : MIN_SIZE, last = is_head ? MAX_HEAD : MAX_SIZE;
    int64_t next[GAC_MAX_CLASSES] = { 0 };
    size_t room = (size_t)(last - first + 1);
    l->sizes = malloc(room * sizeof *l->sizes);
    l->classes = malloc(room * sizeof *l->classes);
    for (int64_t v = first; v <= last && l->sizes && l->classes; v++) {
        const gac_size_class *classes = s->classes[l->seen];
        int at = gac_class_of(s->a, s->b, l->seen, v, classes, s->n_classes[l->seen]);
        if (at < 0 || v < next[at])
            continue;
        next[at] = v + stride_at(s, l, &classes[at], v);
        l->sizes[l->n_sizes] = v;
        l->classes[l->n_sizes++] = at;
    }
    l->ratios = malloc((l->n_sizes * (size_t)l->n_others + 1) * sizeof *l->ratios);
    return l->sizes && l->classes && l->ratios;
}

static bool fill_line(gac_sweep *s, gac_sweep_line *l)
{
    /* A contract is like itself: not worth a million predictions. */
    bool itself = s->a->contract == s->b->contract && s->a->dtype == s->b->dtype;
    if (!take_sizes(s, l))
        return false;
    for (size_t i = 0; i < l->n_sizes; i++)
        for (int j = 0; j < l->n_others; j++) {
            double a_us = itself ? 1 : us_of(s->a, l, l->sizes[i], l->others[j]);
            double b_us = itself ? 1 : us_of(s->b, l, l->sizes[i], l->others[j]);
            bool told = a_us > 0 && b_us > 0 && isfinite(b_us / a_us);
            l->ratios[i * (size_t)l->n_others + (size_t)j] = told ? b_us / a_us : NAN;
            s->n_shapes[l->seen == GAC_OP_SDPA_HEAD] += told;
        }
    return true;
}

/* What most shapes have, of GEMM or of attention. */
static bool take_whole(gac_sweep *s, int of_heads)
{
    size_t n = 0;
    double *all = malloc((s->n_shapes[of_heads] + 1) * sizeof *all);
    if (!all)
        return false;
    for (int i = 0; i < s->n_lines; i++) {
        const gac_sweep_line *l = &s->lines[i];
        for (size_t j = 0; j < l->n_sizes * (size_t)l->n_others; j++)
            if ((l->seen == GAC_OP_SDPA_HEAD) == of_heads && !isnan(l->ratios[j]))
                all[n++] = l->ratios[j];
    }
    s->whole[of_heads] = gac_sweep_median(all, n);
    free(all);
    return true;
}

static json_t *whole_json(const gac_sweep *s, int of_heads)
{
    double whole = s->whole[of_heads];
    return json_pack("{s:I, s:o}", "n_shapes", (json_int_t)s->n_shapes[of_heads], "b_over_a",
                     isnan(whole) ? json_null() : json_real(whole));
}

gac_status gac_sweep_times(const gac_side *a, const gac_side *b, json_t *places, json_t **out,
                           bool *same, gac_error *err)
{
    gac_sweep *s = calloc(1, sizeof *s);
    if (!s)
        return gac_error_no_memory(err);
    s->a = a;
    s->b = b;
    for (int seen = 0; seen < GAC_OP_AXIS_COUNT; seen++)
        s->n_classes[seen] = gac_find_classes(a, b, (gac_op_axis)seen, s->classes[seen]);
    add_gemm_lines(s, GAC_OP_GEMM_N);
    add_gemm_lines(s, GAC_OP_GEMM_K);
    add_head_lines(s);
    bool ok = true;
    for (int i = 0; i < s->n_lines && ok; i++)
        ok = fill_line(s, &s->lines[i]);
    for (int of_heads = 0; of_heads < 2 && ok; of_heads++) {
        ok = take_whole(s, of_heads);
        *same = *same && (!ok || s->n_shapes[of_heads] == 0 ||
                          !gac_is_apart(s->whole[of_heads], 1, GAC_CHANGED_TIME));
    }
    for (int seen = 0; seen < GAC_OP_AXIS_COUNT && ok; seen++) {
        json_t *rows = json_array();
        ok = gac_sweep_tell(s, (gac_op_axis)seen, rows);
        *same = *same && json_array_size(rows) == 0;
        json_object_set_new(json_array_get(places, (size_t)seen), "times", rows);
    }
    *out = json_pack("{s:o, s:o, s:f}", "gemm", whole_json(s, 0), "sdpa", whole_json(s, 1),
                     "changed_over_pct", 100 * (GAC_CHANGED_TIME - 1));
    for (int i = 0; i < s->n_lines; i++) {
        free(s->lines[i].sizes);
        free(s->lines[i].classes);
        free(s->lines[i].ratios);
    }
    free(s);
    if (ok && *out)
        return GAC_OK;
    json_decref(*out);
    *out = NULL;
    return gac_error_no_memory(err);
}
