/* Shares the parameters out. Every attention block and every MLP is one decision: all of its
 * matrices may stay, each may take a rank, or the block may keep fewer heads or channels. The
 * exact solver of plan picks one choice for each block. */
#include "compress/compress_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Choices of a block, and ranks of a matrix where any rank may be chosen. Both are primes, so that
 * evenly spaced sizes are aligned no more often than any others. */
enum { MAX_CHOICES = 509, N_ANY_RANKS = 127, MAX_MATRICES = 4 };

/* One choice for a block. */
typedef struct option {
    int64_t cost; /* see costs.c */
    double loss;
    int64_t rank[MAX_MATRICES]; /* 0: dense */
    double rank_loss[MAX_MATRICES];
    int64_t groups; /* channels or heads that are kept; 0: all */
} option;

typedef struct options {
    option *items;
    size_t n;
} options;

/* The matrices of a block, and the kind of its channels. The last matrix reads the channels. */
typedef struct block {
    gac_projection first;
    int n_matrices;
    int kind;
} block;

static const block blocks[] = { { GAC_PROJECTION_Q, 4, CHANNELS_HEADS },
                                { GAC_PROJECTION_GATE, 3, CHANNELS_WIDTH } };
enum { N_BLOCKS = sizeof blocks / sizeof *blocks };

static int by_cost(const void *a, const void *b)
{
    const option *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? -1 : 1;
    return x->loss < y->loss ? -1 : x->loss > y->loss;
}

/* Drops choices that cost no less than another and lose no less. Of those that are left, at
 * most MAX_CHOICES stay: the best one for each of as many steps of cost, and the cheapest. */
static void prune(options *all)
{
    double least = INFINITY;
    size_t kept = 0;
    qsort(all->items, all->n, sizeof *all->items, by_cost);
    for (size_t i = 0; i < all->n; i++)
        if (all->items[i].loss < least) {
            least = all->items[i].loss;
            all->items[kept++] = all->items[i];
        }
    all->n = kept;
    if (kept <= MAX_CHOICES)
        return;
    int64_t low = all->items[0].cost, range = all->items[kept - 1].cost - low + 1;
    size_t n = 0;
    for (size_t i = 0; i < kept; i++) {
        int64_t step = (all->items[i].cost - low) * MAX_CHOICES / range;
        bool same = i + 1 < kept && (all->items[i + 1].cost - low) * MAX_CHOICES / range == step;
        if (!same || i == 0)
            all->items[n++] = all->items[i];
    }
    all->n = n;
}

/* All choices for one matrix. */
static gac_status matrix_options(const compression *c, const matrix_stats *m, int index,
                                 options *out)
{
    size_t n = 0;
    int64_t *ranks = compress_candidates(c, m->energy ? m->n_basis : 0, N_ANY_RANKS, &n);
    out->items = calloc(n + 1, sizeof *out->items);
    out->n = 0;
    if (!ranks || !out->items) {
        free(ranks);
        return gac_error_no_memory(c->err);
    }
    const int64_t dense = compress_matrix_cost(c, m->n_out, m->n_in);
    out->items[out->n++] = (option){ .cost = dense };
    for (size_t i = 0; i < n; i++) {
        option *o = &out->items[out->n];
        const int64_t cost = compress_matrix_cost(c, m->n_parts * ranks[i], m->n_in) +
                             m->n_parts * compress_matrix_cost(c, m->n_out / m->n_parts, ranks[i]);
        if (cost >= dense)
            continue;
        *o = (option){ .cost = cost, .loss = m->scale * compress_rank_loss(m, ranks[i]) };
        o->rank[index] = ranks[i];
        o->rank_loss[index] = o->loss;
        out->n++;
    }
    free(ranks);
    return GAC_OK;
}

/* Makes every pair of a choice of a and one of b, and prunes; a becomes the result. */
static gac_status combine(const compression *c, options *a, const options *b)
{
    option *pairs = calloc(a->n * b->n + 1, sizeof *pairs);
    size_t n = 0;
    if (!pairs)
        return gac_error_no_memory(c->err);
    for (size_t i = 0; i < a->n; i++)
        for (size_t j = 0; j < b->n; j++) {
            option *pair = &pairs[n++];
            *pair = a->items[i];
            pair->cost += b->items[j].cost;
            pair->loss += b->items[j].loss;
            for (int k = 0; k < MAX_MATRICES; k++)
                if (b->items[j].rank[k]) {
                    pair->rank[k] = b->items[j].rank[k];
                    pair->rank_loss[k] = b->items[j].rank_loss[k];
                }
        }
    free(a->items);
    *a = (options){ pairs, n };
    prune(a);
    return GAC_OK;
}

