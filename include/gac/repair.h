/* repair: the same model with other sizes.
 *
 * Applies a choice of sizes to a checkpoint by putting zeros in at every place
 * of a dimension, undoes that from the result alone, and checks that a result
 * is the original with nothing but zeros added. Data is streamed; memory does
 * not follow the size of the model.
 *
 * A call reads its checkpoints, which no other thread may do meanwhile. Calls for
 * different checkpoints may run at once in different threads. */
#ifndef GAC_REPAIR_H
#define GAC_REPAIR_H

#include <gac/base.h>
#include <gac/checkpoint.h>
#include <gac/model.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* How a config states MLP widths that differ between layers. */
typedef enum gac_widths {
    GAC_WIDTHS_AUTO,             /* as the input does; per_layer_config where it is silent */
    GAC_WIDTHS_UNIFORM,          /* one width for all layers, or an error */
    GAC_WIDTHS_PER_LAYER_CONFIG, /* transformers 5.15 and later */
    GAC_WIDTHS_BLOCK_CONFIGS     /* DeciLM, served by vLLM */
} gac_widths;

typedef struct gac_repair_options {
    uint64_t max_shard_bytes; /* 0: the files of the input */
    bool allow_rescaled;      /* also sizes that are the same up to rounding only */
    bool replace;             /* an existing target is replaced */
    bool no_sync;             /* do not wait until the target is on disk */
    gac_widths widths;
    gac_progress *progress;     /* NULL: none */
    const volatile int *cancel; /* set from outside to stop; NULL: never */
} gac_repair_options;

#define GAC_REPAIR_OPTIONS_INIT \
    { \
        0, false, false, false, GAC_WIDTHS_AUTO, NULL, NULL \
    }

typedef struct gac_repair_result {
    int32_t n_dims_changed;
    int32_t n_tensors_changed;
    uint64_t bytes_before, bytes_after; /* of tensor data */
    bool proved;                        /* undoing: the result has the checksums of the original */
} gac_repair_result;

/* Whether sizes (one per dimension of model) can be applied: none smaller than
 * now, none of a refused dimension changed, none of a rescaled one unless
 * allowed, tied ones equal. options may be NULL, here and below. Errors: GAC_USAGE
 * naming the dimension. */
gac_status gac_repair_check(const gac_model *model, const int64_t *sizes,
                            const gac_repair_options *options, gac_error *err);

/* What gac_repair_apply would do, without writing anything. */
gac_status gac_repair_preview(const gac_model *model, const int64_t *sizes,
                              const gac_repair_options *options, gac_repair_result *result,
                              gac_error *err);

/* Writes the checkpoint of model with the given sizes to the directory out.
 * checkpoint must be the one the model was made from. result may be NULL. */
gac_status gac_repair_apply(gac_checkpoint *checkpoint, const gac_model *model,
                            const int64_t *sizes, const char *out,
                            const gac_repair_options *options, gac_repair_result *result,
                            gac_error *err);

/* Writes the original of a repaired checkpoint to the directory out; every
 * tensor and config.json have their original bytes, and their checksums are
 * compared with the record's before out appears. Records of version 0.1 have no
 * checksums: then result->proved is false. Errors: GAC_BAD_INPUT when it was not
 * repaired, when values stand where zeros were put in, and when the record was
 * changed or the result is not the original. */
gac_status gac_repair_undo(gac_checkpoint *checkpoint, const char *out,
                           const gac_repair_options *options, gac_repair_result *result,
                           gac_error *err);

typedef struct gac_verification {
    bool lossless;     /* un-padding gives the original bytes, tensor by tensor */
    bool pads_zero;    /* every byte that was put in is zero */
    bool config_ok;    /* the config is what the repair of the original's must be */
    bool same_tensors; /* none missing, none extra */
    bool same_files;   /* every other file is the original's, none missing, none extra */
    bool record_ok;    /* the record tells of this original and of these sizes */
    bool has_record;   /* there is one; without it a repair cannot be undone */
    bool old_record;   /* it is of version 0.1 and has no checksums to compare */
    bool rescaled;     /* some tensors were scaled, and held against their kept originals */
    int32_t n_tensors; /* compared */
    int32_t n_dims_changed;
    char difference[512]; /* the first one, or empty */
} gac_verification;

/* Whether repaired is the same model as original: works out what a repair must
 * have written and compares all of it, but for config keys and files that say
 * nothing about the model (docs/repair.md lists them). GAC_OK when the comparison
 * could be made, whatever it found. Errors: GAC_BAD_INPUT when the record does not
 * fit its own checksum. */
gac_status gac_repair_verify(gac_checkpoint *original, const gac_model *model,
                             gac_checkpoint *repaired, const gac_model *repaired_model,
                             gac_progress *progress, gac_verification *out, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
