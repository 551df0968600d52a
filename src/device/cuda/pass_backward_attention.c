/* Attention of one sequence, forward and back. A product computes all heads, for a block of
 * queries, so that scores need little memory. The queries of a group are rows of one matrix
 * for each kv head. So the products sum the gradients of k and v over the group. */
#include "pass_backward.h"

/* A block has at most so many queries, and fewer if their scores and the gradients of these
 * would take more than so many bytes. */
enum { MOST_QUERIES = 256 };
#define MOST_BYTES ((int64_t)1 << 30)

static int64_t queries_each(const gac_backward_layer *job)
{
    const int64_t each = 2 * (int64_t)sizeof(float) * job->n_q_heads * job->n_tokens;
    const int64_t room = MOST_BYTES / each > 1 ? MOST_BYTES / each : 1;
    const int64_t most = room < MOST_QUERIES ? room : MOST_QUERIES;
    return most < job->n_tokens ? most : job->n_tokens;
}

void gac_backward_take_attention(gac_backward_run *r)
{
    gac_algebra *s = &r->s;
    const gac_backward_layer *job = r->job;
    const int64_t n = job->n_tokens, n_q = job->n_q_heads, n_kv = job->n_kv_heads;
    r->n_queries = queries_each(job);
    r->q = gac_backward_floats(s, n, n_q * job->qk_size);
    r->q_turned = gac_backward_floats(s, n, n_q * job->qk_size);
    r->k = gac_backward_floats(s, n, n_kv * job->qk_size);
    r->k_turned = gac_backward_floats(s, n, n_kv * job->qk_size);
    r->k_gradient = gac_backward_floats(s, n, n_kv * job->qk_size);
    r->v = gac_backward_floats(s, n, n_kv * job->v_size);
    r->v_gradient = gac_backward_floats(s, n, n_kv * job->v_size);
    r->out = gac_backward_floats(s, n, n_q * job->v_size);
    r->sorted_out = gac_backward_floats(s, n, n_q * job->v_size);
    r->shares = gac_backward_floats(s, n_q * r->n_queries, n);
    r->score_gradient = gac_backward_floats(s, n_q * r->n_queries, n);
}

static void turn(gac_backward_run *r, bool of_q, float *turned, bool reverse)
{
    const gac_backward_layer *job = r->job;
    cudaStream_t stream = r->s.c->cuda->stream;
    const gac_turn_args args = { .x = of_q ? r->q : r->k,
                                 .turned = turned,
                                 .n_tokens = job->n_tokens,
                                 .n_kv_heads = job->n_kv_heads,
                                 .group = of_q ? r->group : 1,
                                 .size = job->qk_size,
                                 .norm = of_q ? r->q_norm : r->k_norm,
                                 .eps = job->eps,
                                 .cosines = r->cosines,
                                 .sines = r->sines };
    if (r->s.status == GAC_OK)
        gac_algebra_check(&r->s, reverse ? gac_turn_back_launch(&args, stream, r->s.err)
                                         : gac_turn_launch(&args, stream, r->s.err));
}

static void swap(gac_backward_run *r, const float *from, float *to, int64_t n_a, int64_t n_b)
{
    if (r->s.status == GAC_OK)
        gac_algebra_check(&r->s, gac_swap_launch(from, to, n_a, n_b, r->group * r->job->v_size,
                                                 r->s.c->cuda->stream, r->s.err));
}

/* A block of queries, and the matrices of its products: one for each kv head, whose rows are
 * the queries of the group. */
typedef struct score_block {
    gac_scores scores;
    int64_t n_rows;                             /* n_queries * group */
    gac_backward_matrix q, k, v, out;           /* (n_rows or n_keys, size) */
    gac_backward_matrix shares, score_gradient; /* (n_rows, n_keys) */
} score_block;

