/* Finds the members of a zip archive that stores them unpacked, as torch.save
 * writes it. */
#ifndef GAC_CHECKPOINT_ZIP_H
#define GAC_CHECKPOINT_ZIP_H

#include <gac/base.h>

#include "base/arena.h"
#include "base/namemap.h"

#define GAC_MAX_ZIP_MEMBERS 1100000 /* of an archive; a member holds the data of a tensor */
#define GAC_MAX_ZIP_LIST_BYTES 200000000

typedef struct zip_member {
    const char *name;
    uint64_t header; /* offset of its local header */
    uint64_t offset; /* of its bytes in the file */
    uint64_t size_bytes;
} zip_member;

typedef struct zip {
    zip_member *members; /* in order of their offsets */
    int32_t n_members, capacity;
    gac_namemap by_name;
} zip;

/* Reads the list of members and validates it: afterwards every member is
 * stored, its bytes exist, no two members overlap and no name occurs twice. arena
 * gets the names. Errors: GAC_BAD_INPUT. The caller disposes of it in any case. */
gac_status gac_zip_read(zip *z, gac_arena *arena, gac_file *file, gac_error *err);
void gac_zip_dispose(zip *z);
const zip_member *gac_zip_find(const zip *z, const char *name); /* NULL if absent */

#endif
