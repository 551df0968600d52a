#include "contract/contract_rules.h"

#include <math.h>
#include <stdlib.h>

#define US_PER_S 1e6
#define DECODE_ROWS 256
#define LINE_BYTES 128 /* of the cache */
#define PART_GROWS 0.7 /* what part of one costs at a k beyond a table's: to this power of k */

/* Time of y = x W^T in one tier, x (m, k), W (n, k), y (m, n).
 *
 * A GEMM multiplies (2mnk flops) while it streams its weights (nk elements),
 * and then or before that moves x and y, the edges (m(n + k) elements), which
 * nothing hides: at 8192 x 8192 x 107 writing y is most of the time. How much
 * of the shorter of multiplying and streaming hides behind the longer is the
 * tier's overlap: nearly all in the asynchronous sm90 kernels, nothing in the
 * align1 ones, whose decode therefore slows with every row. One row is a GEMV,
 * another kernel with a bandwidth of its own. All rates are fitted to measured
 * points (tools/contract), and fit in the contract states the error. */
static double tier_us(const gac_gemm_rates *rates, double element_bytes, double m, double n,
                      double k)
{
    double weight_bytes = n * k * element_bytes;
    if (m <= 1 && rates->has_gemv)
        return rates->gemv_overhead_us + weight_bytes / rates->gemv_bytes_per_s * US_PER_S;
    double compute_us = 2 * m * n * k / rates->flops_per_s * US_PER_S;
    double weights_us = weight_bytes / rates->bytes_per_s * US_PER_S;
    double edges_us = m * (n + k) * element_bytes / rates->edge_bytes_per_s * US_PER_S;
    double hidden_us = rates->overlap * fmin(compute_us, weights_us);
    return rates->overhead_us + compute_us + weights_us - hidden_us + edges_us;
}

int gac_gemm_point_order(const void *a, const void *b)
{
    const gac_gemm_point *p = a, *q = b;
    if (p->dtype != q->dtype)
        return p->dtype < q->dtype ? -1 : 1;
    if (p->m != q->m)
        return p->m < q->m ? -1 : 1;
    if (p->n != q->n)
        return p->n < q->n ? -1 : 1;
    if (p->k != q->k)
        return p->k < q->k ? -1 : 1;
    return 0;
}

static const gac_gemm_point *find_point(const gac_contract *contract, gac_dtype dtype, int64_t m,
                                        int64_t n, int64_t k)
{
    gac_gemm_point key = { .m = m, .n = n, .k = k };
    if (contract->n_points == 0 || !gac_contract_dtype(contract, dtype, &key.dtype))
        return NULL;
    return bsearch(&key, contract->points, contract->n_points, sizeof key, gac_gemm_point_order);
}

/* The table of every n that has this m and n, or NULL: neither is a grid to find
 * others by. */
static const gac_table *find_dense(const gac_dtype_rules *rules, double m, double n)
{
    for (int i = 0; i < rules->n_dense; i++) {
        const gac_table *t = &rules->dense[i];
        if (gac_table_has(t, 0, m) && gac_table_has(t, 1, n))
            return t;
    }
    return NULL;
}

static double plain_us(const gac_gemm_times *times, const double sizes[3])
{
    return gac_table_us(&times->table, &gac_gemm_table, sizes) *
           gac_gemm_waste(times, sizes[0], sizes[1]);
}

/* Before its first k, a dense table goes on as the other does; with few rows it fades into
 * that, since how k is split among multiprocessors, which is most of what it knows, is of
 * no use there. Past its last it stays as far from the other as it was: what an n costs at
 * the edges does not grow with k. Half is kept, whatever a file says. */
static double dense_us(const gac_table *dense, const gac_gemm_times *times, const double sizes[3])
{
    double first = dense->log_size[2][0], last = dense->log_size[2][dense->n[2] - 1];
    double k = exp(fmin(fmax(log(sizes[2]), first), last));
    const double inside[] = { sizes[0], sizes[1], k };
    double us = gac_table_us(dense, &gac_dense_table, inside);
    double plain = plain_us(times, inside), here = plain_us(times, sizes);
    if (log(sizes[2]) > last)
        return fmax(here + us - plain, here / 2);
    double fades = sizes[0] < DECODE_ROWS ? sizes[2] / k : 1; /* 1 from the first k on */
    return here * pow(us / plain, fades);
}

