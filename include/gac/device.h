/* device: where arithmetic runs.
 *
 * A device is a GPU reached through a plug-in that is loaded at run time, or
 * the CPU, which is always there and is the reference that every other device
 * is held against. Work is a task: one operator call prepared with its
 * operands on the device, that can be run, timed and asked which kernels it
 * launched. Models are not known here.
 *
 * One device and its tasks are used by one thread at a time. */
#ifndef GAC_DEVICE_H
#define GAC_DEVICE_H

#include <gac/base.h>
#include <gac/checkpoint.h>
#include <gac/contract.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* ---- Devices ----------------------------------------------------------- */

typedef struct gac_device gac_device;

/* What a device says of itself; texts are empty where it has no answer. */
typedef struct gac_device_info {
    char name[96];    /* "NVIDIA H200" */
    char arch[16];    /* "sm_90" */
    char driver[32];  /* "580.159.04" */
    char runtime[32]; /* CUDA runtime, "13.0" */
    char blas[32];    /* cuBLASLt, "13.1.0" */
    char dnn[32];     /* cuDNN, "9.14.0" */
    int64_t n_units;  /* multiprocessors */
    int64_t l2_bytes;
    int64_t memory_bytes;
    int64_t max_clock_mhz;
} gac_device_info;

/* Opens "cpu", "cuda" (the first GPU) or "cuda:N". A plug-in is looked for in
 * GAC_BACKEND_PATH (the file itself, or the folder that holds it) if that is
 * set, else beside the program and in ../lib/gac and ../lib from there.
 * GAC_NO_RESOURCE with the reason when there is no plug-in, it does not load,
 * it speaks another version, or there is no GPU; GAC_USAGE for other names. */
gac_status gac_device_open(const char *name, gac_device **out, gac_error *err);
void gac_device_close(gac_device *device);                            /* NULL is fine */
const gac_device_info *gac_device_describe(const gac_device *device); /* borrowed */

/* Reasons to distrust a sample, as bits of gac_telemetry.throttle. */
enum {
    GAC_THROTTLE_POWER = 1,   /* the card's power limit: ordinary under load */
    GAC_THROTTLE_THERMAL = 2, /* too hot */
    GAC_THROTTLE_HARDWARE = 4 /* power brake, slowdown line */
};

/* The card at this moment; a negative number where it does not say. */
typedef struct gac_telemetry {
    int clock_mhz;
    int memory_clock_mhz;
    int temperature_c;
    double power_w;
    unsigned throttle;
} gac_telemetry;

gac_status gac_device_telemetry(gac_device *device, gac_telemetry *out, gac_error *err);

/* ---- Tasks ------------------------------------------------------------- */

typedef enum gac_task_kind {
    GAC_TASK_GEMM,
    GAC_TASK_SDPA,
    GAC_TASK_PAD,
    GAC_TASK_COPY,
    GAC_TASK_KIND_COUNT
} gac_task_kind;

/* y (m, n) = x (m, k) W^T with W (n, k), as a Linear layer stores it; with
 * row_major y = x B with B (k, n). All rows contiguous. F16 and BF16 give
 * their own dtype, F32 is multiplied as TF32, F8_E4M3 gives BF16 (unit
 * scales), I8 gives I32; sums are in 32 bits or better. */
typedef struct gac_gemm_shape {
    int64_t m, n, k;
    bool row_major;
} gac_gemm_shape;

typedef enum gac_sdpa_path {
    GAC_SDPA_LIBRARY, /* the vendor's fused kernel (cuDNN) */
    GAC_SDPA_MATH,    /* batched GEMM, softmax, batched GEMM */
    GAC_SDPA_FLASH,   /* own fused kernel, any head size */
    GAC_SDPA_PADDED,  /* q, k, v copied into wider rows, the vendor's kernel, output cut back */
    GAC_SDPA_PATH_COUNT
} gac_sdpa_path;

/* softmax(scale q k^T) v per head: q (batch, n_q_heads, n_q, qk_head),
 * k (batch, n_kv_heads, n_kv, qk_head), v (batch, n_kv_heads, n_kv, v_head),
 * out (batch, n_q_heads, n_q, v_head), all contiguous, F16 or BF16. Query head
 * h reads kv head h / (n_q_heads / n_kv_heads). Causal: query i sees keys up
 * to i + n_kv - n_q, and n_q is at most n_kv. */
typedef struct gac_sdpa_call {
    gac_sdpa_shape shape;
    gac_sdpa_path path;
    int64_t stored_head; /* PADDED: what both head sizes are padded to */
    double scale;        /* 0: 1 / sqrt(qk_head) */
} gac_sdpa_call;

