/* checkpoint: bytes on disk.
 *
 * Opens a safetensors file, a file that torch.save wrote, or a Hugging Face
 * directory of one file or of shards with an index. Opening validates
 * everything that the headers state: afterwards the bytes of every tensor
 * exist. In safetensors files they also do not overlap and fill their files; in
 * torch files several tensors may share bytes. Nothing in a torch file is
 * executed. Tensor data stays on disk until it is read. This room does not know
 * what a tensor means.
 *
 * Several threads may query one checkpoint at once, because queries change
 * nothing. Reading its data moves file descriptors, so only one thread may read
 * at a time; gac_checkpoint_map is the exception. A writer is used by one
 * thread at a time. */
#ifndef GAC_CHECKPOINT_H
#define GAC_CHECKPOINT_H

#include <gac/base.h>
#include <gac/op.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Limits on the resources that a file may use, beyond the limits of the format
 * itself. */
#define GAC_MAX_HEADER_BYTES 100000000 /* this one is the format's own */
#define GAC_MAX_NAME_BYTES 1024
#define GAC_MAX_AXES 64
#define GAC_MAX_CONFIG_BYTES (8 << 20)

typedef struct gac_tensor {
    const char *name;
    const int64_t *shape; /* (n_axes) */
    int32_t n_axes;
    gac_dtype dtype;
    int64_t n_elements;
    uint64_t size_bytes;
    uint64_t offset; /* position of its first byte in its file */
    int32_t file;    /* index of its file */
    /* (n_axes) steps from one index to the next, in elements of the file. NULL if
     * its elements lie in order. Only tensors of torch files have them; all
     * functions here give the elements in order. */
    const int64_t *strides;
} gac_tensor;

typedef struct gac_checkpoint gac_checkpoint;

typedef struct gac_checkpoint_options {
    gac_progress *progress; /* NULL: none */
    const gac_log *log;     /* NULL: silent */
} gac_checkpoint_options;

#define GAC_CHECKPOINT_OPTIONS_INIT \
    { \
        NULL, NULL \
    }

/* Opens a directory or a single file, of safetensors or of torch. Safetensors
 * come first if a directory has both. A config.json beside the tensors is read
 * too. options may be NULL. Errors: GAC_BAD_INPUT for
 * anything wrong with the files. */
gac_status gac_checkpoint_open(const char *path, const gac_checkpoint_options *options,
                               gac_checkpoint **out, gac_error *err);
void gac_checkpoint_close(gac_checkpoint *checkpoint); /* NULL is fine */

/* Creates a checkpoint that is not on disk: the tensors of like with other
 * shapes (one list of sizes for each tensor) and another exact config, or NULL.
 * A model can be built from it, but its data cannot be read. like must outlive
 * it. Errors: GAC_BAD_INPUT if the size of a tensor overflows. */
gac_status gac_checkpoint_sketch(const gac_checkpoint *like, const int64_t *const *shapes,
                                 const struct json_t *config, gac_checkpoint **out, gac_error *err);

/* Pointers that the functions below return belong to the checkpoint and live as
 * long as it does. */
const char *gac_checkpoint_path(const gac_checkpoint *checkpoint);
bool gac_checkpoint_is_directory(const gac_checkpoint *checkpoint);
/* Returns whether torch.save wrote the files of tensors. */
bool gac_checkpoint_is_torch(const gac_checkpoint *checkpoint);
int32_t gac_checkpoint_n_tensors(const gac_checkpoint *checkpoint);
/* Tensors are ordered by file, then as the header lists them. Here and below,
 * an index out of range gives NULL, or 0 if the function returns a number. */
const gac_tensor *gac_checkpoint_tensor(const gac_checkpoint *checkpoint, int32_t index);
/* Returns the index of the tensor with this name, or -1. */
int32_t gac_checkpoint_find(const gac_checkpoint *checkpoint, const char *name);
/* The number of elements of all tensors, and of bytes. */
int64_t gac_checkpoint_n_params(const gac_checkpoint *checkpoint);
uint64_t gac_checkpoint_size_bytes(const gac_checkpoint *checkpoint);