/* The sizes of a block's matrix if the block keeps some of its groups: outputs of all but the
 * last one go, and inputs of the last one. */
static void cut_sizes(const layer_stats *l, const block *b, int index, int64_t n_groups,
                      int64_t *n_out, int64_t *n_in)
{
    const matrix_stats *m = &l->matrix[b->first + (gac_projection)index];
    const int64_t all = l->channels[b->kind].n_groups;
    const bool is_last = index == b->n_matrices - 1;
    *n_out = is_last ? m->n_out : m->n_out / all * n_groups;
    *n_in = is_last ? m->n_in / all * n_groups : m->n_in;
}

static int64_t cut_params(const layer_stats *l, const block *b, int64_t n_groups)
{
    int64_t sum = 0, n_out, n_in;
    for (int i = 0; i < b->n_matrices; i++) {
        cut_sizes(l, b, i, n_groups, &n_out, &n_in);
        sum += n_out * n_in;
    }
    return sum;
}

static int64_t cut_cost(const compression *c, int32_t layer, const block *b, int64_t n_groups)
{
    int64_t sum = 0, n_out, n_in;
    for (int i = 0; i < b->n_matrices; i++) {
        cut_sizes(&c->layers[layer], b, i, n_groups, &n_out, &n_in);
        sum += compress_matrix_cost(c, n_out, n_in);
    }
    return sum + compress_inner_cost(c, layer, b->kind, n_groups);
}

/* Adds the choices that keep fewer channels or heads. */
static gac_status add_cuts(const compression *c, int32_t layer, const block *b, options *all)
{
    const channel_stats *s = &c->layers[layer].channels[b->kind];
    size_t n = 0;
    if (!s->order)
        return GAC_OK;
    int64_t *sizes =
        b->kind == CHANNELS_WIDTH ? compress_candidates(c, s->n_groups - 1, s->n_groups, &n) : NULL;
    if (b->kind == CHANNELS_HEADS) { /* any number: a head's size stays */
        n = (size_t)s->n_groups - 1;
        sizes = calloc(n + 1, sizeof *sizes);
        for (size_t i = 0; sizes && i < n; i++)
            sizes[i] = (int64_t)i + 1;
    }
    option *more = sizes ? realloc(all->items, (all->n + n + 1) * sizeof *more) : NULL;
    if (!more) {
        free(sizes);
        return gac_error_no_memory(c->err);
    }
    all->items = more;
    if (n > 0 && b->kind == CHANNELS_WIDTH && c->options->align == GAC_ALIGN_CONTRACT &&
        !compress_is_aligned(c, s->n_groups))
        all->n = 0; /* a width that is not aligned may not stay */
    for (size_t i = 0; i < n; i++)
        all->items[all->n++] = (option){ .cost = cut_cost(c, layer, b, sizes[i]),
                                         .loss = s->scale * compress_channel_loss(s, sizes[i]),
                                         .groups = sizes[i] };
    free(sizes);
    prune(all);
    return GAC_OK;
}

static gac_status block_options(const compression *c, int32_t layer, const block *b, options *out)
{
    const layer_stats *l = &c->layers[layer];
    const int64_t inner = compress_inner_cost(c, layer, b->kind, l->channels[b->kind].n_groups);
    gac_status status = matrix_options(c, &l->matrix[b->first], 0, out);
    for (int i = 1; i < b->n_matrices && status == GAC_OK; i++) {
        options next = { 0 };
        status = matrix_options(c, &l->matrix[b->first + (gac_projection)i], i, &next);
        if (status == GAC_OK)
            status = combine(c, out, &next);
        free(next.items);
    }
    for (size_t i = 0; i < out->n && status == GAC_OK; i++)
        out->items[i].cost += inner;
    return status == GAC_OK ? add_cuts(c, layer, b, out) : status;
}

static void take(const option *o, const block *b, layer_choice *choice)
{
    for (int i = 0; i < b->n_matrices; i++) {
        choice->rank[b->first + (gac_projection)i] = o->rank[i];
        choice->loss[b->first + (gac_projection)i] = o->rank_loss[i];
    }
    *(b->kind == CHANNELS_WIDTH ? &choice->width : &choice->heads) = o->groups;
    choice->block_loss[b->kind] = o->groups ? o->loss : 0;
}

