/* What gac inspect found, before it is printed. */
#ifndef GAC_CLI_INSPECT_H
#define GAC_CLI_INSPECT_H

#include "cli.h"

typedef struct phase_times {
    char label[64];     /* prefill:1x2048 */
    double rest_ms;     /* of it outside GEMM and attention, as the contract's runtime has it */
    double now_ms;      /* with the sizes as they are */
    double exact_ms;    /* with the suggested sizes where zeros are exact */
    double rescaled_ms; /* and where they are exact up to rounding */
} phase_times;

/* How tensors lie in their files. */
typedef struct file_alignment {
    int32_t n_off_element; /* tensors that start off a multiple of their element */
    int32_t n_off_8, n_off_64;
    int32_t n_files_off_4096; /* files whose data starts off that boundary */
} file_alignment;

/* The distinct sizes of a role, in ascending order. */
typedef struct size_bin {
    int64_t size;
    int32_t count;
    bool aligned;
} size_bin;

typedef struct role_summary {
    int32_t n_dims, n_misaligned;
    int32_t n_bins;
    size_bin *bins;
} role_summary;

typedef struct inspection {
    gac_checkpoint *checkpoint;
    gac_model *model;
    gac_contract *contract;
    gac_workload workload;
    const char *workload_text;
    gac_target target;
    gac_dtype wanted;                     /* what target.dtype may stand in for */
    gac_dim_advice *advice;               /* (n_dims) */
    bool summary_is_compressed;           /* the summary counts what a compressor chose */
    int32_t n_dims, n_misaligned;         /* of the summary */
    int32_t n_dims_all, n_misaligned_all; /* of every dimension */
    role_summary roles[GAC_ROLE_COUNT];
    phase_times phases[GAC_MAX_PHASES];
    double overhead_pct; /* of the exact repair */
    file_alignment files;
    char advice_text[1536];
    char rough[1024]; /* that the contract's predictions are rough, or empty */
} inspection;

gac_status inspect_compute(cli *c, inspection *x);
void inspect_dispose(inspection *x);
void inspect_print(const inspection *x);
gac_status inspect_print_json(cli *c, const inspection *x, bool places);

/* Share in percent; 0 of nothing is 0. */
double inspect_pct(int32_t part, int32_t whole);

#endif
