/* Shared by the files that verify a repair. */
#ifndef GAC_REPAIR_VERIFY_INTERNAL_H
#define GAC_REPAIR_VERIFY_INTERNAL_H

#include "repair/repair_internal.h"

enum { BUFFER_BYTES = 4 << 20 };

typedef struct comparison {
    gac_checkpoint *original, *repaired;
    const gac_model *model, *repaired_model;
    place_list places;
    int64_t *sizes;        /* (n_dims of the original) sizes in the repaired model */
    json_t *record;        /* record of the repaired checkpoint, or NULL */
    const json_t *step;    /* the record whose repair started from the original, or NULL */
    int32_t *ranks;        /* ranks of the original's tensors; NULL if step has no checksums */
    gac_tensor_hash *hash; /* hash of the original tensor that is being compared; or NULL */
    gac_checkpoint *kept;  /* originals of scaled tensors, or NULL */
    gac_verification *out;
    char *source, *expected, *found; /* (BUFFER_BYTES) each */
    gac_error *err;
} comparison;

/* Notes a difference. Only the first one is kept. */
void gac_differ(gac_verification *out, const char *format, ...) GAC_PRINTF(2, 3);

/* Finds the record and the sizes after it. Compares it with the record that a
 * repair of the original to these sizes would write. */
gac_status gac_verify_record(comparison *c);

/* Compares the places in a chain of records with those of the original. */
gac_status gac_verify_chain(comparison *c);

/* Compares the config with the one that the repair must have written. */
gac_status gac_verify_config(comparison *c);

/* Compares all other files and the metadata of tensor files with those of the
 * original. */
gac_status gac_verify_files(comparison *c);

#endif
