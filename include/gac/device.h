/* device: where arithmetic runs.
 *
 * A device is a GPU reached through a plug-in that is loaded at run time, or the CPU, which is
 * always there and is the reference that every other device is held against. Work is a task: one
 * operator call prepared with its operands on the device, that can be run, timed and asked which
 * kernels it launched. Models are not known here.
 *
 * One device and its tasks are used by one thread at a time. */
#ifndef GAC_DEVICE_H
#define GAC_DEVICE_H

#include <gac/base.h>
#include <gac/op.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Devices. */

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

/* Opens "cpu", "cuda" (the first GPU) or "cuda:N". The plug-in is looked for in GAC_BACKEND_PATH (a
 * file or its folder) if that is set, else beside the program and in ../lib/gac and ../lib from
 * there; without /proc only GAC_BACKEND_PATH counts. GAC_NO_RESOURCE with the reason if there is
 * no GPU or no plug-in of this version that loads; GAC_USAGE for other names. */
gac_status gac_device_open(const char *name, gac_device **out, gac_error *err);
/* Where the GPU plug-in lies; it is not loaded. free() *path. GAC_NO_RESOURCE when there is
 * none, and the message says why. */
gac_status gac_device_find_plugin(char **path, gac_error *err);
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
    int clock_mhz; /* right after a sample: as it was right before it */
    int memory_clock_mhz;
    int temperature_c;
    double power_w;
    unsigned throttle;
} gac_telemetry;

gac_status gac_device_telemetry(gac_device *device, gac_telemetry *out, gac_error *err);

/* The clock that the card reaches at rest. At first it is the highest clock of
 * the description, 0 where that does not say. Someone may have locked the card to
 * a lower clock; only waiting in vain finds that out, and then sets it here. */
int gac_device_rest_clock_mhz(const gac_device *device);
void gac_device_set_rest_clock(gac_device *device, int clock_mhz);

/* Tasks. */

typedef enum gac_task_kind {
    GAC_TASK_GEMM,
    GAC_TASK_SDPA,
    GAC_TASK_PAD,
    GAC_TASK_COPY,
    GAC_TASK_KIND_COUNT
} gac_task_kind;

typedef enum gac_sdpa_path {
    GAC_SDPA_LIBRARY, /* the vendor's fused kernel (cuDNN) */
    GAC_SDPA_MATH,    /* batched GEMM, softmax, batched GEMM */
    GAC_SDPA_FLASH,   /* own fused kernel, any head size */
    GAC_SDPA_PADDED,  /* q, k, v copied into wider rows, the vendor's kernel, output cut back */
    GAC_SDPA_PATH_COUNT
} gac_sdpa_path;

/* softmax(scale q k^T) v per head: q (batch, n_q_heads, n_q, qk_head), k (batch, n_kv_heads, n_kv,
 * qk_head), v (batch, n_kv_heads, n_kv, v_head), out (batch, n_q_heads, n_q, v_head), all
 * contiguous, F16 or BF16. Query head h reads kv head h / (n_q_heads / n_kv_heads). Causal: query i
 * sees keys up to i + n_kv - n_q, and n_q is at most n_kv. */
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

/* Operations of one call of GEMM or SDPA, else 0; bytes of operands and result, each once. */
double gac_task_flops(const gac_task_spec *spec);
double gac_task_bytes(const gac_task_spec *spec);

/* How far a result may be from the reference: norm of the difference over that of the reference. */
double gac_task_tolerance(const gac_task_spec *spec);

/* Fills an operand of one set with random numbers: normal ones, scaled by
 * k^(-1/4) in a GEMM so that its results are near 1; small integers in I8;
 * random bits where the dtype is not one that is multiplied. */
void gac_task_fill(const gac_task_spec *spec, gac_operand operand, uint64_t seed, void *data);

typedef struct gac_task gac_task;

/* Prepares a task, fills its inputs with random numbers (about normal, x and W
 * scaled so that results are near 1), and loads its code. GAC_USAGE when the sizes
 * make no sense; GAC_CHECK when this device has nothing that serves the spec (the
 * text says who declined, and why if known), GAC_NO_RESOURCE when memory is short. */
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

/* Takes one sample: *n_calls calls (at least 1) in a row over the operand sets,
 * replayed as a captured graph (launch costs hidden, as a serving engine would)
 * or launched one by one. *n_calls is then how many there were: a replay may make
 * more, to use all sets alike. *time_us is per call, by the device's own clock. */