/* first is the index of the pair of a tier of n with the best k, which has a
 * table; k tiers from there on may have none of their own. */
static double times_us(const gac_dtype_rules *rules, int first, int tier_k, const double sizes[3])
{
    const gac_gemm_times *times = sizes[0] <= 1 ? rules->row_times : rules->times;
    int at = first + tier_k;
    while (at > first && !times[at].table.us)
        at--;
    if (!times[at].table.us) { /* nothing apart for one row */
        times = rules->times;
        for (at = first + tier_k; !times[at].table.us;)
            at--;
    }
    const gac_table *dense = at == 0 ? find_dense(rules, sizes[0], sizes[1]) : NULL;
    double us = dense ? dense_us(dense, &times[at], sizes) : NAN;
    return isnan(us) ? plain_us(&times[at], sizes) : us; /* what was too long is not there */
}

/* Kernels for an n of 2 elements load k just as narrowly. They gain from a k of
 * wider loads only where its rows begin at cache lines, as in the table of that
 * k, whose sizes are powers of two; else they take as long as with a k of 2. */
static int narrow_k(const gac_dtype_rules *rules, int tier_n, int tier_k, int64_t k)
{
    const gac_tiers *by_n = &rules->gemm[GAC_OP_GEMM_N].tiers;
    const gac_tiers *by_k = &rules->gemm[GAC_OP_GEMM_K].tiers;
    int64_t multiple = by_n->tier[tier_n].multiple;
    if (tier_n == 0 || multiple == 1 || fmod((double)k * rules->element_bytes, LINE_BYTES) == 0)
        return tier_k;
    for (int t = tier_k + 1; t < by_k->n_tiers; t++)
        if (by_k->tier[t].multiple == multiple && by_k->tier[t].served)
            return t;
    return tier_k;
}

/* us, that of whole lines, and what a k costs that is not: at rows and an n of a table of such
 * a k what that one does, in proportion to k (beyond it less); else what it does on the whole,
 * by m times n. Half is kept, whatever a file says. */
static double part_us(const gac_dtype_rules *rules, int first, int tier_k, const double sizes[3],
                      int64_t k, double us)
{
    int part = gac_lines_part(&rules->lines, k);
    for (int i = 0; i < rules->n_dense_part && part >= 0; i++) {
        const gac_table *t = &rules->dense_part[i];
        const double there[] = { sizes[0], sizes[1], round(exp(t->log_size[2][0])) };
        const double *there_us = gac_table_cell(t, there);
        if (!there_us || isnan(*there_us) ||
            gac_lines_part(&rules->lines, (int64_t)there[2]) != part)
            continue;
        const double whole[] = { there[0], there[1],
                                 gac_lines_whole(&rules->lines, (int64_t)there[2]) };
        double more_us = *there_us - times_us(rules, first, tier_k, whole);
        double as_long = sizes[2] / there[2];
        return fmax(us + more_us * fmin(as_long, pow(as_long, PART_GROWS)), us / 2);
    }
    return us * gac_lines_factor(&rules->lines, sizes[0] * sizes[1], k);
}

static double tables_us(const gac_dtype_rules *rules, int64_t m, int64_t n, int64_t k)
{
    const double sizes[] = { (double)m, (double)n, (double)k };
    const gac_tiers *by_n = &rules->gemm[GAC_OP_GEMM_N].tiers;
    const gac_tiers *by_k = &rules->gemm[GAC_OP_GEMM_K].tiers;
    int tier_n = gac_tiers_pick(by_n, n), tier_k = gac_tiers_pick(by_k, k);
    int first = tier_n * by_k->n_tiers, narrow = narrow_k(rules, tier_n, tier_k, k);
    if (!by_n->tier[tier_n].aligned)
        return times_us(rules, first, narrow, sizes);
    /* k is worked on by the line: a part of one takes as long as all of it. */
    const double whole[] = { sizes[0], sizes[1], gac_lines_whole(&rules->lines, k) };
    return part_us(rules, first, tier_k, sizes, k, times_us(rules, first, narrow, whole));
}

/* How far a table of every k is from the other tables at one of its n, as a logarithm; NaN
 * where nothing was measured. */
