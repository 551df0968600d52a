#include "cuda_cudnn.h"

#include <dlfcn.h>
#include <float.h>
#include <stdlib.h>
#include <string.h>

static void drop_descriptors(gac_cudnn_plan *plan)
{
    while (plan->n_descriptors > 0)
        plan->cudnn->destroy_descriptor(plan->descriptors[--plan->n_descriptors]);
    plan->n_operations = plan->n_bound = 0;
    plan->n_virtual = 0;
    plan->execution = NULL;
    plan->status = CUDNN_STATUS_SUCCESS;
    plan->reason[0] = 0;
}

static void destroy_plan(gac_cudnn_plan *plan)
{
    drop_descriptors(plan);
    gac_cuda_release(plan->cuda, plan->workspace);
    free(plan);
}

gac_cudnn *gac_cudnn_load(cudaStream_t stream, char *why, size_t size)
{
    const char *named = getenv("GAC_CUDNN");
    const char *file = named && *named ? named : "libcudnn.so.9";
    gac_cudnn *cudnn = calloc(1, sizeof *cudnn);
    if (!cudnn) {
        snprintf(why, size, "out of memory");
        return NULL;
    }
    cudnn->stream = stream;
    void *library = cudnn->library = dlopen(file, RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    if (!library) {
        const char *text = dlerror();
        snprintf(why, size, "cuDNN was not found: %s", text ? text : file);
    } else if (!gac_cuda_find(library, "cudnnGetVersion", &cudnn->version) ||
               !gac_cuda_find(library, "cudnnCreate", &cudnn->create) ||
               !gac_cuda_find(library, "cudnnDestroy", &cudnn->destroy) ||
               !gac_cuda_find(library, "cudnnSetStream", &cudnn->set_stream) ||
               !gac_cuda_find(library, "cudnnGetErrorString", &cudnn->error_string) ||
               !gac_cuda_find(library, "cudnnGetLastErrorString", &cudnn->last_error) ||
               !gac_cuda_find(library, "cudnnBackendCreateDescriptor", &cudnn->create_descriptor) ||
               !gac_cuda_find(library, "cudnnBackendDestroyDescriptor",
                              &cudnn->destroy_descriptor) ||
               !gac_cuda_find(library, "cudnnBackendFinalize", &cudnn->finalize) ||
               !gac_cuda_find(library, "cudnnBackendSetAttribute", &cudnn->set_attribute) ||
               !gac_cuda_find(library, "cudnnBackendGetAttribute", &cudnn->get_attribute) ||
               !gac_cuda_find(library, "cudnnBackendExecute", &cudnn->execute)) {
        snprintf(why, size, "%s lacks functions of cuDNN 9", file);
    } else {
        return cudnn;
    }
    gac_cudnn_unload(cudnn);
    return NULL;
}

void gac_cudnn_unload(gac_cudnn *cudnn)
{
    if (!cudnn)
        return;
    while (cudnn->plans) {
        gac_cudnn_plan *next = cudnn->plans->next;
        destroy_plan(cudnn->plans);
        cudnn->plans = next;
    }
    if (cudnn->handle)
        cudnn->destroy(cudnn->handle);
    if (cudnn->library)
        dlclose(cudnn->library);
    free(cudnn);
}

size_t gac_cudnn_version(const gac_cudnn *cudnn)
{
    return cudnn->version();
}

/* Writes cuDNN's last error as one line. cuDNN may give several reasons; the first one is
 * kept. */
static void last_reason(gac_cudnn *cudnn, char *text, size_t size)
{
    char all[2048] = "";
    cudnn->last_error(all, sizeof all);
    all[sizeof all - 1] = 0;
    char *first = strstr(all, "Reason: ");
    first = first ? first + strlen("Reason: ") : all;
    first[strcspn(first, "\r\n")] = 0;
    gac_quote(text, size, first);
}

/* Keeps the first failure of the plan. what names the failed step. */
static void keep_failure(gac_cudnn_plan *plan, cudnnStatus_t status, const char *what)
{
    if (status == CUDNN_STATUS_SUCCESS || plan->status != CUDNN_STATUS_SUCCESS)
        return;
    char text[256];
    last_reason(plan->cudnn, text, sizeof text);
    plan->status = status;
    snprintf(plan->reason, sizeof plan->reason, "%s: %s%s%s", what,
             plan->cudnn->error_string(status), text[0] ? ": " : "", text);
}

cudnnBackendDescriptor_t gac_cudnn_make(gac_cudnn_plan *plan, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t descriptor = NULL;
    if (plan->status != CUDNN_STATUS_SUCCESS)
        return NULL;
    if (plan->n_descriptors == GAC_CUDNN_MAX_DESCRIPTORS) {
        keep_failure(plan, CUDNN_STATUS_INTERNAL_ERROR, "too many descriptors");
        return NULL;
    }
    keep_failure(plan, plan->cudnn->create_descriptor(type, &descriptor), "create a descriptor");
    if (descriptor)
        plan->descriptors[plan->n_descriptors++] = descriptor;
    return descriptor;
}

void gac_cudnn_set(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor,
                   cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type,
                   int64_t n_elements, const void *elements)
{
    char what[48];
    if (plan->status != CUDNN_STATUS_SUCCESS)
        return;
    snprintf(what, sizeof what, "set attribute %d", (int)name);
    keep_failure(plan, plan->cudnn->set_attribute(descriptor, name, type, n_elements, elements),
                 what);
}

void gac_cudnn_link(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor,
                    cudnnBackendAttributeName_t name, cudnnBackendDescriptor_t other)
{
    gac_cudnn_set(plan, descriptor, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other);
}

void gac_cudnn_finalize(gac_cudnn_plan *plan, cudnnBackendDescriptor_t descriptor, const char *what)
{
    if (plan->status == CUDNN_STATUS_SUCCESS)
        keep_failure(plan, plan->cudnn->finalize(descriptor), what);
}

void gac_cudnn_add(gac_cudnn_plan *plan, cudnnBackendDescriptor_t operation, const char *what)
{
    const int room = sizeof plan->operations / sizeof *plan->operations;
    gac_cudnn_finalize(plan, operation, what);
    if (plan->status != CUDNN_STATUS_SUCCESS)
        return;
    if (plan->n_operations == room)
        keep_failure(plan, CUDNN_STATUS_INTERNAL_ERROR, "too many operations");
    else
        plan->operations[plan->n_operations++] = operation;
}

/* Takes the first configuration of the heuristic that finalizes. */
static bool find_execution(gac_cudnn_plan *plan, cudnnBackendDescriptor_t graph,
                           cudnnBackendHeurMode_t mode)
{
    enum { MAX_CONFIGS = 16 };
    gac_cudnn *cudnn = plan->cudnn;
    cudnnBackendDescriptor_t configs[MAX_CONFIGS];
    int64_t n_configs = 0;
    cudnnBackendDescriptor_t heuristic = gac_cudnn_make(plan, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    gac_cudnn_link(plan, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    gac_cudnn_set(plan, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    gac_cudnn_finalize(plan, heuristic, "heuristic");
    for (int i = 0; i < MAX_CONFIGS; i++)
        configs[i] = gac_cudnn_make(plan, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    if (plan->status != CUDNN_STATUS_SUCCESS)
        return false;
    keep_failure(plan,
                 cudnn->get_attribute(heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS,
                                      CUDNN_TYPE_BACKEND_DESCRIPTOR, MAX_CONFIGS, &n_configs,
                                      configs),
                 "results of the heuristic");
    if (plan->status == CUDNN_STATUS_SUCCESS && n_configs < 1)
        keep_failure(plan, CUDNN_STATUS_NOT_SUPPORTED, "the heuristic knows no engine");
    for (int64_t i = 0; i < n_configs && i < MAX_CONFIGS; i++) {
        plan->status = CUDNN_STATUS_SUCCESS; /* forget the failure of the previous configuration */
        cudnnBackendDescriptor_t execution =
            gac_cudnn_make(plan, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
        gac_cudnn_set(plan, execution, CUDNN_ATTR_EXECUTION_PLAN_HANDLE, CUDNN_TYPE_HANDLE, 1,
                      &cudnn->handle);
        gac_cudnn_link(plan, execution, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, configs[i]);
        gac_cudnn_finalize(plan, execution, "execution plan");
        if (plan->status == CUDNN_STATUS_SUCCESS) {
            plan->execution = execution;
            return true;
        }
    }
    return false;
}

/* Builds the graph with one builder and looks for an engine that can run it. */
static bool try_builder(gac_cudnn_plan *plan, gac_cudnn_builder build, const gac_sdpa_shape *shape,
                        cudnnDataType_t type)
{
    static const cudnnBackendHeurMode_t modes[] = { CUDNN_HEUR_MODE_A, CUDNN_HEUR_MODE_B };
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
        char reason[sizeof plan->reason];
        memcpy(reason, plan->reason, sizeof reason);
        drop_descriptors(plan);
        build(plan, shape, type);
        cudnnBackendDescriptor_t graph =
            gac_cudnn_make(plan, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
        gac_cudnn_set(plan, graph, CUDNN_ATTR_OPERATIONGRAPH_HANDLE, CUDNN_TYPE_HANDLE, 1,
                      &plan->cudnn->handle);
        gac_cudnn_set(plan, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                      plan->n_operations, plan->operations);
        gac_cudnn_finalize(plan, graph, "operation graph");
        if (plan->status == CUDNN_STATUS_SUCCESS && find_execution(plan, graph, modes[i]))
            return true;
        if (i > 0 && reason[0]) /* the reason of the first mode is the most useful */
            memcpy(plan->reason, reason, sizeof reason);
    }
    return false;
}

static gac_status open_handle(gac_cudnn *cudnn, gac_error *err)
{
    if (cudnn->handle)
        return GAC_OK;
    const char *what = "cudnnCreate";
    cudnnStatus_t status = cudnn->create(&cudnn->handle);
    if (status == CUDNN_STATUS_SUCCESS) {
        what = "cudnnSetStream";
        status = cudnn->set_stream(cudnn->handle, cudnn->stream);
    }
    if (status == CUDNN_STATUS_SUCCESS)
        return GAC_OK;
    char text[256];
    last_reason(cudnn, text, sizeof text);
    return gac_error_set(err, GAC_CHECK, "%s: %s: %s", what, cudnn->error_string(status), text);
}

static gac_status take_workspace(gac_cudnn_plan *plan, gac_error *err)
{
    int64_t n_bytes = 0, n = 0;
    cudnnStatus_t status =
        plan->cudnn->get_attribute(plan->execution, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
                                   CUDNN_TYPE_INT64, 1, &n, &n_bytes);
    if (status != CUDNN_STATUS_SUCCESS)
        return gac_error_set(err, GAC_FAILED, "cuDNN: size of a plan's workspace: %s",
                             plan->cudnn->error_string(status));
    return n_bytes > 0 ? gac_cuda_alloc(plan->cuda, (size_t)n_bytes, &plan->workspace, err)
                       : GAC_OK;
}

static gac_status declined(const gac_cudnn_plan *plan, const gac_sdpa_shape *shape, gac_dtype dtype,
                           const char *why, gac_error *err)
{
    size_t version = gac_cudnn_version(plan->cudnn);
    return gac_error_set(err, GAC_CHECK,
                         "SDPA %s batch %lld heads %lld/%lld rows %lld/%lld head sizes %lld/%lld%s:"
                         " cuDNN %zu.%zu.%zu declined: %s",
                         gac_dtype_name(dtype), (long long)shape->batch,
                         (long long)shape->n_q_heads, (long long)shape->n_kv_heads,
                         (long long)shape->n_q, (long long)shape->n_kv, (long long)shape->qk_head,
                         (long long)shape->v_head, shape->causal ? " causal" : "", version / 10000,
                         version / 100 % 100, version % 100, why);
}

/* Tries two ways to describe the call: "composed", as NVIDIA's front end does for
 * PyTorch, then "unified", as one operation. The environment variable GAC_CUDNN_GRAPH
 * selects one of them. */
static bool find_plan(gac_cudnn_plan *plan, const gac_sdpa_shape *shape, cudnnDataType_t type)
{
    static const struct {
        const char *name;
        gac_cudnn_builder build;
    } ways[] = { { "composed", gac_cudnn_build_composed }, { "unified", gac_cudnn_build_unified } };
    const char *wanted = getenv("GAC_CUDNN_GRAPH");
    char reason[sizeof plan->reason] = "";
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        if (wanted && *wanted && strcmp(wanted, ways[i].name) != 0)
            continue;
        if (try_builder(plan, ways[i].build, shape, type))
            return true;
        if (!reason[0])
            memcpy(reason, plan->reason, sizeof reason);
    }
    memcpy(plan->reason, reason, sizeof reason);
    return false;
}

/* Returns an existing plan for the same call, or NULL. */
static gac_cudnn_plan *find_cached_plan(gac_cudnn *cudnn, const gac_sdpa_shape *s,
                                        const gac_sdpa_strides *strides, gac_dtype dtype)
{
    gac_cudnn_plan *plan = cudnn->plans;
    while (plan && !(plan->dtype == dtype && plan->shape.batch == s->batch &&
                     plan->shape.n_q_heads == s->n_q_heads &&
                     plan->shape.n_kv_heads == s->n_kv_heads && plan->shape.n_q == s->n_q &&
                     plan->shape.n_kv == s->n_kv && plan->shape.qk_head == s->qk_head &&
                     plan->shape.v_head == s->v_head && plan->shape.causal == s->causal &&
                     memcmp(&plan->strides, strides, sizeof *strides) == 0))
        plan = plan->next;
    return plan;
}

static gac_status make_plan(gac_cudnn *cudnn, gac_cuda *cuda, const gac_sdpa_shape *shape,
                            const gac_sdpa_strides *strides, gac_dtype dtype, gac_cudnn_plan **out,
                            gac_error *err)
{
    gac_cudnn_plan *plan = calloc(1, sizeof *plan);
    if (!plan)
        return gac_error_no_memory(err);
    plan->cudnn = cudnn;
    plan->cuda = cuda;
    plan->shape = *shape;
    plan->strides = *strides;
    plan->dtype = dtype;
    plan->minus_infinity = -FLT_MAX;
    plan->n_q = (int32_t)shape->n_q;
    plan->n_kv = (int32_t)shape->n_kv;
    cudnnDataType_t type = dtype == GAC_DTYPE_BF16 ? CUDNN_DATA_BFLOAT16 : CUDNN_DATA_HALF;
    gac_status status = find_plan(plan, shape, type)
                            ? take_workspace(plan, err)
                            : declined(plan, shape, dtype, plan->reason, err);
    if (status) {
        destroy_plan(plan);
        return status;
    }
    plan->next = cudnn->plans;
    cudnn->plans = plan;
    *out = plan;
    return GAC_OK;
}

static gac_sdpa_strides contiguous(const gac_sdpa_shape *s)
{
    const int64_t d = s->qk_head, e = s->v_head;
    return (gac_sdpa_strides){ { s->n_q_heads * s->n_q * d, s->n_q * d, d },
                               { s->n_kv_heads * s->n_kv * d, s->n_kv * d, d },
                               { s->n_kv_heads * s->n_kv * e, s->n_kv * e, e },
                               { s->n_q_heads * s->n_q * e, s->n_q * e, e } };
}

gac_status gac_cudnn_plan_create(gac_cudnn *cudnn, gac_cuda *cuda, const gac_sdpa_shape *shape,
                                 const gac_sdpa_strides *strides, gac_dtype dtype,
                                 gac_cudnn_plan **out, gac_error *err)
{
    gac_sdpa_shape seen = *shape;
    const gac_sdpa_strides layout = strides ? *strides : contiguous(shape);
    if (seen.n_q == 1)
        seen.causal = false; /* a single query sees every key */
    gac_cudnn_plan *plan = find_cached_plan(cudnn, &seen, &layout, dtype);
    gac_status status = open_handle(cudnn, err);
    if (status == GAC_OK && !plan)
        status = make_plan(cudnn, cuda, &seen, &layout, dtype, &plan, err);
    if (status)
        return status;
    plan->n_users++;
    *out = plan;
    return GAC_OK;
}

/* Destroys the least recently used idle plan if there are more than MAX_IDLE. */
static void drop_oldest(gac_cudnn *cudnn)
{
    enum { MAX_IDLE = 32 };
    gac_cudnn_plan **oldest = NULL;
    int n_idle = 0;
    for (gac_cudnn_plan **at = &cudnn->plans; *at; at = &(*at)->next) {
        if ((*at)->n_users > 0)
            continue;
        n_idle++;
        if (!oldest || (*at)->last_use < (*oldest)->last_use)
            oldest = at;
    }
    if (n_idle <= MAX_IDLE)
        return;
    gac_cudnn_plan *plan = *oldest;
    *oldest = plan->next;
    destroy_plan(plan);
}

void gac_cudnn_plan_free(gac_cudnn_plan *plan)
{
    if (!plan)
        return;
    plan->n_users--;
    plan->last_use = ++plan->cudnn->n_uses;
    drop_oldest(plan->cudnn);
}

gac_status gac_cudnn_plan_launch(gac_cudnn_plan *plan, double scale, void *q, void *k, void *v,
                                 void *out, gac_error *err)
{
    gac_cudnn *cudnn = plan->cudnn;
    int n_before = plan->n_descriptors;
    plan->scale = (float)scale;
    plan->bound[0] = q;
    plan->bound[1] = k;
    plan->bound[2] = v;
    plan->bound[3] = out;
    plan->status = CUDNN_STATUS_SUCCESS;
    cudnnBackendDescriptor_t pack = gac_cudnn_make(plan, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    gac_cudnn_set(plan, pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR,
                  plan->n_bound, plan->bound);
    gac_cudnn_set(plan, pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, plan->n_bound,
                  plan->bound_ids);
    gac_cudnn_set(plan, pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1,
                  &plan->workspace);
    gac_cudnn_finalize(plan, pack, "variant pack");
    if (plan->status == CUDNN_STATUS_SUCCESS)
        keep_failure(plan, cudnn->execute(cudnn->handle, plan->execution, pack), "execute");
    while (plan->n_descriptors > n_before)
        cudnn->destroy_descriptor(plan->descriptors[--plan->n_descriptors]);
    if (plan->status != CUDNN_STATUS_SUCCESS)
        return gac_error_set(err, GAC_FAILED, "cuDNN: %s", plan->reason);
    return GAC_OK;
}