gac_status gac_task_time(gac_task *task, int *n_calls, bool graph, double *time_us, gac_error *err);

/* One kernel that a call launched. */
typedef struct gac_kernel {
    char name[256];
    double time_us;
    int64_t grid[3], block[3];
} gac_kernel;

/* The kernels of one call on set 0, in order of start. Sets *n to how many
 * there were and fills at most max. GAC_CHECK where the device cannot say. */
gac_status gac_task_kernels(gac_task *task, gac_kernel *kernels, int max, int *n, gac_error *err);

/* Forward passes. */

/* What a forward pass needs of a device: weights are put there once, rows of
 * activations stay there between calls, and a pass is a handful of rich calls
 * that a device may fuse as it likes. Three devices stand behind this table:
 *
 *   reference  F32 values, F64 sums in a fixed order: adding zeros anywhere in
 *              a sum leaves every bit of the result
 *   cpu        F32, OpenBLAS and threads
 *   cuda       F16 or BF16 with F32 sums; the residual stream stays F32
 *
 * One compute and all that was made with it are used by one thread at a time,
 * and freed before it is closed. */

/* An axis of n_slices slices of size numbers (the heads of a projection, or
 * one slice), each kept in stored numbers of which the last are zero. */
typedef struct gac_axis {
    int64_t n_slices, size, stored;
} gac_axis;

/* A tensor in host memory as its checkpoint has it, (n_rows, n_cols), in F32,
 * F16 or BF16. A vector has one row. data NULL: there is none. It must stay
 * where it is until what was made of it is freed: the CPUs make no copy. */
typedef struct gac_host_tensor {
    const void *data;
    gac_dtype dtype;
    int64_t n_rows, n_cols;
    const char *name; /* for messages */
} gac_host_tensor;

/* One part of a linear module: weight (outputs of this part, n) multiplies the
 * n numbers from start of what the first factor gave. */
typedef struct gac_linear_part {
    gac_host_tensor weight, bias;
    int64_t start;
} gac_linear_part;

/* A linear module, however it is stored: y = x W^T + bias, or first
 * z = x first^T + first_bias, then y from z. The outputs of the parts follow
 * each other and make up the axis out. Without first, parts multiply x. */
typedef struct gac_linear_module {
    gac_host_tensor first, first_bias;
    int n_parts;
    const gac_linear_part *parts;
    gac_axis out;
} gac_linear_module;

typedef struct gac_matrix gac_matrix; /* linear modules that share an input */
typedef struct gac_vector gac_vector; /* F32 numbers: norms, tables */
typedef struct gac_rows gac_rows;     /* activations */
typedef struct gac_cache gac_cache;   /* keys and values of one layer */
typedef struct gac_gram gac_gram;     /* sums over the inputs of linear modules */

/* Sizes that a device may keep longer than they are, with zeros at the end. */
typedef enum gac_size_kind {
    GAC_SIZE_HEAD,  /* of q and k, or of v */
    GAC_SIZE_WIDTH, /* between gate, up and down; a rank between two factors */
    GAC_SIZE_ROW    /* a whole row of activations */
} gac_size_kind;

/* The size in which a slice of size numbers is kept; at least size. */
typedef int64_t (*gac_padding)(gac_size_kind kind, int64_t size);

typedef struct gac_compute_options {
    gac_dtype dtype;     /* cuda: F16 or BF16; the CPUs compute in F32 */
    gac_padding padding; /* the rule that cuda obeys; NULL: sizes stay as they are */
    int n_threads;       /* CPUs; 0: one for each core */
    int64_t max_rows;    /* rows that a pass may have: batch times new tokens; at least 1 */
} gac_compute_options;

#define GAC_COMPUTE_OPTIONS_INIT \
    { \
        GAC_DTYPE_F16, NULL, 0, 1 \
    }

/* How families of models differ from Llama. A device states which of these it computes
 * (gac_compute_ops.variations), and is not asked for others. */