int64_t compress_layer_params(const layer_stats *l, const layer_choice *choice)
{
    int64_t sum = 0;
    for (int k = 0; k < N_BLOCKS; k++) {
        const block *b = &blocks[k];
        const int64_t groups = b->kind == CHANNELS_WIDTH ? choice->width : choice->heads;
        if (groups)
            sum += cut_params(l, b, groups);
        for (int i = 0; i < b->n_matrices && !groups; i++) {
            const matrix_stats *m = &l->matrix[b->first + (gac_projection)i];
            const int64_t rank = choice->rank[b->first + (gac_projection)i];
            sum += rank ? compress_rank_params(m, rank) : m->n_out * m->n_in;
        }
    }
    return sum;
}

/* Says what can be reached. */
static gac_status refuse_budget(const compression *c, int64_t budget, int64_t least,
                                const gac_compress_result *result)
{
    if (c->options->max_time_ms > 0) /* in microseconds, so that what is said can be reached */
        return gac_error_set(
            c->err, GAC_USAGE, "%.3f ms are asked for, but the fastest choices take %.3f",
            c->options->max_time_ms,
            ceil(1e3 * c->options->max_time_ms + (double)(least - budget) / 1e3) / 1e3);
    const double removed = 1e3 * (double)(result->params_before - least);
    if (removed <= 0)
        return gac_error_set(c->err, GAC_USAGE, "no choice makes the blocks' linear weights fewer");
    return gac_error_set(
        c->err, GAC_USAGE,
        "%lld parameters of the blocks' linear weights are asked for, but the smallest choices "
        "have %lld: a ratio of at most %.3f can be reached, of the whole model %.3f",
        (long long)budget, (long long)least, floor(removed / (double)result->params_before) / 1e3,
        floor(removed / (double)result->total_before) / 1e3);
}

/* Plain SVD and SVD-LLM give every matrix the same share of its parameters. */
static gac_status share_evenly(compression *c, gac_compress_result *result)
{
    int64_t fixed = 0;   /* parameters of what stays dense */
    double smallest = 0; /* share that can be kept of each matrix */
    for (int32_t l = 0; l < c->n_layers; l++)
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
            const matrix_stats *m = &c->layers[l].matrix[p];
            const int64_t n = m->n_out * m->n_in;
            const int64_t least = compress_rank_params(m, compress_smallest(c));
            fixed += m->energy ? 0 : n;
            smallest = fmax(smallest, m->energy ? (double)least / (double)n : 0);
        }
    const double all = (double)(result->params_before - fixed);
    const double keep = (double)(result->budget_params - fixed) / fmax(all, 1);
    if (keep < smallest || all < 1)
        return refuse_budget(c, result->budget_params, fixed + (int64_t)ceil(smallest * all),
                             result);
    for (int32_t l = 0; l < c->n_layers; l++)
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
            const matrix_stats *m = &c->layers[l].matrix[p];
            if (!m->energy)
                continue;
            const int64_t rank = compress_round_down(c, compress_share_rank(m, keep));
            c->choices[l].rank[p] = rank;
            c->choices[l].loss[p] = compress_rank_loss(m, rank);
            result->objective += c->choices[l].loss[p];
        }
    return GAC_OK;
}

/* Gives a matrix the smallest share that loses no more than limit, or all. */
static void take_share(const compression *c, const matrix_stats *m, double limit, int64_t *rank,
                       double *loss)
{
    *rank = 0;
    *loss = 0;
    for (int i = 0; i < N_SHARES && m->energy && *rank == 0; i++) {
        const int64_t of_share = compress_share_rank(m, (i + 1) / (N_SHARES + 1.0));
        if (m->tried[i] > limit)
            continue;
        *rank = compress_round_down(c, of_share);
        *loss = *rank ? m->tried[i] : 0;
    }
}

/* Takes the smallest shares below limit, and returns how many parameters are left. */
static int64_t take_shares(compression *c, double limit, double *loss)
{
    int64_t sum = 0;
    *loss = 0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        layer_choice *choice = &c->choices[l];
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
            take_share(c, &c->layers[l].matrix[p], limit, &choice->rank[p], &choice->loss[p]);
            *loss += choice->loss[p];
        }
        sum += compress_layer_params(&c->layers[l], choice);
    }
    return sum;
}

static int by_number(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return x < y ? -1 : x > y;
}

/* ASVD's search: the least limit of loss, the same for all matrices, that meets the budget if
 * each matrix takes its smallest share within it. */
