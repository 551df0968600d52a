#include "cuda_internal.h"
#include "device/task_spec.h"
#include "kernels.h"

#include <math.h>
#include <stdlib.h>

/* Work above this many operations per byte reaches the card's power limit within
 * milliseconds if it runs without breaks. */
#define HIGH_INTENSITY 100
#define BREAK_US 200

enum { MAX_SETS = 64, OPERAND_ALIGNMENT = 512 };

typedef struct cuda_task {
    gac_cuda *cuda;
    gac_cuda_op *op;
    gac_task_spec spec;
    void *memory; /* memory of all sets */
    gac_cuda_set sets[MAX_SETS];
    int n_sets;
    int next_set;           /* next set to use when calls are launched one by one */
    cudaGraphExec_t replay; /* graph of n_replay_calls calls, or NULL */
    int n_replay_calls;
    double break_us; /* shortest pause before a replay */
} cuda_task;

typedef struct move_op {
    gac_cuda_op op;
    gac_cuda *cuda;
    gac_pad_job job;
    size_t copy_bytes;
} move_op;

static gac_status launch_pad(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err)
{
    move_op *move = (move_op *)op;
    move->job.from = set->operand[GAC_OPERAND_A];
    move->job.to = set->operand[GAC_OPERAND_OUT];
    return gac_pad_launch(&move->job, 1, move->cuda->stream, err);
}

static gac_status launch_copy(gac_cuda_op *op, const gac_cuda_set *set, gac_error *err)
{
    move_op *move = (move_op *)op;
    cudaError_t code =
        cudaMemcpyAsync(set->operand[GAC_OPERAND_OUT], set->operand[GAC_OPERAND_A],
                        move->copy_bytes, cudaMemcpyDeviceToDevice, move->cuda->stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "cudaMemcpyAsync");
}

static void free_move(gac_cuda_op *op)
{
    free(op);
}

static gac_status create_move(gac_cuda *cuda, const gac_task_spec *spec, gac_cuda_op **out,
                              gac_error *err)
{
    move_op *move = calloc(1, sizeof *move);
    if (!move)
        return gac_error_no_memory(err);
    move->cuda = cuda;
    move->op.free = free_move;
    move->op.launch = spec->kind == GAC_TASK_PAD ? launch_pad : launch_copy;
    move->copy_bytes = (size_t)spec->copy_bytes;
    move->job.n_rows = spec->pad.n_rows;
    move->job.n_from = spec->pad.n_from;
    move->job.n_to = spec->pad.n_to;
    move->job.element_bytes = gac_dtype_bits(spec->dtype) / 8;
    *out = &move->op;
    return GAC_OK;
}

/* Computes the offset of each operand in a set (-1 if the task has no such operand) and
 * the size of a set. Returns false on overflow. */
static bool lay_out_set(const gac_task_spec *spec, int64_t offsets[GAC_OPERAND_COUNT],
                        int64_t *n_bytes)
{
    int64_t total = 0;
    for (int i = 0; i < GAC_OPERAND_COUNT; i++) {
        int64_t size = gac_task_operand_bytes(spec, (gac_operand)i);
        offsets[i] = size > 0 ? total : -1;
        if (size < 0 || !gac_add_i64(total, size, &total) ||
            !gac_round_up_i64(total, OPERAND_ALIGNMENT, &total))
            return false;
    }
    *n_bytes = total;
    return true;
}

/* Returns the memory that can be allocated now: the card's free memory and the unused
 * part of the pool. */
static gac_status find_free_bytes(gac_cuda *cuda, int64_t *out, gac_error *err)
{
    size_t n_free = 0, n_total = 0;
    uint64_t reserved = 0, used = 0;
    cudaError_t code = cudaMemGetInfo(&n_free, &n_total);
    if (code == cudaSuccess)
        code = cudaMemPoolGetAttribute(cuda->pool, cudaMemPoolAttrReservedMemCurrent, &reserved);
    if (code == cudaSuccess)
        code = cudaMemPoolGetAttribute(cuda->pool, cudaMemPoolAttrUsedMemCurrent, &used);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "cudaMemGetInfo");
    *out = (int64_t)n_free + (int64_t)(reserved - used);
    return GAC_OK;
}