int32_t gac_checkpoint_n_files(const gac_checkpoint *checkpoint);
const char *gac_checkpoint_file_name(const gac_checkpoint *checkpoint, int32_t file);
uint64_t gac_checkpoint_file_size(const gac_checkpoint *checkpoint, int32_t file);
uint64_t gac_checkpoint_data_start(const gac_checkpoint *checkpoint, int32_t file);
/* The file's __metadata__ as an object of strings, or NULL. */
const struct json_t *gac_checkpoint_metadata(const gac_checkpoint *checkpoint, int32_t file);

/* Returns whether the tensors are those of an adapter, by the name of their file: adapter_model. */
bool gac_checkpoint_is_adapter(const gac_checkpoint *checkpoint);
/* The file that an adapter's tensors are written to. */
#define GAC_ADAPTER_NAME "adapter_model.safetensors"
/* Returns "adapter_config.json" for an adapter, otherwise "config.json". */
const char *gac_checkpoint_config_name(const gac_checkpoint *checkpoint);
/* That file with all its keys, in their order; NULL if there is none. */
const struct json_t *gac_checkpoint_config(const gac_checkpoint *checkpoint);
/* The same, as gac_json_parse_exact reads it. */
const struct json_t *gac_checkpoint_config_exact(const gac_checkpoint *checkpoint);

/* Oddities that are no error, such as a wrong total_size or ignored files. */
int32_t gac_checkpoint_n_notes(const gac_checkpoint *checkpoint);
const char *gac_checkpoint_note(const gac_checkpoint *checkpoint, int32_t index);

/* Reads n_bytes of a tensor's data, from offset inside the tensor. */
gac_status gac_checkpoint_read(gac_checkpoint *checkpoint, int32_t tensor, uint64_t offset,
                               void *buffer, size_t n_bytes, gac_error *err);

/* Maps a tensor's bytes from its file into memory. They live as long as the
 * checkpoint. Several threads may call this at once if none of them calls
 * gac_checkpoint_read. Data is copied if its position in the file is not
 * aligned for its elements, or if it has strides. If another program makes the file shorter,
 * touching the missing part ends the process (SIGBUS). */
gac_status gac_checkpoint_map(const gac_checkpoint *checkpoint, int32_t tensor, const void **data,
                              gac_error *err);

/* The kinds of entries in a checkpoint's directory. Links to files count as
 * files. OTHER are hidden folders, links to folders, devices and the like,
 * which a repair does not copy. */
typedef enum gac_entry { GAC_ENTRY_FILE, GAC_ENTRY_FOLDER, GAC_ENTRY_OTHER } gac_entry;

/* Calls visit for each entry of a checkpoint's directory and of the folders in
 * it, tensor files too. path is relative to the directory, and mode has the
 * permissions. A folder comes before its content. A link without a target is an
 * error. A checkpoint that is one file has no entries. */
typedef gac_status (*gac_file_visit)(void *user, const char *path, gac_entry entry, unsigned mode,
                                     gac_error *err);
gac_status gac_checkpoint_each_file(const gac_checkpoint *checkpoint, gac_file_visit visit,
                                    void *user, gac_error *err);
/* Opens a file by the path that visit got. */
gac_status gac_checkpoint_open_file(const gac_checkpoint *checkpoint, const char *path,
                                    gac_file **out, gac_error *err);
/* Returns whether a file with this name holds weights, in any format, or lists
 * them. */
bool gac_is_weights(const char *name);

/* Hashes: XXH3, 64 bits. */

uint64_t gac_hash_bytes(const void *data, size_t n_bytes);