typedef enum gac_variation {
    GAC_VARIATION_LAYER_NORM = 1 << 0, /* norms that subtract the mean, or have a bias */
    GAC_VARIATION_ACTIVATION = 1 << 1, /* an activation other than silu, an MLP without a gate */
    GAC_VARIATION_OUT_NORM = 1 << 2,   /* a norm of a module's output */
    GAC_VARIATION_SCALE = 1 << 3,      /* scaled embeddings, outputs or logits */
    GAC_VARIATION_SOFTCAP = 1 << 4,    /* bounded scores or logits */
    GAC_VARIATION_WINDOW = 1 << 5,     /* attention to the last tokens only */
    GAC_VARIATION_ROTATION = 1 << 6,   /* of neighbours, of a part of a head, or none */
    GAC_VARIATION_HEAD_NORM = 1 << 7,  /* norms over all heads together, or one per head */
    GAC_VARIATION_POSITIONS = 1 << 8,  /* a table of positions is added to the embedding */
    GAC_VARIATION_EXPERTS = 1 << 9,    /* a router chooses some of several MLPs */
    GAC_VARIATION_ALL = (1 << 10) - 1
} gac_variation;

typedef enum gac_activation {
    GAC_ACTIVATION_SILU,      /* x / (1 + exp(-x)) */
    GAC_ACTIVATION_GELU,      /* x times the normal distribution at x */
    GAC_ACTIVATION_GELU_TANH, /* its approximation by tanh */
    GAC_ACTIVATION_RELU,
    GAC_ACTIVATION_COUNT
} gac_activation;

/* out = scale * a row of the table + a row of positions, for each token. The table is one module
 * of one part, with an out axis of one slice. */
typedef struct gac_embed_call {
    const gac_matrix *table;
    gac_rows *out;
    double scale;                /* 0: none */
    const gac_matrix *positions; /* as table, or NULL */
    int64_t first_position;      /* row of positions for the first token of a sequence */
} gac_embed_call;

typedef struct gac_routing gac_routing; /* which rows go to which expert */

/* Scores experts for each row x, after the norm, by the matrix (n_experts outputs), and
 * chooses the n_chosen best of each row, the lowest first if several are equal. The
 * weight of an expert is its softmax over all experts, or its sigmoid. */
typedef struct gac_route_call {
    const gac_matrix *matrix;
    const gac_rows *x;
    const gac_vector *norm; /* as in gac_linear_call */
    double eps;
    gac_rows *normed; /* gets the rows that went in, or NULL; as wide as x */
    int64_t n_chosen;
    bool normalise; /* the weights of a row are divided by their sum */
    bool sigmoid;
    gac_routing *routing; /* gets the choice */
} gac_route_call;

typedef enum gac_linear_mode {
    GAC_LINEAR_SET,      /* out = y */
    GAC_LINEAR_ADD,      /* out += y; out is the residual stream */
    GAC_LINEAR_GATED,    /* two modules: out = activation(y of the first) * y of the second */
    GAC_LINEAR_ACTIVATED /* out = activation(y) */
} gac_linear_mode;

typedef struct gac_linear_call {
    const gac_matrix *matrix;
    const gac_rows *x;
    const gac_vector *norm; /* x / rms(x) * norm goes in; NULL: x itself */
    double eps;             /* of the norms */
    gac_rows *out;
    gac_linear_mode mode;
    /* Variations; 0 and NULL mean none. */
    gac_activation activation;
    bool centred;                /* norms subtract the mean first (LayerNorm) */
    const gac_vector *norm_bias; /* added after norm */
    const gac_vector *out_norm;  /* of y, for ADD */
    double scale;                /* multiplies y, for ADD and logits; 0: none */
    double softcap;              /* logits: c tanh(y / c); 0: none */
    /* Only the rows that chose an expert. GATED and ACTIVATED read them and write as many
     * rows from the first on. ADD reads those, and adds them to the rows that chose the
     * expert, each times its weight. */
    const gac_routing *routing;
    int32_t expert;
} gac_linear_call;

/* Causal attention of the new tokens over the cache and themselves. Rows of qkv hold the q heads,
 * the k heads and the v heads one after another. q and k are normed per head where norms are given,
 * rotated (number i of a head with number i + size / 2, by the angle whose cosine is at [position,
 * i] of the table) and k and v go into the cache. Query head h reads kv head h / (n_q_heads /
 * n_kv_heads). */