/* Returns how many sets exceed three times the L2 cache: at least 2, within a quarter of
 * the free memory. */
static int count_sets(const cuda_task *task, int64_t set_bytes, int64_t free_bytes)
{
    int64_t wanted = task->spec.n_sets;
    if (wanted < 1) {
        wanted = 3 * task->cuda->l2_bytes / set_bytes + 1;
        if (wanted < 2)
            wanted = 2;
        if (wanted > free_bytes / 4 / set_bytes)
            wanted = free_bytes / 4 / set_bytes;
    }
    return wanted < 1 ? 1 : wanted > MAX_SETS ? MAX_SETS : (int)wanted;
}

/* Returns the type of the random numbers. Where no arithmetic is done, any type of the
 * right size will do. */
static gac_dtype fill_dtype(const gac_task_spec *spec)
{
    if (spec->kind == GAC_TASK_GEMM || spec->kind == GAC_TASK_SDPA)
        return spec->dtype;
    int bits = spec->kind == GAC_TASK_COPY ? 8 : gac_dtype_bits(spec->dtype);
    return bits == 32 ? GAC_DTYPE_F32 : bits == 16 ? GAC_DTYPE_F16 : GAC_DTYPE_I8;
}

/* Returns one scale for all operands. A dot product of k terms then has a magnitude near
 * 1. */
static double fill_scale(const gac_task_spec *spec)
{
    if (fill_dtype(spec) == GAC_DTYPE_I8)
        return 32;
    return spec->kind == GAC_TASK_GEMM ? pow((double)spec->gemm.k, -0.25) : 1;
}

static gac_status create_sets(cuda_task *task, gac_error *err)
{
    int64_t offsets[GAC_OPERAND_COUNT], set_bytes = 0, free_bytes = 0, total = 0;
    if (!lay_out_set(&task->spec, offsets, &set_bytes) || set_bytes < 1)
        return gac_error_set(err, GAC_USAGE, "a task whose sizes make no sense");
    gac_status status = GAC_OK;
    task->n_sets = count_sets(task, set_bytes, INT64_MAX);
    /* cudaMemGetInfo takes longer than most calls, so ask only if the sets are large. */
    if (!gac_mul_i64(set_bytes, task->n_sets, &total) || total > task->cuda->memory_bytes / 16) {
        status = find_free_bytes(task->cuda, &free_bytes, err);
        if (status)
            return status;
        task->n_sets = count_sets(task, set_bytes, free_bytes);
        if (!gac_mul_i64(set_bytes, task->n_sets, &total))
            return gac_error_set(err, GAC_NO_RESOURCE, "a task too large for any device");
    }
    status = gac_cuda_alloc(task->cuda, (size_t)total, &task->memory, err);
    if (status)
        return status;
    for (int i = 0; i < task->n_sets; i++)
        for (int j = 0; j < GAC_OPERAND_COUNT; j++)
            if (offsets[j] >= 0)
                task->sets[i].operand[j] = (char *)task->memory + i * set_bytes + offsets[j];

    gac_dtype dtype = fill_dtype(&task->spec);
    status = gac_fill_launch(dtype, task->memory, total / (gac_dtype_bits(dtype) / 8), 1,
                             fill_scale(&task->spec), task->cuda->stream, err);
    if (status)
        return status;
    /* Fill the output with NaN, so that an output that nobody wrote is noticed. */
    int64_t out_bytes = gac_task_operand_bytes(&task->spec, GAC_OPERAND_OUT);
    cudaError_t code = cudaMemsetAsync(task->sets[0].operand[GAC_OPERAND_OUT], 0xff,
                                       (size_t)out_bytes, task->cuda->stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, "cudaMemsetAsync");
}

static gac_status create_op(cuda_task *task, gac_error *err)
{
    switch (task->spec.kind) {
    case GAC_TASK_GEMM:
        return gac_cuda_gemm_create(task->cuda, &task->spec, &task->op, err);
    case GAC_TASK_SDPA:
        return gac_cuda_sdpa_create(task->cuda, &task->spec, &task->op, err);
    case GAC_TASK_PAD:
    case GAC_TASK_COPY:
        return create_move(task->cuda, &task->spec, &task->op, err);
    default:
        return gac_error_set(err, GAC_CHECK, "cuda has no such task");
    }
}