static double log_apart(const gac_dtype_rules *rules, const gac_table *table, int64_t m, int64_t k,
                        int at)
{
    double n = round(exp(table->log_size[2][at]));
    const double *us = gac_table_cell(table, (const double[]){ (double)m, (double)k, n });
    return us ? log(*us / tables_us(rules, m, (int64_t)n, k)) : NAN;
}

/* What a table of every k makes of the other tables' time, for its rows and k: at its own n
 * what was measured, between two of them what both say, but for what many rows cost whose k
 * is not of whole lines: n decides that. NaN where it says nothing. */
static double every_k_factor(const gac_dtype_rules *rules, int64_t m, int64_t n, int64_t k)
{
    double x = log((double)n);
    for (int i = 0; i < rules->n_dense_k; i++) {
        const gac_table *t = &rules->dense_k[i];
        const double *log_n = t->log_size[2];
        int last = t->n[2] - 1, at = 0;
        if (!gac_table_has(t, 0, (double)m) || !gac_table_has(t, 1, (double)k) || x < log_n[0] ||
            x > log_n[last])
            continue;
        while (at < last && log_n[at + 1] <= x)
            at++;
        bool between = x > log_n[at];
        if (between && m >= DECODE_ROWS && gac_lines_part(&rules->lines, k) >= 0)
            return NAN;
        double below = log_apart(rules, t, m, k, at), factor = exp(below);
        if (between) {
            double part = (x - log_n[at]) / (log_n[at + 1] - log_n[at]);
            factor = exp((1 - part) * below + part * log_apart(rules, t, m, k, at + 1));
        }
        return isfinite(factor) ? factor : NAN;
    }
    return NAN;
}

double gac_contract_gemm_us(const gac_contract *contract, gac_dtype dtype, int64_t m, int64_t n,
                            int64_t k)
{
    const gac_dtype_rules *rules = gac_contract_rules(contract, dtype);
    if (!rules)
        return NAN;
    if (m <= 0 || n <= 0 || k <= 0)
        return 0;
    const gac_gemm_point *point = find_point(contract, dtype, m, n, k);
    if (point)
        return point->time_us;
    const gac_gemm_place *by_n = &rules->gemm[GAC_OP_GEMM_N];
    const gac_gemm_place *by_k = &rules->gemm[GAC_OP_GEMM_K];
    int tier_n = gac_tiers_pick(&by_n->tiers, n), tier_k = gac_tiers_pick(&by_k->tiers, k);
    if (!by_n->tiers.tier[tier_n].served || !by_k->tiers.tier[tier_k].served)
        return gac_contract_gemm_us(contract, rules->falls_back, m, n, k);
    if (rules->times) {
        double us = tables_us(rules, m, n, k), factor = NAN;
        if (by_n->tiers.tier[tier_n].aligned) /* others have kernels of their own */
            factor = every_k_factor(rules, m, n, k);
        return isnan(factor) ? us : us * factor;
    }
    const gac_gemm_rates *rates_n = &by_n->rates[tier_n], *rates_k = &by_k->rates[tier_k];
    /* One kernel serves both sizes: the one that the worse of them allows. */
    return fmax(tier_us(rates_n, rules->element_bytes, (double)m, (double)n, (double)k),
                tier_us(rates_k, rules->element_bytes, (double)m, (double)n, (double)k));
}

static int order_i64(int64_t a, int64_t b)
{
    return a < b ? -1 : a > b;
}

int gac_sdpa_point_order(const void *a, const void *b)
{
    const gac_sdpa_point *p = a, *q = b;
    const gac_sdpa_shape *s = &p->shape, *t = &q->shape;
    const int64_t left[] = { p->dtype, s->batch,   s->n_q_heads, s->n_kv_heads, s->n_q,
                             s->n_kv,  s->qk_head, s->v_head,    s->causal };
    const int64_t right[] = { q->dtype, t->batch,   t->n_q_heads, t->n_kv_heads, t->n_q,
                              t->n_kv,  t->qk_head, t->v_head,    t->causal };
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        if (left[i] != right[i])
            return order_i64(left[i], right[i]);
    return 0;
}

