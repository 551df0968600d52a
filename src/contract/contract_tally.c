#include "contract/contract_tally.h"

#include "contract/contract_changes.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>

enum { MAX_RANGES = 5, MAX_GROUPS = 64 };
enum {
    MAX_GAP = 2, /* sizes between two that changed, which a range runs over */
    LONG_RUN = 8 /* changed sizes in one range: no chance */
};
/* Two starts of one machine differ by more than GAC_CHANGED_TIME at about 1 % of shapes:
 * where no more than this has changed, rows and classes are not told apart. */
#define SCATTERED 0.03
#define ALIKE 1.1 /* ratio of the medians of two lines that are told as one */

const char *const gac_sweep_phases[GAC_SWEEP_PHASES] = { "prefill", "causal prefill", "decode" };

static int order_numbers(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

static int order_ratios(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

double gac_sweep_median(double *values, size_t n)
{
    qsort(values, n, sizeof *values, order_ratios);
    return n == 0 ? NAN : n % 2 ? values[n / 2] : sqrt(values[n / 2 - 1] * values[n / 2]);
}

/* One size on one line. */
typedef struct entry {
    int64_t size, other;
    const gac_sweep_line *line;
    double worst; /* ratio that is farthest from the whole; NaN where none changed */
    int n_shapes, n_changed;
} entry;

typedef struct range {
    int64_t first, last;
    int n_changed;
} range;

/* Entries of some lines and classes, counted. */
typedef struct tally {
    entry *entries;
    size_t n_entries;
    size_t n_sizes, n_changed, n_shapes, n_shapes_changed;
    range *ranges;
    size_t n_ranges;
    int longest;
    double median;
    entry worst;
} tally;

/* What is told in one row: classes of lines that follow each other and have changed alike. */
typedef struct group {
    gac_op_axis seen;
    uint64_t picked[GAC_SWEEP_LINES]; /* classes, by line */
    const char *what;                 /* NULL: sizes here and there */
    int first, last;                  /* lines */
    double part, median;              /* of the first line */
} group;

static void dispose_tally(tally *t)
{
    free(t->entries);
    free(t->ranges);
    *t = (tally){ 0 };
}

static int order_entries(const void *a, const void *b)
{
    const entry *x = a, *y = b;
    return order_numbers(x->size, y->size);
}

/* Whether x is farther from the whole than y, if there is one; rounding decides nothing. */
static bool is_farther(double x, double y, double whole)
{
    return isnan(y) || fabs(log(x / whole)) > fabs(log(y / whole)) + 1e-6;
}

static entry enter(const gac_sweep *s, const gac_sweep_line *l, size_t at)
{
    double whole = s->whole[l->seen == GAC_OP_SDPA_HEAD];
    entry e = { .size = l->sizes[at], .line = l, .worst = NAN };
    for (int j = 0; j < l->n_others; j++) {
        double ratio = l->ratios[at * (size_t)l->n_others + (size_t)j];
        e.n_shapes += !isnan(ratio);
        if (isnan(ratio) || !gac_is_apart(ratio, whole, GAC_CHANGED_TIME))
            continue;
        e.n_changed++;
        if (is_farther(ratio, e.worst, whole)) {
            e.worst = ratio;
            e.other = l->others[j];
        }
    }
    return e;
}

/* Of the lines of a place, those classes whose bit is set; picked is by line. */
static bool collect(const gac_sweep *s, gac_op_axis seen, const uint64_t *picked, tally *t)
{
    size_t room = 1;
    for (int i = 0; i < s->n_lines; i++)
        room += picked[i] ? s->lines[i].n_sizes : 0;
    *t = (tally){ .entries = malloc(room * sizeof *t->entries),
                  .ranges = malloc(room * sizeof *t->ranges) };
    for (int i = 0; i < s->n_lines && t->entries; i++) {
        const gac_sweep_line *l = &s->lines[i];
        for (size_t j = 0; j < l->n_sizes && l->seen == seen && picked[i]; j++)
            if (picked[i] >> l->classes[j] & 1)
                t->entries[t->n_entries++] = enter(s, l, j);
    }
    if (t->entries)
        qsort(t->entries, t->n_entries, sizeof *t->entries, order_entries);
    return t->entries && t->ranges;
}

/* Counts size by size; a size has changed where any of its shapes has. */
static void count_sizes(tally *t)
{
    int gap = MAX_GAP + 1; /* sizes since the last that changed */
    for (size_t i = 0, end; i < t->n_entries; i = end) {
        int n_changed = 0;
        for (end = i; end < t->n_entries && t->entries[end].size == t->entries[i].size; end++) {
            n_changed += t->entries[end].n_changed;
            t->n_shapes += (size_t)t->entries[end].n_shapes;
        }
        t->n_sizes++;
        t->n_shapes_changed += (size_t)n_changed;
        if (n_changed == 0) {
            gap++;
            continue;
        }
        t->n_changed++;
        if (gap > MAX_GAP)
            t->ranges[t->n_ranges++] = (range){ .first = t->entries[i].size };
        range *r = &t->ranges[t->n_ranges - 1];
        r->last = t->entries[i].size;
        r->n_changed++;
        t->longest = r->n_changed > t->longest ? r->n_changed : t->longest;
        gap = 0;
    }
}

static bool take_tally(const gac_sweep *s, gac_op_axis seen, const uint64_t *picked, tally *t)
{
    double whole = s->whole[seen == GAC_OP_SDPA_HEAD];
    bool ok = collect(s, seen, picked, t);
    double *worst = ok ? malloc((t->n_entries + 1) * sizeof *worst) : NULL;
    if (!worst) {
        dispose_tally(t);
        return false;
    }
    count_sizes(t);
    size_t n = 0;
    t->worst.worst = NAN;
    for (size_t i = 0; i < t->n_entries; i++) {
        const entry *e = &t->entries[i];
        if (e->n_changed == 0)
            continue;
        worst[n++] = e->worst;
        if (is_farther(e->worst, t->worst.worst, whole))
            t->worst = *e;
    }
    t->median = gac_sweep_median(worst, n);
    free(worst);
    return true;
}

/* Enough of them to be told apart from what noise does. */
static bool is_told(const tally *t)
{
    return (double)t->n_shapes_changed > SCATTERED * (double)t->n_shapes || t->longest >= LONG_RUN;
}

static void name_shape(const entry *e, char *out, size_t size)
{
    const gac_sweep_line *l = e->line;
    if (l->seen != GAC_OP_SDPA_HEAD) {
        bool is_n = l->seen == GAC_OP_GEMM_N;
        snprintf(out, size, "%lld x %lld x %lld", (long long)l->rows,
                 (long long)(is_n ? e->size : e->other), (long long)(is_n ? e->other : e->size));
        return;
    }
    gac_sdpa_shape shape = gac_sweep_shape(l->phase, e->other, e->size);
    snprintf(out, size, "%s %lld x %lld, %lld and %lld heads of %lld", gac_sweep_phases[l->phase],
             (long long)shape.batch, (long long)shape.n_kv, (long long)shape.n_q_heads,
             (long long)shape.n_kv_heads, (long long)e->size);
}

static int order_by_weight(const void *a, const void *b)
{
    const range *x = a, *y = b;
    if (x->n_changed != y->n_changed)
        return x->n_changed > y->n_changed ? -1 : 1;
    return order_numbers(x->first, y->first);
}

static int order_by_size(const void *a, const void *b)
{
    const range *x = a, *y = b;
    return order_numbers(x->first, y->first);
}

/* The ranges with the most changed sizes, rising; as text too. */
static json_t *ranges_json(tally *t, char *text, size_t size)
{
    json_t *list = json_array();
    size_t n = t->n_ranges < MAX_RANGES ? t->n_ranges : MAX_RANGES, used = 0;
    qsort(t->ranges, t->n_ranges, sizeof *t->ranges, order_by_weight);
    qsort(t->ranges, n, sizeof *t->ranges, order_by_size);
    *text = '\0';
    for (size_t i = 0; i < n; i++) {
        const range *r = &t->ranges[i];
        json_array_append_new(list, json_pack("[I, I]", (json_int_t)r->first, (json_int_t)r->last));
        used += (size_t)snprintf(text + used, size - used, "%s%lld", i > 0 ? ", " : "",
                                 (long long)r->first);
        if (r->last > r->first)
            used += (size_t)snprintf(text + used, size - used, "-%lld", (long long)r->last);
    }
    if (t->n_ranges > n)
        snprintf(text + used, size - used, " and %zu more", t->n_ranges - n);
    return list;
}

static json_t *rows_json(const gac_sweep *s, const group *g, char *where, size_t size)
{
    const gac_sweep_line *first = &s->lines[g->first], *last = &s->lines[g->last];
    *where = '\0';
    if (!g->what)
        return json_null();
    if (g->seen == GAC_OP_SDPA_HEAD) {
        snprintf(where, size, " in %s", gac_sweep_phases[first->phase]);
        return json_null();
    }
    if (first == last)
        snprintf(where, size, " with %lld row%s", (long long)first->rows,
                 first->rows == 1 ? "" : "s");
    else
        snprintf(where, size, " with %lld to %lld rows", (long long)first->rows,
                 (long long)last->rows);
    json_t *rows = json_array();
    for (int i = g->first; i <= g->last; i++)
        json_array_append_new(rows, json_integer(s->lines[i].rows));
    return rows;
}

static json_t *tally_json(const gac_sweep *s, const group *g, tally *t)
{
    char text[640], shape[96], ranges[256], where[64];
    bool is_phase = g->what && g->seen == GAC_OP_SDPA_HEAD;
    json_t *list = ranges_json(t, ranges, sizeof ranges);
    json_t *rows = rows_json(s, g, where, sizeof where);
    name_shape(&t->worst, shape, sizeof shape);
    snprintf(text, sizeof text,
             "%s%s: %zu of %zu changed, ×%.2f in the median, ×%.2f at worst (%s): %s",
             g->what ? g->what : "sizes here and there", where, t->n_changed, t->n_sizes, t->median,
             t->worst.worst, shape, ranges);
    return json_pack("{s:s, s:s?, s:o, s:s?, s:I, s:I, s:I, s:I, s:f, s:f, s:s, s:o, s:I}", "text",
                     text, "class", g->what, "rows", rows, "phase",
                     is_phase ? gac_sweep_phases[s->lines[g->first].phase] : NULL, "n_sizes",
                     (json_int_t)t->n_sizes, "n_changed", (json_int_t)t->n_changed, "n_shapes",
                     (json_int_t)t->n_shapes, "n_shapes_changed", (json_int_t)t->n_shapes_changed,
                     "b_over_a_median", t->median, "b_over_a_worst", t->worst.worst, "worst_shape",
                     shape, "ranges", list, "n_ranges", (json_int_t)t->n_ranges);
}

static double part_changed(const tally *t)
{
    return t->n_sizes > 0 ? (double)t->n_changed / (double)t->n_sizes : 0;
}

/* Whether the classes that both align have changed alike on a line: then they are one. */
static bool is_alike(const gac_sweep *s, int at, uint64_t aligned, double part, bool *alike)
{
    gac_op_axis seen = s->lines[at].seen;
    *alike = aligned & (aligned - 1); /* two at least */
    for (int c = 0; c < s->n_classes[seen] && *alike; c++) {
        uint64_t picked[GAC_SWEEP_LINES] = { 0 };
        tally t;
        if (!(aligned >> c & 1))
            continue;
        picked[at] = (uint64_t)1 << c;
        if (!take_tally(s, seen, picked, &t))
            return false;
        *alike = part_changed(&t) <= 2 * part && part_changed(&t) >= part / 2;
        dispose_tally(&t);
    }
    return true;
}

/* The rows of a place, and what is too little for one of its own. */
typedef struct findings {
    group groups[MAX_GROUPS];
    int n_groups;
    group scattered;
} findings;

static bool is_near(const group *g, double part, double median)
{
    return part <= 2 * g->part && part >= g->part / 2 && !gac_is_apart(median, g->median, ALIKE);
}

/* Adds classes of a line to the group of the line before, if that has changed alike. */
static bool add_classes(const gac_sweep *s, int at, uint64_t classes, const char *what, findings *f)
{
    group g = { .seen = s->lines[at].seen, .what = what, .first = at, .last = at };
    tally t;
    g.picked[at] = classes;
    if (!take_tally(s, g.seen, g.picked, &t))
        return false;
    g.part = part_changed(&t);
    g.median = t.median;
    bool told = is_told(&t) && f->n_groups < MAX_GROUPS;
    dispose_tally(&t);
    if (!told) {
        f->scattered.picked[at] |= classes;
        return true;
    }
    for (int i = 0; i < f->n_groups && g.seen != GAC_OP_SDPA_HEAD; i++) {
        group *before = &f->groups[i];
        if (before->last != at - 1 || before->picked[at - 1] != classes ||
            !is_near(before, g.part, g.median))
            continue;
        before->last = at;
        before->picked[at] = classes;
        return true;
    }
    f->groups[f->n_groups++] = g;
    return true;
}

static bool add_line(const gac_sweep *s, int at, findings *f)
{
    gac_op_axis seen = s->lines[at].seen;
    uint64_t aligned = 0, picked[GAC_SWEEP_LINES] = { 0 };
    bool alike;
    tally t;
    for (int c = 0; c < s->n_classes[seen]; c++)
        if (gac_side_aligns(s->a, seen, s->classes[seen][c].example) &&
            gac_side_aligns(s->b, seen, s->classes[seen][c].example))
            aligned |= (uint64_t)1 << c;
    picked[at] = aligned;
    if (!take_tally(s, seen, picked, &t))
        return false;
    double part = part_changed(&t);
    dispose_tally(&t);
    if (!is_alike(s, at, aligned, part, &alike) ||
        (alike && !add_classes(s, at, aligned, "aligned sizes", f)))
        return false;
    for (int c = 0; c < s->n_classes[seen]; c++)
        if (!(alike && aligned >> c & 1) &&
            !add_classes(s, at, (uint64_t)1 << c, s->classes[seen][c].text, f))
            return false;
    return true;
}

static bool add_group(const gac_sweep *s, const group *g, json_t *rows)
{
    tally t;
    if (!take_tally(s, g->seen, g->picked, &t))
        return false;
    if (t.n_changed > 0)
        json_array_append_new(rows, tally_json(s, g, &t));
    dispose_tally(&t);
    return true;
}

bool gac_sweep_tell(const gac_sweep *s, gac_op_axis seen, json_t *rows)
{
    findings *f = calloc(1, sizeof *f);
    bool ok = f;
    for (int i = 0; i < s->n_lines && ok; i++)
        ok = s->lines[i].seen != seen || add_line(s, i, f);
    for (int i = 0; ok && i < f->n_groups; i++)
        ok = add_group(s, &f->groups[i], rows);
    if (ok) {
        f->scattered.seen = seen;
        ok = add_group(s, &f->scattered, rows);
    }
    free(f);
    return ok;
}