gac_status gac_cuda_task_create(void *state, const gac_task_spec *spec, void **out, gac_error *err)
{
    cuda_task *task = calloc(1, sizeof *task);
    if (!task)
        return gac_error_no_memory(err);
    task->cuda = state;
    task->spec = *spec;
    task->break_us = gac_task_flops(spec) > HIGH_INTENSITY * gac_task_bytes(spec) ? BREAK_US : 0;
    gac_status status = GAC_OK;
    cudaError_t code = cudaSetDevice(task->cuda->index);
    if (code != cudaSuccess)
        status = gac_cuda_error(err, code, "cudaSetDevice");
    if (status == GAC_OK)
        status = create_op(task, err);
    if (status == GAC_OK)
        status = create_sets(task, err);
    /* Run once before any capture: libraries load kernels on their first call, and some
     * decline only then. */
    if (status == GAC_OK)
        status = gac_cuda_task_run(task, err);
    if (status) {
        gac_cuda_task_free(task);
        return status;
    }
    *out = task;
    return GAC_OK;
}

void gac_cuda_task_free(void *handle)
{
    cuda_task *task = handle;
    if (!task)
        return;
    if (task->replay)
        cudaGraphExecDestroy(task->replay);
    if (task->op)
        task->op->free(task->op);
    gac_cuda_release(task->cuda, task->memory);
    free(task);
}

static gac_status wait_for(gac_cuda *cuda, const char *what, gac_error *err)
{
    cudaError_t code = cudaStreamSynchronize(cuda->stream);
    return code == cudaSuccess ? GAC_OK : gac_cuda_error(err, code, what);
}

/* Checks the operand's size and sets *on_device to its address in set 0. */
static gac_status find_operand(cuda_task *task, gac_operand operand, size_t n_bytes,
                               void **on_device, gac_error *err)
{
    int64_t size = gac_task_operand_bytes(&task->spec, operand);
    if (size <= 0 || (uint64_t)size != n_bytes)
        return gac_error_set(err, GAC_USAGE, "operand %d has %lld bytes, not %zu", (int)operand,
                             (long long)size, n_bytes);
    *on_device = task->sets[0].operand[operand];
    return GAC_OK;
}

gac_status gac_cuda_task_write(void *handle, gac_operand operand, const void *data, size_t n_bytes,
                               gac_error *err)
{
    cuda_task *task = handle;
    void *on_device = NULL;
    gac_status status = find_operand(task, operand, n_bytes, &on_device, err);
    if (status)
        return status;
    cudaError_t code =
        cudaMemcpyAsync(on_device, data, n_bytes, cudaMemcpyHostToDevice, task->cuda->stream);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "copy to the device");
    return wait_for(task->cuda, "copy to the device", err);
}

gac_status gac_cuda_task_read(void *handle, gac_operand operand, void *data, size_t n_bytes,
                              gac_error *err)
{
    cuda_task *task = handle;
    void *on_device = NULL;
    gac_status status = find_operand(task, operand, n_bytes, &on_device, err);
    if (status)
        return status;
    cudaError_t code =
        cudaMemcpyAsync(data, on_device, n_bytes, cudaMemcpyDeviceToHost, task->cuda->stream);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "copy from the device");
    return wait_for(task->cuda, "copy from the device", err);
}

static gac_status run_once(void *handle, gac_error *err)
{
    cuda_task *task = handle;
    gac_status status = task->op->launch(task->op, &task->sets[0], err);
    return status ? status : wait_for(task->cuda, "a call on the device", err);
}

gac_status gac_cuda_task_run(void *handle, gac_error *err)
{
    return run_once(handle, err);
}

gac_status gac_cuda_task_kernels(void *handle, gac_kernel *kernels, int max, int *n, gac_error *err)
{
    return gac_cupti_record(run_once, handle, kernels, max, n, err);
}

