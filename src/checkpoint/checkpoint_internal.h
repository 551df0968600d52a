/* Shared by the files of this room. */
#ifndef GAC_CHECKPOINT_INTERNAL_H
#define GAC_CHECKPOINT_INTERNAL_H

#include <gac/checkpoint.h>

#include <jansson.h>
#include <pthread.h>

#include "base/arena.h"
#include "base/namemap.h"

#define GAC_INDEX_NAME "model.safetensors.index.json"
#define GAC_SINGLE_NAME "model.safetensors"
#define GAC_TORCH_INDEX_NAME "pytorch_model.bin.index.json"
#define GAC_TORCH_SINGLE_NAME "pytorch_model.bin"

/* Real checkpoints hold up to some 300,000 tensors of one to three axes. */
#define GAC_MAX_TENSORS 1000000
#define GAC_MAX_TOTAL_AXES 4000000
/* jansson needs about 20 bytes for each byte of text in the worst case. */
#define GAC_MAX_METADATA_BYTES (16u << 20)

typedef struct checkpoint_file {
    const char *name; /* inside the directory */
    gac_file *file;
    uint64_t data_start;
    json_t *metadata;            /* or NULL */
    struct aligned_copy *copies; /* copies of tensors that are not aligned in the file */
} checkpoint_file;

struct gac_checkpoint {
    gac_arena arena; /* names, shapes, notes */
    const char *path;
    bool is_directory;
    gac_tensor *tensors;
    int32_t n_tensors, tensor_capacity;
    int64_t n_params, n_axes; /* summed over all tensors */
    uint64_t size_bytes;
    gac_namemap by_name;
    bool is_torch;   /* a file is one of torch.save */
    bool is_adapter; /* the file of tensors is named adapter_model */
    checkpoint_file *files;
    int32_t n_files, file_capacity;
    int32_t reading;          /* the file whose descriptor is open, or -1 */
    unsigned mode;            /* permissions of path */
    pthread_mutex_t map_lock; /* protects maps and copies of tensors */
    json_t *config, *config_exact;
    const char **notes;
    int32_t n_notes, note_capacity;
};

/* Permissions of a checkpoint that is written in place of this one. folder_mode
 * is for its folder. file_mode is for the file called name. If name is NULL or
 * there is no such file, it gives the permissions that all tensor files
 * share. */
unsigned gac_checkpoint_folder_mode(const gac_checkpoint *checkpoint);
gac_status gac_checkpoint_file_mode(const gac_checkpoint *checkpoint, const char *name,
                                    unsigned *out, gac_error *err);

/* Appends an open file to the checkpoint, recognises its format, validates its
 * header and appends its tensors. The checkpoint owns file from now on, also
 * after a failure. */
gac_status gac_weights_read(gac_checkpoint *checkpoint, const char *name, gac_file *file,
                            gac_error *err);
/* The same for a file that the checkpoint has, by its index. */
gac_status gac_safetensors_read(gac_checkpoint *checkpoint, int32_t file, gac_error *err);
gac_status gac_torch_read(gac_checkpoint *checkpoint, int32_t file, gac_error *err);

/* Appends a tensor. If it breaks a rule, such as that its name is new, why gets
 * the reason and err stays as it is; otherwise why is empty. */
gac_status gac_checkpoint_add_tensor(gac_checkpoint *checkpoint, const gac_tensor *tensor,
                                     char why[300], gac_error *err);

/* Opens the config in the checkpoint's directory or beside its file. *out is
 * NULL if there is none. */
gac_status gac_checkpoint_config_file(const gac_checkpoint *checkpoint, gac_file **out,
                                      gac_error *err);

/* Opens the shards that an index lists, and checks that index and shards agree. */
gac_status gac_index_read(gac_checkpoint *checkpoint, gac_file *index,
                          const gac_checkpoint_options *options, gac_error *err);

/* Computes the number of bytes of a tensor. False if it overflows, or if
 * elements of less than a byte do not fill whole bytes. */
bool gac_tensor_bytes(gac_dtype dtype, int32_t n_axes, const int64_t *shape, int64_t *n_elements,
                      uint64_t *size_bytes);

/* Reads n_bytes of a tensor with strides, from byte offset of its elements in
 * order on. file has the bytes of its file. */
void gac_strided_read(const gac_tensor *tensor, const void *file, uint64_t offset, void *buffer,
                      size_t n_bytes);

bool gac_has_suffix(const char *text, const char *suffix);

/* Returns whether name is that of a weight file in another format than
 * safetensors. */
bool gac_is_foreign_weights(const char *name);
/* Returns whether name is that of a file with weights by torch.save, rather
 * than with the state of a training. */
bool gac_is_torch_weights(const char *name);

/* Finds whether a checkpoint may replace path: nothing exists there, or an
 * empty folder, or a folder that opens as a checkpoint. */
gac_status gac_is_replaceable(const char *path, bool *out, gac_error *err);

/* Returns whether name is a plain file name that cannot leave its directory. */
bool gac_is_file_name(const char *name);

/* Copies part of a tensor's data to an open file, in the kernel if possible. */
gac_status gac_checkpoint_copy(gac_checkpoint *checkpoint, int32_t tensor, uint64_t offset, int to,
                               uint64_t to_offset, uint64_t n_bytes, gac_error *err);

gac_status gac_checkpoint_add_note(gac_checkpoint *checkpoint, const char *note, gac_error *err);

#endif