static score_block block_at(const gac_backward_run *r, int64_t first)
{
    const gac_backward_layer *job = r->job;
    const int64_t n = job->n_tokens, left = n - first, group = r->group;
    const int64_t n_queries = left < r->n_queries ? left : r->n_queries;
    const int64_t n_keys = first + n_queries, n_rows = n_queries * group;
    const int64_t qk = job->qk_size, v = job->v_size;
    return (score_block){
        .scores = { .shares = r->shares,
                    .gradient = r->score_gradient,
                    .n_kv_heads = job->n_kv_heads,
                    .n_queries = n_queries,
                    .group = group,
                    .n_keys = n_keys,
                    .first = first,
                    .window = job->window,
                    .scale = job->scale },
        .n_rows = n_rows,
        .q = { r->q_turned + first * group * qk, qk, n * group * qk, false },
        .k = { r->k_turned, qk, n * qk, false },
        .v = { r->v, job->n_kv_heads * v, v, false },
        .out = { r->sorted_out + first * group * v, v, n * group * v, false },
        .shares = { r->shares, n_keys, n_rows * n_keys, false },
        .score_gradient = { r->score_gradient, n_keys, n_rows * n_keys, false },
    };
}

static gac_backward_matrix transposed(gac_backward_matrix m)
{
    m.transposed = true;
    return m;
}

/* c = alpha a b + beta c for all kv heads. */
static void multiply(gac_backward_run *r, int64_t m, int64_t n, int64_t k, float alpha,
                     gac_backward_matrix a, gac_backward_matrix b, float beta,
                     gac_backward_matrix c)
{
    const gac_backward_product product = { .n_batch = r->job->n_kv_heads,
                                           .m = m,
                                           .n = n,
                                           .k = k,
                                           .alpha = alpha,
                                           .beta = beta,
                                           .a = a,
                                           .b = b,
                                           .c = c };
    gac_backward_multiply(&r->s, &product);
}

/* Sets shares. */
static void fill_shares(gac_backward_run *r, const score_block *b)
{
    multiply(r, b->n_rows, b->scores.n_keys, r->job->qk_size, (float)r->job->scale, b->q,
             transposed(b->k), 0, b->shares);
    if (r->s.status == GAC_OK)
        gac_algebra_check(&r->s, gac_shares_launch(&b->scores, r->s.c->cuda->stream, r->s.err));
}

void gac_backward_attend(gac_backward_run *r)
{
    const gac_backward_layer *job = r->job;
    turn(r, true, r->q_turned, false);
    turn(r, false, r->k_turned, false);
    for (int64_t first = 0; first < job->n_tokens; first += r->n_queries) {
        const score_block b = block_at(r, first);
        fill_shares(r, &b);
        multiply(r, b.n_rows, job->v_size, b.scores.n_keys, 1, b.shares, b.v, 0, b.out);
    }
    swap(r, r->sorted_out, r->out, job->n_kv_heads, job->n_tokens);
}

/* The gradient of the queries replaces them: later blocks do not read them. */
static void block_back(gac_backward_run *r, int64_t first)
{
    const gac_backward_layer *job = r->job;
    const score_block b = block_at(r, first);
    const int64_t n_keys = b.scores.n_keys, qk = job->qk_size, v = job->v_size;
    gac_backward_matrix k_gradient = b.k, v_gradient = b.v;
    k_gradient.at = r->k_gradient;
    v_gradient.at = r->v_gradient;
    fill_shares(r, &b);
    multiply(r, b.n_rows, n_keys, v, 1, b.out, transposed(b.v), 0, b.score_gradient);
    multiply(r, n_keys, v, b.n_rows, 1, transposed(b.shares), b.out, 1, v_gradient);
    if (r->s.status == GAC_OK)
        gac_algebra_check(&r->s, gac_shares_back_launch(&b.scores, r->s.c->cuda->stream, r->s.err));
    multiply(r, n_keys, qk, b.n_rows, 1, transposed(b.score_gradient), b.q, 1, k_gradient);
    multiply(r, b.n_rows, qk, n_keys, 1, b.score_gradient, b.k, 0, b.q);
}

void gac_backward_attend_back(gac_backward_run *r)
{
    const gac_backward_layer *job = r->job;
    const size_t n = (size_t)(job->n_tokens * job->n_kv_heads) * sizeof(float);
    swap(r, r->out, r->sorted_out, job->n_tokens, job->n_kv_heads);
    gac_algebra_clear(&r->s, r->k_gradient, n * (size_t)job->qk_size);
    gac_algebra_clear(&r->s, r->v_gradient, n * (size_t)job->v_size);
    for (int64_t first = 0; first < job->n_tokens; first += r->n_queries)
        block_back(r, first);
    turn(r, true, r->q_turned, true);
    turn(r, false, r->k_gradient, true);
}