/* Hashes a tensor: the text "DTYPE SHAPE NAME", a NUL, and its bytes. SHAPE is
 * its sizes, separated by commas. Callers that have bytes in memory feed them.
 * gac_tensor_hash_finish reads all bytes from the checkpoint that were not fed
 * in order from the first one on, and frees the hash. Feeding or finishing NULL
 * does nothing. */
typedef struct gac_tensor_hash gac_tensor_hash;
gac_status gac_tensor_hash_start(gac_checkpoint *checkpoint, int32_t tensor, gac_tensor_hash **out,
                                 gac_error *err);
void gac_tensor_hash_feed(gac_tensor_hash *hash, uint64_t offset, const void *data, size_t n_bytes);
gac_status gac_tensor_hash_finish(gac_tensor_hash *hash, uint64_t *out, gac_error *err);

/* Writing. */

/* Writes a new checkpoint: declare every tensor, fix the layout, write the
 * bytes in any order, finish. Nothing is visible under the target's name before
 * gac_writer_finish succeeds. */
typedef struct gac_writer gac_writer;

typedef struct gac_writer_options {
    uint64_t max_shard_bytes;      /* limit of tensor bytes per shard */
    uint64_t data_alignment;       /* the data of each file starts at a multiple of this */
    const struct json_t *metadata; /* strings for __metadata__ beside "format":"pt"; or NULL */
    const struct json_t *first_metadata; /* the same for the first file only; or NULL */
    bool replace; /* finish may replace an empty folder or a checkpoint at the target */
    bool no_sync; /* finish does not wait for the disk */
    const gac_checkpoint *like; /* gives the permissions, file by file; NULL: the umask does */
} gac_writer_options;

#define GAC_DEFAULT_SHARD_BYTES 5000000000u
#define GAC_WRITER_OPTIONS_INIT \
    { \
        GAC_DEFAULT_SHARD_BYTES, 4096, NULL, NULL, false, false, NULL \
    }

/* Starts writing a directory at path. options may be NULL. A file made of several
 * files of options->like gets the strictest of their permissions. */
gac_status gac_writer_create(const char *path, const gac_writer_options *options, gac_writer **out,
                             gac_error *err);
/* Declares a tensor; *index (may be NULL) numbers it from 0 in this order. */
gac_status gac_writer_add(gac_writer *writer, const char *name, gac_dtype dtype, int32_t n_axes,
                          const int64_t *shape, int32_t *index, gac_error *err);
/* Assigns a tensor to a file, which gets its own __metadata__ (or NULL; only
 * the first call for a file sets it). Before the layout, either every tensor is
 * assigned to a file or none is. */
gac_status gac_writer_set_file(gac_writer *writer, int32_t tensor, const char *file,
                               const struct json_t *metadata, gac_error *err);
/* Writes the headers. Tensors without a file go to shards in the order in which
 * they were added. No tensor can be added afterwards. */
gac_status gac_writer_layout(gac_writer *writer, gac_error *err);
/* Writes part of a tensor's data, after gac_writer_layout. The parts of one
 * tensor must not overlap. Before finishing, every byte must be written or left
 * zero. */
gac_status gac_writer_write(gac_writer *writer, int32_t tensor, uint64_t offset, const void *data,
                            size_t n_bytes, gac_error *err);
/* The same with n_bytes of tensor from of a checkpoint, starting at its byte
 * from_offset. */
gac_status gac_writer_copy(gac_writer *writer, int32_t tensor, uint64_t offset,
                           gac_checkpoint *checkpoint, int32_t from, uint64_t from_offset,
                           uint64_t n_bytes, gac_error *err);
/* Declares that n_bytes of a tensor stay zero, anywhere in it. */
gac_status gac_writer_leave_zero(gac_writer *writer, int32_t tensor, uint64_t n_bytes,
                                 gac_error *err);
/* Reads bytes of a tensor that were already written, and writes such bytes
 * again. */
gac_status gac_writer_read_back(gac_writer *writer, int32_t tensor, uint64_t offset, void *buffer,
                                size_t n_bytes, gac_error *err);
