/* inspect: a model judged by a contract.
 *
 * Says which dimensions of a model the GPU serves badly, what that costs in a
 * workload, and whether repairing them pays. Reads headers only, never weights.
 * How an answer is printed is not known here.
 *
 * A model and a contract do not change while they are inspected, so several
 * threads may inspect the same ones at once. An inspection is not changed after
 * it was made and may be read by several threads. */
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
    const gac_workload *workload; /* what to sum; NULL: GAC_DEFAULT_WORKLOAD */
    gac_dtype dtype;              /* that the model will run in; GAC_DTYPE_COUNT: as it is stored */
    int64_t n_gpus;               /* tensor parallelism; 1 for none */
    int64_t quant_group;          /* quantisation group along k; 0 for none */
} gac_inspect_options;

#define GAC_INSPECT_OPTIONS_INIT \
    { \
        NULL, GAC_DTYPE_COUNT, 1, 0 \
    }

/* ---- The answer -------------------------------------------------------- */

/* A predicted time above this part of the present one is no gain: the
 * difference is within what predictions can tell. */
#define GAC_WORTH_IT 0.97

/* Whether repair pays, and if not, why not. */
typedef enum gac_verdict {
    GAC_VERDICT_PAYS,          /* with sizes where zeros are exact */
    GAC_VERDICT_PAYS_RESCALED, /* only if sizes that are exact up to rounding are allowed too */
    GAC_VERDICT_ALIGNED,       /* no: every size is aligned */
    GAC_VERDICT_REFUSED,       /* no: what is misaligned cannot be padded */
    GAC_VERDICT_SLOWER,        /* no: the aligned sizes are predicted to be slower */
    GAC_VERDICT_SMALL,         /* no: the gain is below GAC_WORTH_IT in every phase */
    GAC_VERDICT_NO_TIMES,      /* not known: the contract has no times */
    GAC_VERDICT_COUNT
} gac_verdict;

/* "pays", "pays-rescaled", "aligned", "refused", "slower", "small", "no-times". */
const char *gac_verdict_name(gac_verdict verdict);

/* Predicted times of one phase of the workload. A ratio is over now_ms. */
typedef struct gac_phase_times {
    char label[64];     /* as a workload spells it: prefill:1x2048 */
    double rest_ms;     /* of each time, what is outside GEMM and attention */
    double now_ms;      /* with the sizes as they are */
    double exact_ms;    /* with the suggested sizes where zeros are exact */
    double rescaled_ms; /* and where they are exact up to rounding */
    double exact_ratio, rescaled_ratio;
} gac_phase_times;

/* Dimensions of one size. */
typedef struct gac_size_count {
    int64_t size;
    int32_t count;
    bool aligned; /* all of them */
} gac_size_count;

/* The dimensions of one role. */
typedef struct gac_role_sizes {
    int32_t n_dims, n_misaligned;
    int32_t n_sizes;
    gac_size_count *sizes; /* (n_sizes), distinct, ascending */
} gac_role_sizes;

/* How tensors lie in their files: whether loaders can map them without a copy. */
typedef struct gac_file_offsets {
    int32_t n_off_element; /* tensors that start off a multiple of their element */
    int32_t n_off_8, n_off_64;
    int32_t n_files_off_4096; /* files whose data starts off that boundary */
} gac_file_offsets;

typedef struct gac_inspection {
    gac_target target; /* what sizes were judged by: the dtype is one the contract serves */
    gac_dtype wanted;  /* the dtype that target.dtype may stand in for */
    gac_workload workload;

    int32_t n_dims, n_misaligned;          /* of every dimension */
    int32_t n_chosen, n_chosen_misaligned; /* of those that a compressor chose */
    gac_dim_advice *advice;                /* (n_dims), by index in the model */
    unsigned *seen_by; /* (n_dims), bit 1 << gac_op_axis for each that sees it */
    gac_role_sizes roles[GAC_ROLE_COUNT];
    gac_file_offsets files;

    gac_phase_times phases[GAC_MAX_PHASES]; /* (workload.n_phases) */
    double exact_ratio, rescaled_ratio;     /* of the whole workload, phases by their weights */
    double overhead_pct;                    /* growth in bytes by the exact sizes */
    gac_verdict verdict;
    bool rescaled_gains; /* allowing rescaled sizes gains more than GAC_WORTH_IT over exact ones */
    char rough[1024];    /* one line that the contract's predictions are rough, or empty */
} gac_inspection;

/* Judges model by contract; both must outlive *out, which borrows texts of the
 * contract. options may be NULL. The caller owns *out. GAC_USAGE for a dtype
 * that the contract does not serve, for fewer than 1 GPU and for a workload
 * without phases. */
gac_status gac_inspect(const gac_model *model, const gac_contract *contract,
                       const gac_inspect_options *options, gac_inspection **out, gac_error *err);
void gac_inspection_free(gac_inspection *inspection); /* NULL is fine */

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