static gac_status search_limit(compression *c, gac_compress_result *result)
{
    const size_t n = (size_t)c->n_layers * GAC_PROJECTION_COUNT * N_SHARES;
    double *limits = calloc(n + 1, sizeof *limits);
    size_t low = 0, high = n - 1; /* the answer is between them */
    if (!limits)
        return gac_error_no_memory(c->err);
    for (size_t i = 0; i < n; i++) {
        const size_t matrix = i / N_SHARES, l = matrix / GAC_PROJECTION_COUNT;
        limits[i] = c->layers[l].matrix[matrix % GAC_PROJECTION_COUNT].tried[i % N_SHARES];
    }
    qsort(limits, n, sizeof *limits, by_number);
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (take_shares(c, limits[middle], &result->objective) <= result->budget_params)
            high = middle;
        else
            low = middle + 1;
    }
    const int64_t least = take_shares(c, limits[high], &result->objective);
    free(limits);
    return least > result->budget_params ? refuse_budget(c, result->budget_params, least, result)
                                         : GAC_OK;
}

static gac_status solve(compression *c, const options *all, int32_t n, gac_compress_result *result)
{
    gac_choice_class *classes = calloc((size_t)n, sizeof *classes);
    int32_t *picks = calloc((size_t)n, sizeof *picks);
    gac_choice *choices = NULL;
    size_t n_choices = 0;
    int64_t least = 0, budget = result->budget_params;
    gac_solution solution = { 0 };
    for (int32_t i = 0; i < n; i++) {
        n_choices += all[i].n;
        least += all[i].items[0].cost;
    }
    choices = calloc(n_choices + 1, sizeof *choices);
    gac_status status = classes && picks && choices ? GAC_OK : gac_error_no_memory(c->err);
    gac_choice *next = choices;
    for (int32_t i = 0; i < n && status == GAC_OK; i++) {
        classes[i] = (gac_choice_class){ next, (int32_t)all[i].n };
        for (size_t k = 0; k < all[i].n; k++)
            *next++ = (gac_choice){ all[i].items[k].cost, all[i].items[k].loss };
    }
    if (status == GAC_OK && c->options->max_time_ms > 0)
        status = compress_time_budget(c, &budget);
    if (status == GAC_OK && least > budget)
        status = refuse_budget(c, budget, least, result);
    if (status == GAC_OK)
        status = gac_solve(classes, n, budget, NULL, picks, &solution, c->err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++)
        take(&all[i].items[picks[i]], &blocks[i % N_BLOCKS], &c->choices[i / N_BLOCKS]);
    result->optimal = solution.optimal;
    result->objective = solution.value;
    result->bound = solution.bound;
    free(classes);
    free(picks);
    free(choices);
    return status;
}

gac_status compress_allocate(compression *c, gac_compress_result *result)
{
    const int32_t n = c->n_layers * N_BLOCKS;
    if (c->options->method == GAC_COMPRESS_ASVD)
        return search_limit(c, result);
    if (!compress_is_exact(c))
        return share_evenly(c, result);
    options *all = calloc((size_t)n, sizeof *all);
    gac_status status = all ? GAC_OK : gac_error_no_memory(c->err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++)
        status = block_options(c, i / N_BLOCKS, &blocks[i % N_BLOCKS], &all[i]);
    if (status == GAC_OK)
        status = solve(c, all, n, result);
    for (int32_t i = 0; all && i < n; i++)
        free(all[i].items);
    free(all);
    return status;
}

/* Gives every curve that will be measured a flat one, so that only costs count; or frees them. */
static gac_status set_flat_curves(compression *c, bool there)
{
    bool have = true;
    for (int32_t l = 0; l < c->n_layers; l++) {
        for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
            matrix_stats *m = &c->layers[l].matrix[p];
            free(m->energy);
            m->energy = NULL;
            m->n_basis = there ? compress_break_even(m) : 0;
            if (there && compress_may_factor(c, l, (gac_projection)p))
                have = (m->energy = calloc((size_t)(m->n_parts * m->n), sizeof *m->energy)) && have;
        }
        for (int k = 0; k < CHANNELS_COUNT; k++) {
            channel_stats *s = &c->layers[l].channels[k];
            free(s->order);
            free(s->loss);
            s->order = NULL;
            s->loss = NULL;
            if (!there || !compress_may_cut(c, l, k))
                continue;
            s->order = calloc((size_t)s->n_groups, sizeof *s->order);
            s->loss = calloc((size_t)s->n_groups + 1, sizeof *s->loss);
            have = have && s->order && s->loss;
        }
    }
    return have ? GAC_OK : gac_error_no_memory(c->err);
}

gac_status compress_check_budget(compression *c, const gac_compress_result *result)
{
    gac_compress_result unused = *result;
    gac_status status = set_flat_curves(c, true);
    if (status == GAC_OK)
        status = compress_allocate(c, &unused);
    set_flat_curves(c, false);
    memset(c->choices, 0, (size_t)c->n_layers * sizeof *c->choices);
    return status;
}
