/* Choosing experts on the CPU. */
#include "device/cpu/compute_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define ROWS_PER_ITEM 16

void gac_cpu_routing_free(void *state, gac_routing *routing)
{
    (void)state;
    if (!routing)
        return;
    free(routing->starts);
    free(routing->rows);
    free(routing->weights);
    free(routing->chosen);
    free(routing->shares);
    free(routing);
}

gac_status gac_cpu_routing_create(void *state, int64_t n_experts, int64_t n_chosen,
                                  gac_routing **out, gac_error *err)
{
    const gac_cpu_compute *compute = state;
    size_t n = (size_t)compute->max_rows * (size_t)n_chosen;
    gac_routing *routing = calloc(1, sizeof *routing);
    if (!routing)
        return gac_error_no_memory(err);
    *routing = (gac_routing){ .n_experts = n_experts,
                              .max_experts = n_experts,
                              .n_chosen = n_chosen,
                              .starts = calloc((size_t)n_experts + 1, sizeof(int64_t)),
                              .rows = calloc(n, sizeof(int32_t)),
                              .weights = calloc(n, sizeof(float)),
                              .chosen = calloc(n, sizeof(int32_t)),
                              .shares = calloc(n, sizeof(float)) };
    *out = routing;
    if (routing->starts && routing->rows && routing->weights && routing->chosen && routing->shares)
        return GAC_OK;
    gac_cpu_routing_free(state, routing);
    *out = NULL;
    return gac_error_no_memory(err);
}

typedef struct route_run {
    const gac_cpu_compute *compute;
    const gac_route_call *call;
    int64_t width, n_rows;
    float *scores; /* (n_rows, stride) */
    int64_t stride;
} route_run;

static void norm_rows(void *data, int64_t item, int thread)
{
    const route_run *run = data;
    const gac_route_call *call = run->call;
    const gac_cpu_norm_args norm = { call->norm->data, NULL, call->eps, false };
    int64_t end = gac_min_i64((item + 1) * ROWS_PER_ITEM, run->n_rows);
    (void)thread;
    for (int64_t row = item * ROWS_PER_ITEM; row < end; row++)
        gac_cpu_norm(run->compute, &norm, call->x->data + row * call->x->stride, run->width,
                     call->normed->data + row * call->normed->stride);
}

/* Turns the scores of one row into weights of all experts. */
static void weigh(const gac_route_call *call, int64_t n, float *scores)
{
    double most = (double)scores[0], total = 0;
    for (int64_t e = 0; call->sigmoid && e < n; e++)
        scores[e] = (float)(1 / (1 + exp(-(double)scores[e])));
    if (call->sigmoid)
        return;
    for (int64_t e = 1; e < n; e++)
        most = fmax(most, (double)scores[e]);
    for (int64_t e = 0; e < n; e++)
        total += exp((double)scores[e] - most);
    for (int64_t e = 0; e < n; e++)
        scores[e] = (float)(exp((double)scores[e] - most) / total);
}

/* Takes the best experts of one row. A chosen one's score becomes -1. */
static void choose(const gac_route_call *call, int64_t row, float *scores)
{
    gac_routing *routing = call->routing;
    int32_t *chosen = routing->chosen + row * routing->n_chosen;
    float *shares = routing->shares + row * routing->n_chosen;
    double total = 0;
    for (int64_t i = 0; i < call->n_chosen; i++) {
        int32_t best = 0;
        for (int32_t e = 1; e < routing->n_experts; e++)
            best = scores[e] > scores[best] ? e : best;
        chosen[i] = best;
        shares[i] = scores[best];
        total += (double)scores[best];
        scores[best] = -1;
    }
    for (int64_t i = 0; call->normalise && i < call->n_chosen; i++)
        shares[i] = (float)((double)shares[i] / total);
}

/* Lists the rows of each expert, in order. */
static void list_rows(gac_routing *routing, int64_t n_rows)
{
    const int64_t n = n_rows * routing->n_chosen;
    int64_t at = 0;
    for (int64_t e = 0; e < routing->n_experts; e++) {
        routing->starts[e] = at;
        for (int64_t i = 0; i < n; i++) {
            if (routing->chosen[i] != e)
                continue;
            routing->rows[at] = (int32_t)(i / routing->n_chosen);
            routing->weights[at++] = routing->shares[i];
        }
    }
    routing->starts[routing->n_experts] = at;
}

static gac_status check_call(const gac_cpu_compute *compute, const gac_route_call *call,
                             gac_error *err)
{
    gac_routing *routing = call->routing;
    const gac_axis out = call->matrix->modules[0].out;
    routing->n_experts = out.size * out.n_slices;
    if (call->matrix->n_modules == 1 && !call->matrix->modules[0].first.data &&
        call->matrix->modules[0].n_parts == 1 && routing->n_experts <= routing->max_experts &&
        call->n_chosen >= 1 && call->n_chosen == routing->n_chosen &&
        call->n_chosen <= routing->n_experts && (!call->norm || call->normed) &&
        compute->batch * compute->n_new <= INT32_MAX)
        return GAC_OK;
    return gac_error_set(err, GAC_USAGE, "a router of %lld experts, for %lld of %lld",
                         (long long)out.size, (long long)call->n_chosen,
                         (long long)routing->n_experts);
}

gac_status gac_cpu_route(void *state, const gac_route_call *call, gac_error *err)
{
    gac_cpu_compute *compute = state;
    const gac_routing *routing = call->routing;
    route_run run = { .compute = compute,
                      .call = call,
                      .width = call->x->width,
                      .n_rows = compute->batch * compute->n_new,
                      .stride = 0 };
    gac_status status = check_call(compute, call, err);
    run.stride = gac_row_stride(routing->n_experts);
    if (status == GAC_OK)
        status = gac_buffer_reserve(&compute->outputs, run.n_rows, run.stride, sizeof(float), err);
    if (status != GAC_OK)
        return status;
    if (call->norm)
        gac_pool_run(compute->pool, (run.n_rows + ROWS_PER_ITEM - 1) / ROWS_PER_ITEM, norm_rows,
                     &run);
    const gac_rows *x = call->norm ? call->normed : call->x;
    const gac_cpu_part *part = &call->matrix->modules[0].parts[0];
    run.scores = compute->outputs.data;
    const gac_product product = { x->data,    x->stride,  part->weight, part->bias,
                                  run.scores, run.stride, false };
    status = compute->arithmetic->multiply(compute, &product, 1, run.n_rows, err);
    for (int64_t row = 0; row < run.n_rows && status == GAC_OK; row++) {
        weigh(call, routing->n_experts, run.scores + row * run.stride);
        choose(call, row, run.scores + row * run.stride);
    }
    if (status == GAC_OK)
        list_rows(call->routing, run.n_rows);
    return status;
}
