/* More about files and folders than the public header has. */
#ifndef GAC_BASE_FILES_H
#define GAC_BASE_FILES_H

#include <gac/base.h>

/* Returns the permissions that the file had when it was opened. */
unsigned gac_file_mode(const gac_file *file);

/* Closes the descriptor until the next read. That read fails if the path then
 * has another file, or a changed one. A checkpoint may have more shards than a
 * process may have descriptors. */
void gac_file_park(gac_file *file);

/* Copies n_bytes from offset to the open file descriptor to, at to_offset. The
 * copy is done inside the kernel if the file systems allow it. */
gac_status gac_file_copy(gac_file *file, uint64_t offset, int to, uint64_t to_offset,
                         uint64_t n_bytes, gac_error *err);

/* Maps the whole file into memory until it is closed. If another program makes
 * the file shorter, touching the missing part raises SIGBUS; gac itself then
 * prints an error and ends. */
gac_status gac_file_map(gac_file *file, const void **data, gac_error *err);

/* Checks that a target is not the input, not inside it and does not contain
 * it. Errors: GAC_USAGE. */
gac_status gac_check_target(const char *from, const char *out, gac_error *err);

/* A directory that appears under its name complete or not at all. Leftovers of
 * killed processes for the same path are removed. */
typedef struct gac_new_dir gac_new_dir;

gac_status gac_new_dir_create(const char *path, bool replace, gac_new_dir **out, gac_error *err);
const char *gac_new_dir_path(const gac_new_dir *dir); /* write files in here */
/* Gives the directory its name, after flushing it to disk if flush. Frees dir
 * in any case. */
gac_status gac_new_dir_commit(gac_new_dir *dir, bool flush, gac_error *err);
void gac_new_dir_discard(gac_new_dir *dir);

#endif
