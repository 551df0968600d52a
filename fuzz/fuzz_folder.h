/* A private folder for a fuzz target's files, in memory where there is
 * /dev/shm, removed when the process ends. */
#ifndef GAC_FUZZ_FOLDER_H
#define GAC_FUZZ_FOLDER_H

#include <stddef.h>
#include <stdint.h>

/* Makes the folder on the first call. The string lives as long as the process. */
const char *fuzz_folder(void);

/* Path of a file of that name in the folder; the caller frees it. */
char *fuzz_path(const char *name);

/* Replaces the content of a file of the folder. */
void fuzz_put(const char *name, const void *data, size_t n_bytes);

/* Writes a safetensors file: header is JSON text, the data n_data zeros that
 * take no room. */
void fuzz_put_safetensors(const char *name, const char *header, size_t n_header, uint64_t n_data);

#endif
