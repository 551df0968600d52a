/* Files and folders, for rooms that do more than read one and write one. */
#ifndef GAC_BASE_FILES_H
#define GAC_BASE_FILES_H

#include <gac/base.h>

/* Permissions, as they were on opening. */
unsigned gac_file_mode(const gac_file *file);

/* Gives the descriptor back to the system until the next read, which fails if
 * another file, or a changed one, is then found under the path. A checkpoint
 * may have more shards than a process may have descriptors. */
void gac_file_park(gac_file *file);

/* Copies n_bytes from offset to the open file descriptor to, at to_offset,
 * inside the kernel where the file systems allow. */
gac_status gac_file_copy(gac_file *file, uint64_t offset, int to, uint64_t to_offset,
                         uint64_t n_bytes, gac_error *err);

/* The whole file in memory, read when touched, until it is closed. Touching
 * what another program has cut off meanwhile raises SIGBUS; gac itself says so
 * and ends. */
gac_status gac_file_map(gac_file *file, const void **data, gac_error *err);

/* A directory that appears under its name complete or not at all. What a
 * killed process left of an attempt at the same path is removed. */
typedef struct gac_new_dir gac_new_dir;

gac_status gac_new_dir_create(const char *path, bool replace, gac_new_dir **out, gac_error *err);
const char *gac_new_dir_path(const gac_new_dir *dir); /* write files in here */
/* Gives the directory its name, after flushing it to disk if flush. Frees dir
 * whatever happens. */
gac_status gac_new_dir_commit(gac_new_dir *dir, bool flush, gac_error *err);
void gac_new_dir_discard(gac_new_dir *dir);

#endif