gac_status gac_writer_rewrite(gac_writer *writer, int32_t tensor, uint64_t offset, const void *data,
                              size_t n_bytes, gac_error *err);
/* Replaces a string in __metadata__, in every file that has it, by another one
 * of the same length. This is called after gac_writer_layout, for text that is
 * known only when all data is written. */
gac_status gac_writer_replace_metadata(gac_writer *writer, const char *key, const char *text,
                                       gac_error *err);
/* Writes the index if one is needed. The directory is then complete and can be
 * opened at gac_writer_directory. Only gac_writer_finish may follow. */
gac_status gac_writer_complete(gac_writer *writer, gac_error *err);
/* Returns the temporary path of the directory until it is finished. Borrowed. */
const char *gac_writer_directory(const gac_writer *writer);
/* Copies the other files and folders of a checkpoint's directory. It leaves out
 * tensor files, their index, the names in skip (a NULL-terminated list), and
 * weights in other formats, which would be out of date. */
gac_status gac_writer_carry(gac_writer *writer, const gac_checkpoint *checkpoint,
                            const char *const *skip, gac_error *err);
/* Adds another file, such as config.json or a tokenizer. */
gac_status gac_writer_add_file(gac_writer *writer, const char *name, const void *data,
                               size_t n_bytes, gac_error *err);
/* Completes the directory if gac_writer_complete was not called, flushes
 * everything and gives the directory its name. Frees writer in any case. */
gac_status gac_writer_finish(gac_writer *writer, gac_error *err);
/* Removes everything that was written. NULL is fine. */
void gac_writer_discard(gac_writer *writer);

/* Conversion. */

typedef struct gac_convert_options {
    gac_dtype dtype;          /* F16, BF16 or F32; GAC_DTYPE_COUNT: chosen by the source's dtypes */
    const char *tokenizer;    /* llama2.c only: the tokenizer's file */
    uint64_t max_shard_bytes; /* limit of tensor bytes per shard */
    bool replace;             /* an existing target is replaced */
    bool no_sync;             /* do not wait for the disk */
    gac_progress *progress;   /* NULL: none */
    const gac_log *log;       /* NULL: silent */
    const volatile int *cancel; /* the caller sets it to stop the conversion; or NULL */
} gac_convert_options;

#define GAC_CONVERT_OPTIONS_INIT \
    { \
        GAC_DTYPE_COUNT, NULL, GAC_DEFAULT_SHARD_BYTES, false, false, NULL, NULL, NULL \
    }

typedef struct gac_convert_result {
    const char *model_type; /* the model_type in config.json; static. NULL: the input's config */
    const char *tokenizer;  /* kind of tokenizer, or NULL for none; static */
    gac_dtype dtype;        /* of torch files: that of most weights */
    int32_t n_tensors;
    int64_t n_params;
    uint64_t size_bytes; /* of all tensors written */
    int64_t n_tokens;
} gac_convert_result;

/* Converts a GGUF file of a Llama-like model (llama, mistral, qwen2, qwen3) to
 * a Hugging Face directory with config, tensors and tokenizer. The directory
 * appears complete or not at all. Memory use depends on the tokenizer, not on
 * the tensors. options may be NULL. GAC_USAGE if a weight is too large for the
 * dtype. */
gac_status gac_convert_gguf(const char *from, const char *to, const gac_convert_options *options,
                            gac_convert_result *result, gac_error *err);
/* The same for the first format of llama2.c. It needs options->tokenizer. */
gac_status gac_convert_llama2c(const char *from, const char *to, const gac_convert_options *options,
                               gac_convert_result *result, gac_error *err);
/* Writes what torch.save wrote, a file or a directory, as a directory of
 * safetensors with the same tensors, byte for byte, and the other files. The
 * dtype and the tokenizer of options must be left unset. */
gac_status gac_convert_torch(const char *from, const char *to, const gac_convert_options *options,
                             gac_convert_result *result, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