/* (n_rows, n_from) to (n_rows, n_to): zeros after each row when it grows, the
 * end of each row left out when it shrinks. 1, 2 or 4 byte elements. */
typedef struct gac_pad_shape {
    int64_t n_rows, n_from, n_to;
} gac_pad_shape;

typedef struct gac_task_spec {
    gac_task_kind kind;
    gac_dtype dtype;
    gac_gemm_shape gemm;
    gac_sdpa_call sdpa;
    gac_pad_shape pad;
    int64_t copy_bytes; /* COPY: from one buffer to another on the device */
    int n_sets;         /* operand sets that successive calls rotate through; 0: as many as exceed
                         * the L2 cache three times, so that every call finds it cold */
} gac_task_spec;

/* x, W | q, k, v | source, and what is computed. */
typedef enum gac_operand {
    GAC_OPERAND_A,
    GAC_OPERAND_B,
    GAC_OPERAND_C,
    GAC_OPERAND_OUT,
    GAC_OPERAND_COUNT
} gac_operand;

/* Bytes of an operand of one set; 0 for one the task has not, and -1 for what
 * makes no sense: sizes below 1, over 2^31, or with a product over 2^40 bytes,
 * and a dtype that the kind of task does not take. */
int64_t gac_task_operand_bytes(const gac_task_spec *spec, gac_operand operand);

typedef struct gac_task gac_task;

/* Prepares a task and fills its inputs with random numbers (about normal,
 * x and W scaled so that results are near 1). GAC_USAGE when the sizes make no
 * sense; GAC_CHECK when this device has nothing that serves the spec (the text
 * says who declined, and why if known), GAC_NO_RESOURCE when memory is short. */
gac_status gac_task_create(gac_device *device, const gac_task_spec *spec, gac_task **out,
                           gac_error *err);
void gac_task_free(gac_task *task); /* NULL is fine; before its device is closed */

/* Copies an operand of set 0 to or from the device; n_bytes must be its size. */
gac_status gac_task_write(gac_task *task, gac_operand operand, const void *data, size_t n_bytes,
                          gac_error *err);
gac_status gac_task_read(gac_task *task, gac_operand operand, void *data, size_t n_bytes,
                         gac_error *err);

/* Runs once on set 0 and waits. */
gac_status gac_task_run(gac_task *task, gac_error *err);

/* Takes one sample: n_calls calls (at least 1) in a row over the operand sets,
 * replayed as a captured graph (launch costs hidden, as a serving engine would)
 * or launched one by one. *time_us is per call, by the device's own clock. */
gac_status gac_task_time(gac_task *task, int n_calls, bool graph, double *time_us, gac_error *err);

/* One kernel that a call launched. */
typedef struct gac_kernel {
    char name[256];
    double time_us;
    int64_t grid[3], block[3];
} gac_kernel;

/* The kernels of one call on set 0, in order of start. Sets *n to how many
 * there were and fills at most max. GAC_CHECK where the device cannot say. */
gac_status gac_task_kernels(gac_task *task, gac_kernel *kernels, int max, int *n, gac_error *err);

/* ---- Plug-ins ---------------------------------------------------------- */

#define GAC_BACKEND_ABI 1

/* What a plug-in provides: libgac_NAME.so exports a function gac_backend_entry
 * that returns a table like this. Specs reach it checked. A slot that is NULL
 * is something the backend cannot do. */
typedef struct gac_backend {
    int abi; /* GAC_BACKEND_ABI */
    const char *name;
    gac_status (*open)(int index, void **state, gac_device_info *info, gac_error *err);
    void (*close)(void *state);
    gac_status (*telemetry)(void *state, gac_telemetry *out, gac_error *err);
    gac_status (*task_create)(void *state, const gac_task_spec *spec, void **task, gac_error *err);
    void (*task_free)(void *task);
    gac_status (*task_write)(void *task, gac_operand operand, const void *data, size_t n_bytes,
                             gac_error *err);
    gac_status (*task_read)(void *task, gac_operand operand, void *data, size_t n_bytes,
                            gac_error *err);
    gac_status (*task_run)(void *task, gac_error *err);
    gac_status (*task_time)(void *task, int n_calls, bool graph, double *time_us, gac_error *err);
    gac_status (*task_kernels)(void *task, gac_kernel *kernels, int max, int *n, gac_error *err);
} gac_backend;

typedef const gac_backend *(*gac_backend_entry_fn)(void);
#define GAC_BACKEND_ENTRY "gac_backend_entry"

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