static const gac_sdpa_point *find_sdpa_point(const gac_contract *contract, gac_dtype dtype,
                                             const gac_sdpa_shape *shape)
{
    gac_sdpa_point key = { .shape = *shape };
    if (contract->n_sdpa_points == 0 || !gac_contract_dtype(contract, dtype, &key.dtype))
        return NULL;
    return bsearch(&key, contract->sdpa_points, contract->n_sdpa_points, sizeof key,
                   gac_sdpa_point_order);
}

static double interpolate(const gac_head_curve *curve, int64_t head)
{
    int low = 0, high = curve->n_points - 1;
    while (high - low > 1) {
        int middle = low + (high - low) / 2;
        if (curve->points[middle].head <= head)
            low = middle;
        else
            high = middle;
    }
    const gac_head_time *a = &curve->points[low], *b = &curve->points[high];
    if (b->head == a->head)
        return a->time_us;
    double part = (double)(head - a->head) / (double)(b->head - a->head);
    return a->time_us + part * (b->time_us - a->time_us);
}

/* Time at the reference shape if this tier served head. The best tier's curve
 * is flat outside its points, since kernels pad to their smallest and largest
 * template; the others follow it there, at the ratio of their nearest point. */
static double head_us(const gac_sdpa_rules *rules, int tier, int64_t head)
{
    const gac_head_curve *curve = &rules->curves[tier];
    int64_t first = curve->points[0].head;
    int64_t last = curve->points[curve->n_points - 1].head;
    int64_t inside = head < first ? first : head > last ? last : head;
    double own_us = interpolate(curve, inside);
    if (inside == head || tier == 0)
        return own_us;
    return own_us * head_us(rules, 0, head) / head_us(rules, 0, inside);
}

/* Number of (query, key) pairs; causal, the last query sees every key. */
static double n_pairs(double batch, double n_heads, double n_q, double n_kv, bool causal)
{
    double pairs = n_q * n_kv;
    if (causal)
        pairs = fmax(pairs - n_q * (n_q - 1) / 2, pairs / 2);
    return batch * n_heads * pairs;
}

/* Part of the curve that grows with the pairs: without the launch, and without
 * the copies into padded buffers. A tenth is kept, whatever a file says. */
static double core_us(const gac_sdpa_rules *rules, double element_bytes, int tier,
                      const gac_sdpa_shape *shape)
{
    double curve_us =
        (head_us(rules, tier, shape->qk_head) + head_us(rules, tier, shape->v_head)) / 2;
    double pad_us = 0;
    if (rules->pad_bytes_per_s[tier] > 0) {
        double per_head = rules->ref_n_q * (double)shape->qk_head +
                          rules->ref_n_kv * (double)(shape->qk_head + shape->v_head);
        pad_us = rules->ref_batch * rules->ref_n_heads * per_head * element_bytes /
                 rules->pad_bytes_per_s[tier] * US_PER_S;
    }
    return fmax(curve_us - pad_us - rules->decode_overhead_us, curve_us / 10);
}

/* How much the curve, which has every head size, says a head differs from what
 * the table's coarser heads would give. */
static double curve_factor(const gac_sdpa_rules *rules, int tier, const gac_table *table,
                           int64_t head)
{
    const double *heads = table->log_size[2];
    int n = table->n[2], i = 0;
    double x = log((double)head);
    if (n < 2 || x <= heads[0] || x >= heads[n - 1])
        return 1;
    while (heads[i + 1] < x)
        i++;
    double below_us = head_us(rules, tier, llround(exp(heads[i])));
    double above_us = head_us(rules, tier, llround(exp(heads[i + 1])));
    double part = (x - heads[i]) / (heads[i + 1] - heads[i]);
    return head_us(rules, tier, head) / (pow(below_us, 1 - part) * pow(above_us, part));
}

/* A query row or a few for each key head: what streams the keys decides. */
#define DECODE_QUERIES 64