typedef struct gac_attention_call {
    gac_cache *cache;
    const gac_rows *qkv;
    gac_rows *out; /* heads of v's size */
    int64_t n_q_heads, n_kv_heads;
    int64_t qk_size, qk_stored, v_size, v_stored; /* per head */
    const gac_vector *q_norm, *k_norm;            /* (qk_size), or NULL */
    double eps;
    const gac_vector *cosines, *sines; /* (positions, qk_size / 2), or NULL: not rotated */
    double scale;                      /* of the softmax */
    /* Variations; 0 and NULL mean none. A norm of all q or k heads together has a number for
     * each of theirs, and so may a norm per head. */
    bool norm_whole;     /* q_norm and k_norm norm all heads together */
    bool norm_centred;   /* they subtract the mean */
    bool interleaved;    /* number 2 i is rotated with number 2 i + 1 */
    int64_t rotary_size; /* only so many numbers of a head are rotated, the first ones; 0: all.
                          * The tables have half as many columns */
    double softcap;      /* scores: c tanh(score / c); 0: none */
    int64_t window;      /* a token sees so many tokens, its own included; 0: all */
} gac_attention_call;

/* Factoring weights. */

typedef enum gac_factor_kind {
    GAC_FACTOR_SPECTRUM, /* directions of the output, the most important ones first */
    GAC_FACTOR_PROJECT,  /* the first factor for some of these directions */
    GAC_FACTOR_CHANNELS, /* groups of inputs, the most important ones first */
    GAC_FACTOR_REFIT     /* the weight that serves best if only some inputs are kept */
} gac_factor_kind;

/* One weight W (n_out, n_in) whose inputs x have the Gram matrix G = sum of x x^T. An
 * approximation W' loses tr((W - W') G (W - W')^T): the squared error of the outputs,
 * summed over all inputs. All sums are in F64.
 *
 * SPECTRUM: U has orthonormal columns, and W' = U_r U_r^T W of its first r columns is the
 * best W' of rank r. It loses energy[r] + energy[r + 1] + ...
 *
 * PROJECT: the first factor U_r^T W (n_kept, n_in) for r = n_kept; U_r is the second.
 *
 * CHANNELS: inputs come in n_in / block groups of block neighbours. Repeatedly takes the
 * group that explains most of the output that is still unexplained. loss[i] is what is
 * lost if the first i groups of the order are kept, and W is refitted to them.
 *
 * REFIT: W' (n_out, n_kept) = W G_:K G_KK^-1 for the kept inputs K. */
typedef struct gac_factor_job {
    gac_factor_kind kind;
    int64_t n_out, n_in;
    const float *weight;  /* (n_out, n_in) */
    const double *gram;   /* (n_in, n_in), symmetric; NULL: the identity */
    double *energy;       /* SPECTRUM: (min(n_out, n_in)), falling */
    float *basis;         /* SPECTRUM: U (n_out, min(n_out, n_in)), an output; PROJECT: an input */
    int64_t basis_stride; /* PROJECT: floats between rows of basis */
    int64_t block;        /* CHANNELS: inputs in a group; divides n_in */
    int32_t *order;       /* CHANNELS: (n_in / block) groups */
    double *loss;         /* CHANNELS: (n_in / block + 1) */
    const int32_t *kept;  /* REFIT: (n_kept) inputs */
    int64_t n_kept;       /* PROJECT, REFIT */
    float *made;          /* PROJECT: (n_kept, n_in); REFIT: (n_out, n_kept) */
    const char *name;     /* for messages */
} gac_factor_job;

/* Gradients. */

/* A linear module y = x W^T + bias. gram, if not NULL, adds g g^T for the gradients g of y. The
 * gradient of something is that of the loss with respect to it. */
typedef struct gac_backward_linear {
    gac_host_tensor weight; /* (n_out, n_in) */
    const float *bias;      /* (n_out), or NULL */
    gac_gram *gram;
} gac_backward_linear;

enum {
    GAC_BACKWARD_Q,
    GAC_BACKWARD_K,
    GAC_BACKWARD_V,
    GAC_BACKWARD_O,
    GAC_BACKWARD_GATE,
    GAC_BACKWARD_UP,
    GAC_BACKWARD_DOWN,
    GAC_BACKWARD_COUNT
};

/* A layer of Llama's kind, for sequences that start at position 0. The forward pass through it is
 * computed again from x. */
typedef struct gac_backward_layer {
    int64_t n_sequences, n_tokens, hidden, n_q_heads, n_kv_heads, qk_size, v_size;
    gac_backward_linear linear[GAC_BACKWARD_COUNT];
    const float *attention_norm, *mlp_norm; /* (hidden) */
    const float *q_norm, *k_norm;           /* (qk_size), or NULL */
    const float *cosines, *sines;           /* (n_tokens, qk_size / 2), or NULL: not rotated */
    int64_t window;    /* a token sees so many tokens, its own included; 0: all */
    double eps, scale; /* of the norms, and of the softmax */
    const float *x;    /* (n_sequences, n_tokens, hidden), the input */
    float *gradient;   /* as x: of the output; replaced by that of x */
} gac_backward_layer;

