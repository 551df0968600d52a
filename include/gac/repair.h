/* repair: gives a model other sizes without changing what it computes.
 *
 * Applies sizes to a checkpoint by inserting zeros at every place of a
 * dimension, undoes that from the result alone, and checks that a result is the
 * original with nothing but zeros added. Data is streamed, so memory use does
 * not depend on the size of the model.
 *
 * A call reads its checkpoints, so no other thread may read them meanwhile.
 * Calls for different checkpoints may run in different threads at once. */
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
    GAC_WIDTHS_AUTO,             /* as in the input; per_layer_config if the input states none */
    GAC_WIDTHS_UNIFORM,          /* one width for all layers, or an error */
    GAC_WIDTHS_PER_LAYER_CONFIG, /* transformers 5.15 and later */
    GAC_WIDTHS_BLOCK_CONFIGS     /* DeciLM, served by vLLM */
} gac_widths;

typedef struct gac_repair_options {
    uint64_t max_shard_bytes; /* 0: the same files as the input */
    bool allow_rescaled;      /* also change dimensions that are exact only up to rounding */
    bool replace;             /* an existing target is replaced */
    bool no_sync;             /* do not wait until the target is on disk */
    gac_widths widths;
    gac_progress *progress;     /* NULL: none */
    const volatile int *cancel; /* the caller sets it to stop the repair; or NULL */
} gac_repair_options;

#define GAC_REPAIR_OPTIONS_INIT \
    { \
        0, false, false, false, GAC_WIDTHS_AUTO, NULL, NULL \
    }

typedef struct gac_repair_result {
    int32_t n_dims_changed;
    int32_t n_tensors_changed;
    uint64_t bytes_before, bytes_after; /* bytes of tensor data */
    bool corrects_config; /* the config stated other sizes than the tensors had, and changes */
    bool proved;          /* undo: the result has the checksums of the original */
} gac_repair_result;

/* Checks whether sizes (one per dimension of model) can be applied: no size is
 * smaller than now, no refused dimension changes, no rescaled one changes
 * unless allowed, and tied dimensions stay equal. Here and below, options may
 * be NULL. Errors: GAC_USAGE naming the dimension. */
gac_status gac_repair_check(const gac_model *model, const int64_t *sizes,
                            const gac_repair_options *options, gac_error *err);

/* Computes what gac_repair_apply would do, without writing anything. */
gac_status gac_repair_preview(const gac_model *model, const int64_t *sizes,
                              const gac_repair_options *options, gac_repair_result *result,
                              gac_error *err);

/* Writes the checkpoint of model with the given sizes to the directory out.
 * checkpoint must be the one the model was made from. result may be NULL. */
gac_status gac_repair_apply(gac_checkpoint *checkpoint, const gac_model *model,
                            const int64_t *sizes, const char *out,
                            const gac_repair_options *options, gac_repair_result *result,
                            gac_error *err);

/* Writes the original of a repaired checkpoint to the directory out. Every
 * tensor and config.json have their original bytes. Before out appears, their
 * checksums are compared with those of the record. Records of version 0.1 have
 * no checksums; then result->proved is false. Errors: GAC_BAD_INPUT if the
 * checkpoint was not repaired, if inserted zeros are no longer zero, if the
 * record was changed, or if the result is not the original. */
gac_status gac_repair_undo(gac_checkpoint *checkpoint, const char *out,
                           const gac_repair_options *options, gac_repair_result *result,
                           gac_error *err);

typedef struct gac_verification {
    bool lossless;     /* removing the padding gives the original bytes of every tensor */
    bool pads_zero;    /* every inserted byte is zero */
    bool config_ok;    /* the config is the one that the repair of the original writes */
    bool same_tensors; /* none missing, none extra */
    bool same_files;   /* every other file equals the original's; none is missing or extra */
    bool record_ok;    /* the record describes this original and these sizes */
    bool has_record;   /* there is a record; a repair cannot be undone without it */
    bool old_record;   /* the record is of version 0.1 and has no checksums */
    bool rescaled;     /* some tensors were scaled, and compared with their kept originals */
    int32_t n_tensors; /* number of tensors compared */
    int32_t n_dims_changed;
    char difference[512]; /* the first difference, or empty */
} gac_verification;

/* Checks whether repaired is the same model as original. It derives everything
 * that a repair must have written and compares all of it, except for config
 * keys and files that do not concern the model (docs/repair.md lists them).
 * Returns GAC_OK if the comparison was possible, whatever its result. Errors:
 * GAC_BAD_INPUT if the record does not match its own checksum. */
gac_status gac_repair_verify(gac_checkpoint *original, const gac_model *model,
                             gac_checkpoint *repaired, const gac_model *repaired_model,
                             gac_progress *progress, gac_verification *out, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
