/* checkpoint: bytes on disk.
 *
 * Opens a safetensors file, or a Hugging Face directory of one file or of
 * shards with an index, and validates everything a header can say before
 * returning: a checkpoint that opened holds tensors whose bytes exist, do not
 * overlap and fill their files. Tensor data stays on disk until asked for.
 * What a tensor means is not known here.
 *
 * What a checkpoint says of itself does not change, so that several threads may
 * ask it at once. Reading its data moves file descriptors: one thread at a time,
 * but for gac_checkpoint_map. A writer is used by one thread at a time. */
#ifndef GAC_CHECKPOINT_H
#define GAC_CHECKPOINT_H

#include <gac/base.h>
#include <gac/op.h>

#ifdef __cplusplus
extern "C" {
#endif
#pragma GCC visibility push(default)

/* Limits on what a file may ask of us, beyond the format's own. */
#define GAC_MAX_HEADER_BYTES 100000000 /* the format's own limit */
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
    uint64_t offset; /* of the first byte in its file */
    int32_t file;    /* index of its file */
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

/* Opens a directory or a single .safetensors file. A config.json beside the
 * tensors is read too. options may be NULL. Errors: GAC_BAD_INPUT for
 * anything wrong with the files. */
gac_status gac_checkpoint_open(const char *path, const gac_checkpoint_options *options,
                               gac_checkpoint **out, gac_error *err);
void gac_checkpoint_close(gac_checkpoint *checkpoint); /* NULL is fine */

/* A checkpoint that is not on disk: the tensors of like with other shapes, one list
 * of sizes for each of them, and another exact config (or NULL). It tells what a model
 * would be; its data cannot be read. like must outlive it. Errors: GAC_BAD_INPUT
 * when a tensor's size overflows. */
gac_status gac_checkpoint_sketch(const gac_checkpoint *like, const int64_t *const *shapes,
                                 const struct json_t *config, gac_checkpoint **out, gac_error *err);

/* What is returned below belongs to the checkpoint and lives as long. */
const char *gac_checkpoint_path(const gac_checkpoint *checkpoint);
bool gac_checkpoint_is_directory(const gac_checkpoint *checkpoint);
int32_t gac_checkpoint_n_tensors(const gac_checkpoint *checkpoint);
/* Tensors are ordered by file, then as the header lists them. An index that is out
 * of range gives NULL, here and below, or 0 where a number is returned. */
const gac_tensor *gac_checkpoint_tensor(const gac_checkpoint *checkpoint, int32_t index);
/* Index of the tensor of that name, or -1. */
int32_t gac_checkpoint_find(const gac_checkpoint *checkpoint, const char *name);
/* Sum of all tensors' elements, and of their bytes. */
int64_t gac_checkpoint_n_params(const gac_checkpoint *checkpoint);
uint64_t gac_checkpoint_size_bytes(const gac_checkpoint *checkpoint);

int32_t gac_checkpoint_n_files(const gac_checkpoint *checkpoint);
const char *gac_checkpoint_file_name(const gac_checkpoint *checkpoint, int32_t file);
uint64_t gac_checkpoint_file_size(const gac_checkpoint *checkpoint, int32_t file);
uint64_t gac_checkpoint_data_start(const gac_checkpoint *checkpoint, int32_t file);
/* The file's __metadata__ as an object of strings, or NULL. */
const struct json_t *gac_checkpoint_metadata(const gac_checkpoint *checkpoint, int32_t file);

/* config.json as it was, unknown keys and order included; NULL without one. */
const struct json_t *gac_checkpoint_config(const gac_checkpoint *checkpoint);
/* Likewise, as gac_json_parse_exact reads it. */
const struct json_t *gac_checkpoint_config_exact(const gac_checkpoint *checkpoint);

/* Oddities that are no error: a total_size that is off, files left aside. */
int32_t gac_checkpoint_n_notes(const gac_checkpoint *checkpoint);
const char *gac_checkpoint_note(const gac_checkpoint *checkpoint, int32_t index);

/* Reads n_bytes of a tensor's data, from offset inside the tensor. */
gac_status gac_checkpoint_read(gac_checkpoint *checkpoint, int32_t tensor, uint64_t offset,
                               void *buffer, size_t n_bytes, gac_error *err);

/* The tensor's bytes in memory, mapped from its file and read when touched;
 * they live as long as the checkpoint. Several threads may ask at once, as long
 * as none reads with gac_checkpoint_read. Data that its file does not align to the
 * elements is copied. A file that another program cuts short meanwhile ends the
 * process (SIGBUS). */
gac_status gac_checkpoint_map(const gac_checkpoint *checkpoint, int32_t tensor, const void **data,
                              gac_error *err);

/* What there is in a checkpoint's directory: files, links to files included; folders;
 * and what a repair leaves behind, which are hidden folders, links to folders,
 * devices and the like. */
typedef enum gac_entry { GAC_ENTRY_FILE, GAC_ENTRY_FOLDER, GAC_ENTRY_OTHER } gac_entry;

/* Calls visit for each entry of a checkpoint's directory and of the folders in it,
 * tensor files too, with its path inside the directory and its permissions; a folder
 * comes before what is in it. A link that leads nowhere is an error. A checkpoint
 * that is one file has none. */
typedef gac_status (*gac_file_visit)(void *user, const char *path, gac_entry entry, unsigned mode,
                                     gac_error *err);
gac_status gac_checkpoint_each_file(const gac_checkpoint *checkpoint, gac_file_visit visit,
                                    void *user, gac_error *err);
/* Opens a file that was visited. */
gac_status gac_checkpoint_open_file(const gac_checkpoint *checkpoint, const char *path,
                                    gac_file **out, gac_error *err);
/* Whether a file of that name holds weights, in any format, or lists them. */
bool gac_is_weights(const char *name);

/* ---- Hashes: XXH3, 64 bits ----------------------------------------------- */

uint64_t gac_hash_bytes(const void *data, size_t n_bytes);

/* The hash of a tensor: of the text "DTYPE SHAPE NAME" and a NUL, where SHAPE is
 * its sizes with commas between, and of its bytes. Whoever has the bytes in memory
 * feeds them; what was not fed in order, from the first byte on, is read from the
 * checkpoint in gac_tensor_hash_finish, which frees the hash. NULL can be fed and
 * finished, and sets nothing. */
typedef struct gac_tensor_hash gac_tensor_hash;
gac_status gac_tensor_hash_start(gac_checkpoint *checkpoint, int32_t tensor, gac_tensor_hash **out,
                                 gac_error *err);
void gac_tensor_hash_feed(gac_tensor_hash *hash, uint64_t offset, const void *data, size_t n_bytes);
gac_status gac_tensor_hash_finish(gac_tensor_hash *hash, uint64_t *out, gac_error *err);

/* ---- Writing ----------------------------------------------------------- */

/* Writes a new checkpoint: declare every tensor, fix the layout, fill in the
 * bytes in any order, finish. Nothing is visible under the target's name
 * before gac_writer_finish succeeds. */
typedef struct gac_writer gac_writer;

typedef struct gac_writer_options {
    uint64_t max_shard_bytes;      /* tensor bytes a shard may hold */
    uint64_t data_alignment;       /* where the data of a file starts: a multiple of this */
    const struct json_t *metadata; /* strings for __metadata__, beside "format":"pt"; or NULL */
    const struct json_t *first_metadata; /* likewise, of the first file only; or NULL */
    bool replace; /* an existing target is replaced on finish: an empty folder or a checkpoint */
    bool no_sync; /* finish does not wait for the disk */
    const gac_checkpoint *like; /* whose permissions the target gets, file by file; a file made
                                 * of several gets the strictest. NULL: by the umask */
} gac_writer_options;

#define GAC_DEFAULT_SHARD_BYTES 5000000000u
#define GAC_WRITER_OPTIONS_INIT \
    { \
        GAC_DEFAULT_SHARD_BYTES, 4096, NULL, NULL, false, false, NULL \
    }

/* Starts a directory at path. options may be NULL. */
gac_status gac_writer_create(const char *path, const gac_writer_options *options, gac_writer **out,
                             gac_error *err);
/* Declares a tensor; *index (may be NULL) numbers it from 0 in this order. */
gac_status gac_writer_add(gac_writer *writer, const char *name, gac_dtype dtype, int32_t n_axes,
                          const int64_t *shape, int32_t *index, gac_error *err);
/* Says which file a tensor goes to, with that file's own __metadata__ (or
 * NULL; the first call for a file counts). Either every tensor is told its
 * file before the layout, or none. */
gac_status gac_writer_set_file(gac_writer *writer, int32_t tensor, const char *file,
                               const struct json_t *metadata, gac_error *err);
/* Assigns tensors to shards in the order they were added, unless they were
 * told their files, and writes the headers. No tensor can be added afterwards. */
gac_status gac_writer_layout(gac_writer *writer, gac_error *err);
/* Writes part of a tensor's data, after gac_writer_layout. The parts of one
 * tensor must not overlap; every byte must be accounted for before finishing. */
gac_status gac_writer_write(gac_writer *writer, int32_t tensor, uint64_t offset, const void *data,
                            size_t n_bytes, gac_error *err);
/* Likewise, with n_bytes of a tensor of a checkpoint, from from_offset in it. */
gac_status gac_writer_copy(gac_writer *writer, int32_t tensor, uint64_t offset,
                           gac_checkpoint *checkpoint, int32_t from, uint64_t from_offset,
                           uint64_t n_bytes, gac_error *err);
/* Accounts for n_bytes of a tensor that stay zero, wherever they are. */
gac_status gac_writer_leave_zero(gac_writer *writer, int32_t tensor, uint64_t n_bytes,
                                 gac_error *err);
/* Reads back what was written of a tensor, and writes it again. */
gac_status gac_writer_read_back(gac_writer *writer, int32_t tensor, uint64_t offset, void *buffer,
                                size_t n_bytes, gac_error *err);
gac_status gac_writer_rewrite(gac_writer *writer, int32_t tensor, uint64_t offset, const void *data,
                              size_t n_bytes, gac_error *err);
/* Puts another string of the same length in the place of one in __metadata__, in
 * every file that has it, after gac_writer_layout: for what is known only when all
 * data has been written. */
gac_status gac_writer_replace_metadata(gac_writer *writer, const char *key, const char *text,
                                       gac_error *err);
/* Writes the index where one is needed. Then the directory is complete, and can
 * be opened where it is; only gac_writer_finish may follow. */
gac_status gac_writer_complete(gac_writer *writer, gac_error *err);
/* Where the directory is until it is finished; borrowed. */
const char *gac_writer_directory(const gac_writer *writer);
/* Copies every file and folder of a checkpoint's directory that is neither a
 * tensor file, nor its index, nor in skip (a NULL-terminated list of names),
 * nor weights in another format, which would be out of date. */
gac_status gac_writer_carry(gac_writer *writer, const gac_checkpoint *checkpoint,
                            const char *const *skip, gac_error *err);
/* Adds a file that is no tensor file: config.json, a tokenizer. */
gac_status gac_writer_add_file(gac_writer *writer, const char *name, const void *data,
                               size_t n_bytes, gac_error *err);
/* Completes the directory if that is still to be done, flushes everything and
 * gives the directory its name. Frees writer whatever happens. */
gac_status gac_writer_finish(gac_writer *writer, gac_error *err);
/* Removes what was written so far. NULL is fine. */
void gac_writer_discard(gac_writer *writer);

/* ---- Conversion ---------------------------------------------------------- */

typedef struct gac_convert_options {
    gac_dtype dtype;            /* F16, BF16 or F32; GAC_DTYPE_COUNT: by what the source stores */
    const char *tokenizer;      /* of llama2.c: the file of its tokenizer */
    uint64_t max_shard_bytes;   /* tensor bytes a shard may hold */
    bool replace;               /* an existing target is replaced */
    bool no_sync;               /* do not wait for the disk */
    gac_progress *progress;     /* NULL: none */
    const gac_log *log;         /* NULL: silent */
    const volatile int *cancel; /* set from outside to stop; NULL: never */
} gac_convert_options;

#define GAC_CONVERT_OPTIONS_INIT \
    { \
        GAC_DTYPE_COUNT, NULL, GAC_DEFAULT_SHARD_BYTES, false, false, NULL, NULL, NULL \
    }

typedef struct gac_convert_result {
    const char *model_type; /* as config.json has it; static */
    const char *tokenizer;  /* kind of tokenizer, or NULL for none; static */
    gac_dtype dtype;
    int32_t n_tensors;
    int64_t n_params;
    uint64_t size_bytes; /* of all tensors written */
    int64_t n_tokens;
} gac_convert_result;

/* Writes a Hugging Face directory, complete or not at all, from a GGUF file of
 * a Llama-like model (llama, mistral, qwen2, qwen3): config, tensors under
 * their names there and tokenizer. Memory follows the tokenizer, not the
 * tensors. options may be NULL. GAC_USAGE when a weight is too large for the dtype. */
gac_status gac_convert_gguf(const char *from, const char *to, const gac_convert_options *options,
                            gac_convert_result *result, gac_error *err);
/* Likewise from llama2.c's first format, and options->tokenizer. */
gac_status gac_convert_llama2c(const char *from, const char *to, const gac_convert_options *options,
                               gac_convert_result *result, gac_error *err);

#pragma GCC visibility pop
#ifdef __cplusplus
}
#endif
#endif