/* Captures n_calls calls into a graph, starting with set 0. */
static gac_status capture(cuda_task *task, int n_calls, gac_error *err)
{
    cudaStream_t stream = task->cuda->stream;
    cudaGraph_t graph = NULL;
    if (task->replay)
        cudaGraphExecDestroy(task->replay);
    task->replay = NULL;
    cudaError_t code = cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "cudaStreamBeginCapture");
    gac_status status = GAC_OK;
    for (int i = 0; i < n_calls && status == GAC_OK; i++)
        status = task->op->launch(task->op, &task->sets[i % task->n_sets], err);
    /* End the capture also after a failure. */
    code = cudaStreamEndCapture(stream, &graph);
    if (status == GAC_OK && code != cudaSuccess)
        status = gac_cuda_error(err, code, "cudaStreamEndCapture");
    if (status == GAC_OK) {
        code = cudaGraphInstantiate(&task->replay, graph, 0);
        if (code == cudaSuccess)
            code = cudaGraphUpload(task->replay, stream);
        if (code != cudaSuccess)
            status = gac_cuda_error(err, code, "cudaGraphInstantiate");
    }
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError(); /* clear the error, which was reported above */
    task->n_replay_calls = n_calls;
    return status;
}

static gac_status launch_calls(cuda_task *task, int n_calls, gac_error *err)
{
    gac_status status = GAC_OK;
    for (int i = 0; i < n_calls && status == GAC_OK; i++) {
        status = task->op->launch(task->op, &task->sets[task->next_set], err);
        task->next_set = (task->next_set + 1) % task->n_sets;
    }
    return status;
}

/* Rounds n_calls up to whole rounds over the sets, so that the next replay starts with
 * the least recently used set. Sets *break_us to the pause that is still needed: none if
 * a capture just kept the card idle. */
static gac_status prepare_replay(cuda_task *task, int *n_calls, double *break_us, gac_error *err)
{
    int64_t rounded = 0;
    if (!gac_round_up_i64(*n_calls, task->n_sets, &rounded) || rounded > 1 << 20)
        return gac_error_set(err, GAC_USAGE, "a replay of %d calls", *n_calls);
    *n_calls = (int)rounded;
    *break_us = task->break_us;
    if (task->replay && task->n_replay_calls == *n_calls)
        return GAC_OK;
    *break_us = 0;
    return capture(task, *n_calls, err);
}

gac_status gac_cuda_task_time(void *handle, int *n_calls, bool graph, double *time_us,
                              gac_error *err)
{
    cuda_task *task = handle;
    gac_cuda *cuda = task->cuda;
    float time_ms = 0;
    double break_us = 0;
    gac_status status = GAC_OK;
    /* A copy that is a graph node runs at two thirds of its speed. */
    graph = graph && task->spec.kind != GAC_TASK_COPY;
    if (graph)
        status = prepare_replay(task, n_calls, &break_us, err);
    /* Hold the stream long enough for the host to enqueue the replay. */
    if (status == GAC_OK)
        status = gac_hold_launch(fmax(break_us, fmin(20 + 0.25 * *n_calls, 500)), cuda->clock_mhz,
                                 cuda->stream, err);
    if (status)
        return status;
    cudaError_t code = cudaEventRecord(cuda->start, cuda->stream);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "cudaEventRecord");
    if (graph) {
        code = cudaGraphLaunch(task->replay, cuda->stream);
        if (code != cudaSuccess)
            return gac_cuda_error(err, code, "cudaGraphLaunch");
    } else {
        status = launch_calls(task, *n_calls, err);
        if (status)
            return status;
    }
    code = cudaEventRecord(cuda->stop, cuda->stream);
    if (code == cudaSuccess)
        code = cudaEventSynchronize(cuda->stop);
    if (code == cudaSuccess)
        code = cudaEventElapsedTime(&time_ms, cuda->start, cuda->stop);
    if (code != cudaSuccess)
        return gac_cuda_error(err, code, "timing on the device");
    cuda->clock_ns = gac_now_ns();
    *time_us = (double)time_ms * 1000 / *n_calls;
    return GAC_OK;
}
