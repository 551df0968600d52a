/* inspect: judges a model by a contract.
 *
 * Finds which dimensions of a model the GPU serves badly, what that costs in a
 * workload, and whether repairing them pays. It reads headers, never weights,
 * and prints nothing.
 *
 * Inspecting changes neither the model nor the contract, so several threads may
 * inspect the same ones at once. Several threads may also read one
 * inspection. */
#ifndef GAC_INSPECT_H
#define GAC_INSPECT_H

#include <gac/base.h>
#include <gac/contract.h>
#include <gac/model.h>
#include <gac/plan.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

typedef struct gac_inspect_options {
    const gac_workload *workload; /* the phases to time; NULL: GAC_DEFAULT_WORKLOAD */
    gac_dtype dtype;     /* the dtype that the model will run in; GAC_DTYPE_COUNT: as stored */
    int64_t n_gpus;      /* tensor parallelism; 1 for none */
    int64_t quant_group; /* quantisation group along k; 0 for none */
} gac_inspect_options;

#define GAC_INSPECT_OPTIONS_INIT \
    { \
        NULL, GAC_DTYPE_COUNT, 1, 0 \
    }

/* The answer. */

/* A predicted time above this share of the present one is no gain, because
 * predictions are not accurate enough. */
#define GAC_WORTH_IT 0.97

/* Whether repair pays, and if not, why not. */
typedef enum gac_verdict {
    GAC_VERDICT_PAYS,          /* with sizes where zeros are exact */
    GAC_VERDICT_PAYS_RESCALED, /* only if rescaled sizes, exact up to rounding, are allowed */
    GAC_VERDICT_ALIGNED,       /* no: every size is aligned */
    GAC_VERDICT_REFUSED,       /* no: the misaligned sizes cannot be padded */
    GAC_VERDICT_SLOWER,        /* no: the aligned sizes are predicted to be slower */
    GAC_VERDICT_SMALL,         /* no: the gain is below GAC_WORTH_IT in every phase */
    GAC_VERDICT_NO_TIMES,      /* not known: the contract has no times */
    GAC_VERDICT_NOT_JUDGED,    /* not known: less than GAC_LEAST_UNDERSTOOD_PCT was understood */
    GAC_VERDICT_COUNT
} gac_verdict;

/* "pays", "pays-rescaled", "aligned", "refused", "slower", "small", "no-times", "not-judged". */
const char *gac_verdict_name(gac_verdict verdict);

/* Predicted times of one phase of the workload. Ratios are relative to now_ms. */
typedef struct gac_phase_times {
    char label[64];     /* the phase as in a workload: prefill:1x2048 */
    double rest_ms;     /* the part of each time outside GEMM and attention */
    double now_ms;      /* with the present sizes */
    double exact_ms;    /* with the suggested sizes where zeros are exact */
    double rescaled_ms; /* with the suggested sizes where zeros are exact or rescaled */
    double exact_ratio, rescaled_ratio;
} gac_phase_times;

/* The dimensions of one role that have one size. */
typedef struct gac_size_count {
    int64_t size;
    int32_t count;
    bool aligned; /* all of them are aligned */
} gac_size_count;

/* The dimensions of one role. */
typedef struct gac_role_sizes {
    int32_t n_dims, n_misaligned;
    int32_t n_sizes;
    gac_size_count *sizes; /* (n_sizes), distinct, ascending */
} gac_role_sizes;

/* Alignment of tensors in their files. Loaders can map aligned tensors without
 * a copy. */
typedef struct gac_file_offsets {
    int32_t n_off_element; /* tensors that do not start at a multiple of their element */
    int32_t n_off_8, n_off_64;
    int32_t n_files_off_4096; /* files whose data does not start at such a boundary */
} gac_file_offsets;

typedef struct gac_inspection {
    gac_target target; /* how sizes were judged; its dtype is one that the contract serves */
    gac_dtype wanted;  /* the requested dtype; target.dtype may be its stand-in */
    gac_workload workload;

    int32_t n_dims, n_misaligned;          /* counts of all dimensions */
    int32_t n_chosen, n_chosen_misaligned; /* counts of those whose size a compressor chose */
    gac_dim_advice *advice;                /* (n_dims), by index in the model */
    unsigned *seen_by; /* (n_dims), bit 1 << gac_op_axis for each axis that the dimension is on */
    gac_role_sizes roles[GAC_ROLE_COUNT];
    gac_file_offsets files;

    gac_phase_times phases[GAC_MAX_PHASES]; /* (workload.n_phases) */
    double exact_ratio, rescaled_ratio; /* of the whole workload; phases count by their weights */
    double overhead_pct;                /* growth in bytes with the exact sizes */
    gac_verdict verdict;
    double understood_pct; /* of the model, as gac_model_understood_pct */
    int64_t stuck_width;   /* a width of experts that do not run at all in the default path of
                              transformers; 0 if there is none */
    bool rescaled_gains; /* allowing rescaled sizes gains more than GAC_WORTH_IT over exact ones */
    char rough[1024];    /* a warning that the contract's predictions are rough, or empty */
} gac_inspection;

/* Judges model by contract. Both must outlive *out, which borrows texts from
 * the contract. options may be NULL. The caller owns *out. GAC_USAGE for a
 * dtype that the contract does not serve, for fewer than 1 GPU and for a
 * workload without phases. */
gac_status gac_inspect(const gac_model *model, const gac_contract *contract,
                       const gac_inspect_options *options, gac_inspection **out, gac_error *err);
void gac_inspection_free(gac_inspection *inspection); /* NULL is fine */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