/* The end of a model: a norm and an output head. The loss of a row is -log of the probability of
 * one token, which is drawn from the model's own output. */
typedef struct gac_backward_head {
    int64_t n_rows, hidden, vocab;
    gac_host_tensor weight; /* (vocab, hidden) */
    const float *norm;      /* (hidden) */
    double eps;
    const float *x;         /* (n_rows, hidden), what the norm gets */
    float *logits;          /* (n_rows, vocab); may be overwritten */
    const double *log_sums; /* (n_rows): log of the sum of the exponentials of a row */
    const double *draws;    /* (n_rows), from 0 to 1: choose the tokens */
    float *gradient;        /* (n_rows, hidden), of x: the result */
} gac_backward_head;

typedef struct gac_compute_memory {
    int64_t weight_bytes; /* on the device, vectors too; on the CPUs what is mapped */
    int64_t cache_bytes;
    int64_t work_bytes; /* rows, and what libraries and calls want; it only grows */
} gac_compute_memory;

/* What a device provides. Every function that can fail returns a status with
 * one line in err. Sizes reach it checked: widths of rows fit the matrices. */
typedef struct gac_compute_ops {
    const char *name;
    unsigned variations; /* of gac_variation: what this device computes */
    gac_status (*open)(void *device_state, const gac_compute_options *options, void **state,
                       gac_error *err);
    void (*close)(void *state);
    /* The size in which one slice is kept here: by the padding of the options where
     * the device pads at all, else size. */
    int64_t (*stored)(void *state, gac_size_kind kind, int64_t size);
    void (*memory)(void *state, gac_compute_memory *out);

    /* The input axis is one of the axes of the rows it will be called with. GAC_BAD_INPUT, with
     * tensor and index, for a weight that is not finite or too large for the dtype. */
    gac_status (*matrix_create)(void *state, gac_axis in, const gac_linear_module *modules,
                                int n_modules, gac_matrix **out, gac_error *err);
    void (*matrix_free)(void *state, gac_matrix *matrix); /* NULL is fine, as below */
    gac_status (*vector_create)(void *state, const float *data, int64_t n, gac_vector **out,
                                gac_error *err);
    void (*vector_free)(void *state, gac_vector *vector);
    /* max_rows rows of width numbers, zero at first; residual ones are F32. */
    gac_status (*rows_create)(void *state, int64_t width, bool residual, gac_rows **out,
                              gac_error *err);
    /* Rows in the memory of others that are no narrower; neither are residual.
     * Calls write rows from end to end, so that only one of them can be in use at
     * a time, and none outlives the first. */
    gac_status (*rows_within)(void *state, gac_rows *first, int64_t width, gac_rows **out,
                              gac_error *err);
    void (*rows_free)(void *state, gac_rows *rows);
    gac_status (*rows_read)(void *state, const gac_rows *rows, int64_t first, int64_t n, float *out,
                            gac_error *err);
    /* Sets rows of a whole width; in is (n, width). */
    gac_status (*rows_write)(void *state, gac_rows *rows, int64_t first, int64_t n, const float *in,
                             gac_error *err);
    gac_status (*cache_create)(void *state, int64_t batch, int64_t capacity, int64_t n_kv_heads,
                               int64_t qk_stored, int64_t v_stored, gac_cache **out,
                               gac_error *err);
    /* Another shape in the same memory: batch times capacity is at most what it
     * was at first. What the cache held is lost, and so is a recording. */
    gac_status (*cache_shape)(void *state, gac_cache *cache, int64_t batch, int64_t capacity,
                              gac_error *err);
    void (*cache_free)(void *state, gac_cache *cache);

    /* Starts a pass of n_new tokens for each of batch sequences (rows in that
     * order), which have n_past in the caches already. ids is (batch, n_new). */
    gac_status (*begin)(void *state, const int32_t *ids, int64_t batch, int64_t n_new,
                        int64_t n_past, gac_error *err);
    gac_status (*embed)(void *state, const gac_embed_call *call, gac_error *err);
    gac_status (*linear)(void *state, const gac_linear_call *call, gac_error *err);
    gac_status (*attend)(void *state, const gac_attention_call *call, gac_error *err);
    /* Logits of the rows first, first + step, ... n of them (at most GAC_MAX_LOGIT_ROWS), kept
     * until the next call; call->out and mode are not looked at. */
    gac_status (*logits)(void *state, const gac_linear_call *call, int64_t first, int64_t step,
                         int64_t n, gac_error *err);
    gac_status (*logits_read)(void *state, float *out, gac_error *err); /* (n, vocab) */
    /* -log softmax(logits)[target] of each row of the logits; targets (n). */
    gac_status (*losses)(void *state, const int32_t *targets, double *out, gac_error *err);
    /* Waits until everything asked for is done. */
    gac_status (*finish)(void *state, gac_error *err);

    /* Records the calls of a pass with n_new 1 between record(true) and record(false), without
     * running them, to be run again by replay after another begin of the same batch. NULL: the
     * device has no use for it. A second recording replaces the first. replay answers GAC_USAGE
     * where there is none: a device may give one up when it needs more memory. */
    gac_status (*record)(void *state, bool start, gac_error *err);
    gac_status (*replay)(void *state, gac_error *err);

    /* Choosing experts; NULL without GAC_VARIATION_EXPERTS. A routing has room for routers of
     * up to n_experts, and n_chosen experts of each of max_rows rows. */
    gac_status (*routing_create)(void *state, int64_t n_experts, int64_t n_chosen,
                                 gac_routing **out, gac_error *err);
    void (*routing_free)(void *state, gac_routing *routing);
    gac_status (*route)(void *state, const gac_route_call *call, gac_error *err);

    /* For compression. All NULL, rows_write too: the device has none of it.
     *
     * A gram sums x x^T and |x| in F64 over rows x of n numbers. gram_add adds the rows
     * that a linear call would multiply, after its norm; call->out and mode are not looked
     * at. gram_read gives the sums: matrix (n, n), magnitude (n). */
    gac_status (*gram_create)(void *state, int64_t n, gac_gram **out, gac_error *err);
    void (*gram_free)(void *state, gac_gram *gram);
    gac_status (*gram_add)(void *state, const gac_linear_call *call, gac_gram *gram,
                           gac_error *err);
    gac_status (*gram_read)(void *state, const gac_gram *gram, double *matrix, double *magnitude,
                            gac_error *err);
    /* Does all jobs. GAC_BAD_INPUT, with the job's name, where a weight or a Gram matrix
     * has numbers that are not finite; GAC_FAILED where a decomposition does not converge. */
    gac_status (*factor)(void *state, const gac_factor_job *jobs, int n_jobs, gac_error *err);
    /* Passes gradients back through a layer and through the end of a model. GAC_BAD_INPUT, with
     * tensor and index, where `cuda` finds a weight that is not finite. */
    gac_status (*backward_layer)(void *state, const gac_backward_layer *job, gac_error *err);
    gac_status (*backward_head)(void *state, const gac_backward_head *job, gac_error *err);
} gac_compute_ops;