static double table_sdpa_us(const gac_sdpa_rules *rules, double element_bytes, int tier,
                            const gac_sdpa_shape *shape, int64_t head)
{
    double batch = (double)shape->batch;
    if (shape->n_q < shape->n_kv &&
        shape->n_q * (shape->n_q_heads / shape->n_kv_heads) <= DECODE_QUERIES) {
        const double sizes[] = { batch * (double)shape->n_kv_heads, (double)shape->n_kv,
                                 (double)head };
        return gac_table_us(&rules->decode[tier], &gac_decode_table, sizes);
    }
    /* The square (or triangle) of as many pairs. */
    double pairs = n_pairs(1, 1, (double)shape->n_q, (double)shape->n_kv, shape->causal);
    double length = shape->causal ? (sqrt(8 * pairs + 1) - 1) / 2 : sqrt(pairs);
    const gac_prefill_times *times = &rules->prefill[tier][shape->causal];
    length = ceil(length / times->tile) * times->tile;
    const double sizes[] = { batch * (double)shape->n_q_heads, length, (double)head };
    double us = gac_table_us(&times->table, &gac_prefill_table, sizes) *
                gac_prefill_waste(times, sizes[0], length) *
                curve_factor(rules, tier, &times->table, head);
    /* The table has as many heads of keys as of queries. Half is kept, whatever a
     * file says. */
    if (rules->pad_bytes_per_s[tier] > 0 && shape->n_q_heads > shape->n_kv_heads) {
        double fewer = batch * (double)(shape->n_q_heads - shape->n_kv_heads) *
                       (double)shape->n_kv * 2 * (double)head * element_bytes;
        us = fmax(us - fewer / rules->pad_bytes_per_s[tier] * US_PER_S, us / 2);
    }
    return us;
}

/* The curve scaled by pairs, or the time to stream q, k, v and the output if
 * that is longer, as in decode; plus the launch, and for a tier that pads the
 * copies of q, k and v on every call. */
double gac_contract_sdpa_us(const gac_contract *contract, gac_dtype dtype,
                            const gac_sdpa_shape *shape)
{
    const gac_dtype_rules *all = gac_contract_rules(contract, dtype);
    if (!all)
        return NAN;
    if (shape->batch <= 0 || shape->n_q_heads <= 0 || shape->n_kv_heads <= 0 || shape->n_q <= 0 ||
        shape->n_kv <= 0 || shape->qk_head <= 0 || shape->v_head <= 0)
        return 0;
    const gac_sdpa_point *point = find_sdpa_point(contract, dtype, shape);
    if (point)
        return point->time_us;
    const gac_sdpa_rules *rules = &all->sdpa;
    double batch = (double)shape->batch, n_q = (double)shape->n_q, n_kv = (double)shape->n_kv;
    double q_heads = (double)shape->n_q_heads, kv_heads = (double)shape->n_kv_heads;
    double qk_head = (double)shape->qk_head, v_head = (double)shape->v_head;
    double scale = n_pairs(batch, q_heads, n_q, n_kv, shape->causal) /
                   n_pairs(rules->ref_batch, rules->ref_n_heads, rules->ref_n_q, rules->ref_n_kv,
                           rules->ref_causal);
    double kv_bytes = batch * kv_heads * n_kv * (qk_head + v_head) * all->element_bytes;
    double q_bytes = batch * q_heads * n_q * qk_head * all->element_bytes;
    double out_bytes = batch * q_heads * n_q * v_head * all->element_bytes;
    double stream_us = (kv_bytes + q_bytes + out_bytes) / rules->decode_bytes_per_s * US_PER_S;
    double launch_us = rules->decode_overhead_us;

    if (shape->qk_head > rules->max_head || shape->v_head > rules->max_head) {
        double at_reference =
            rules->beyond_base_us + rules->beyond_slope_us * (qk_head + v_head) / 2;
        return launch_us + fmax(at_reference * scale, stream_us);
    }
    int tier_qk = gac_tiers_pick(&rules->tiers, shape->qk_head);
    int tier_v = gac_tiers_pick(&rules->tiers, shape->v_head);
    int tier = tier_qk > tier_v ? tier_qk : tier_v;
    if (rules->has_tables)
        return (table_sdpa_us(rules, all->element_bytes, tier, shape, shape->qk_head) +
                table_sdpa_us(rules, all->element_bytes, tier, shape, shape->v_head)) /
               2;
    double pad_us = 0;
    if (rules->pad_bytes_per_s[tier] > 0)
        pad_us = (q_bytes + kv_bytes) / rules->pad_bytes_per_s[tier] * US_PER_S;
    return launch_us + fmax(core_us(rules, all->element_bytes, tier, shape) * scale, stream_us) +
           pad_us;
}

