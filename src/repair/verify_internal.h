/* What the files of verifying share. */
#ifndef GAC_REPAIR_VERIFY_INTERNAL_H
#define GAC_REPAIR_VERIFY_INTERNAL_H

#include "repair/repair_internal.h"

enum { BUFFER_BYTES = 4 << 20 };

typedef struct comparison {
    gac_checkpoint *original, *repaired;
    const gac_model *model, *repaired_model;
    place_list places;
    int64_t *sizes;        /* of the repaired model, per dimension of the original */
    json_t *record;        /* of the repaired checkpoint, or NULL */
    const json_t *step;    /* the record in its chain that starts at the original, or NULL */
    int32_t *ranks;        /* of the original's tensors; NULL where the step has no checksums */
    gac_tensor_hash *hash; /* of the original tensor that is being compared; or NULL */
    gac_checkpoint *kept;  /* originals of scaled tensors, or NULL */
    gac_verification *out;
    char *source, *expected, *found; /* (BUFFER_BYTES) each */
    gac_error *err;
} comparison;

/* Notes a difference; the first one stays. */
void gac_differ(gac_verification *out, const char *format, ...) GAC_PRINTF(2, 3);

/* Finds the record and the sizes it leads to, and holds it against what a repair
 * of the original to these sizes would record. */
gac_status gac_verify_record(comparison *c);

/* Holds the places in a chain of records against the original's. */
gac_status gac_verify_chain(comparison *c);

/* Holds the config against what the repair must have written. */
gac_status gac_verify_config(comparison *c);

/* Holds all other files, and what tensor files say of themselves, against the
 * original's. */
gac_status gac_verify_files(comparison *c);

#endif