#define GAC_MAX_LOGIT_ROWS 256

typedef struct gac_compute {
    const gac_compute_ops *ops;
    void *state;
    gac_device *device; /* that it lives on; NULL for the CPUs */
} gac_compute;

#define GAC_COMPUTE_INIT \
    { \
        NULL, NULL, NULL \
    }

/* Opens "reference", "cpu", "cuda" or "cuda:N". Errors as gac_device_open. */
gac_status gac_compute_open(const char *name, const gac_compute_options *options, gac_compute *out,
                            gac_error *err);
void gac_compute_close(gac_compute *compute); /* GAC_COMPUTE_INIT and NULL are fine */

/* Plug-ins. */

#define GAC_BACKEND_ABI 7

/* What a plug-in provides: libgac_NAME.so exports a function gac_backend_entry that returns a table
 * like this. Specs reach it checked. A slot that is NULL is something the backend cannot do. */
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
    gac_status (*task_time)(void *task, int *n_calls, bool graph, double *time_us, gac_error *err);
    gac_status (*task_kernels)(void *task, gac_kernel *kernels, int max, int *n, gac_error *err);
    const gac_compute_ops *compute; /* open gets the state of open above */
} gac_backend;

typedef const gac_backend *(*gac_backend_entry_fn)(void);
#define GAC_BACKEND_ENTRY "gac_backend_entry"

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