static double ratio(double time_us, double aligned_us)
{
    return aligned_us > 0 ? fmax(time_us / aligned_us, 1) : 1;
}

static void judge_gemm(const gac_contract *contract, gac_op_axis seen, gac_dtype dtype,
                       int64_t size, int64_t aligned, int64_t n_rows, int64_t other,
                       gac_judgement *out)
{
    bool is_n = seen == GAC_OP_GEMM_N;
    double time_us =
        gac_contract_gemm_us(contract, dtype, n_rows, is_n ? size : other, is_n ? other : size);
    double aligned_us = gac_contract_gemm_us(contract, dtype, n_rows, is_n ? aligned : other,
                                             is_n ? other : aligned);
    out->penalty = ratio(time_us, aligned_us);
    if (find_point(contract, dtype, n_rows, is_n ? size : other, is_n ? other : size))
        out->basis = "measured";
}

static void judge_head(const gac_sdpa_rules *rules, int64_t size, int64_t aligned,
                       gac_judgement *out)
{
    if (aligned > rules->max_head) {
        if (size > rules->max_head) {
            out->tier = rules->tiers.n_tiers;
            out->kernel = rules->beyond_kernel;
            out->family = rules->beyond_family;
            out->basis = rules->beyond_basis;
        }
        return; /* no size above is served better */
    }
    out->penalty = ratio(head_us(rules, out->tier, size),
                         head_us(rules, gac_tiers_pick(&rules->tiers, aligned), aligned));
}

gac_status gac_contract_judge(const gac_contract *contract, gac_op_axis seen, gac_dtype dtype,
                              int64_t size, int64_t n_rows, int64_t other, gac_judgement *out,
                              gac_error *err)
{
    const gac_dtype_rules *rules = gac_contract_rules(contract, dtype);
    if (!rules)
        return gac_error_set(err, GAC_USAGE, "contract %s has no rules for this dtype",
                             contract->name);
    bool is_head = seen == GAC_OP_SDPA_HEAD;
    int64_t aligned;
    if ((int)seen < 0 || seen >= GAC_OP_AXIS_COUNT || size < 1 ||
        !gac_round_up_i64(size, gac_contract_multiple(contract, seen, dtype), &aligned) ||
        (!is_head && (n_rows < 1 || other < 1)))
        return gac_error_set(err, GAC_USAGE, "contract %s: no judgement of size %lld",
                             contract->name, (long long)size);
    const gac_tiers *tiers = is_head ? &rules->sdpa.tiers : &rules->gemm[seen].tiers;
    int index = gac_tiers_pick(tiers, size);
    const gac_tier *own = &tiers->tier[index], *tier = own; /* tier is what runs */
    const gac_tiers *instead = gac_contract_instead(contract, rules, seen, index);
    if (instead)
        tier = &instead->tier[gac_tiers_pick(instead, size)];
    *out = (gac_judgement){ .aligned = own->aligned,
                            .tier = index,
                            .served = !instead,
                            .multiple = own->multiple,
                            .penalty = 1,
                            .kernel = tier->kernel,
                            .family = tier->family,
                            .basis = tier->basis };
    gac_contract_dtype(contract, instead ? rules->falls_back : dtype, &out->runs_as);
    if (instead)
        gac_lcm_i64(own->multiple, tier->multiple, &out->multiple);
    if (is_head) {
        judge_head(&rules->sdpa, size, aligned, out);
        return GAC_OK;
    }
    if (n_rows < DECODE_ROWS)
        out->basis = tier->decode_basis;
    if (n_rows == 1) {
        out->kernel = tier->decode_kernel;
        out->family = tier->decode_family;
    }
    /* The other axis is taken as aligned, so that only this size is judged. */
    gac_op_axis facing = seen == GAC_OP_GEMM_N ? GAC_OP_GEMM_K : GAC_OP_GEMM_N;
    int64_t other_aligned;
    if (!gac_round_up_i64(other, gac_contract_multiple(contract, facing, dtype), &other_aligned))
        other_aligned = other;
    judge_gemm(contract, seen, dtype, size, aligned, n_rows, other_aligned, out);
    return GAC_OK;
}
