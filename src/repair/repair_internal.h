/* Shared by the files of this room. */
#ifndef GAC_REPAIR_INTERNAL_H
#define GAC_REPAIR_INTERNAL_H

#include <gac/repair.h>

#include <jansson.h>

#include "base/arena.h"

/* The key of the record in __metadata__ of the first file. */
#define GAC_RECORD_KEY "gac_repair"
/* The key of the hash of the record's text. */
#define GAC_RECORD_SUM_KEY "gac_repair_xxh3"
/* The folder of a checkpoint with the originals of all tensors whose values
 * changed. */
#define GAC_ORIGINALS_NAME "gac_originals"

/* A run: length indices of an axis move from index from of the source to index
 * to of the target. */
typedef struct run {
    int64_t from, to, length;
} run;

typedef struct axis_map {
    int64_t n_from, n_to; /* length of the axis in source and target */
    run *runs;
    int32_t n_runs, capacity;
} axis_map;

/* How the elements of one tensor move. An axis that does not change has one
 * run. */
typedef struct tensor_map {
    int32_t n_axes;
    axis_map *axes;
    int32_t last; /* the last axis that changes, or -1 */
    gac_dtype dtype;
} tensor_map;

/* One place of a dimension, in the coordinates of the source. */
typedef struct place_entry {
    int32_t dim;
    int32_t axis;
    int64_t start, n_slices;
    int64_t n_parts; /* 2 if each half of a slice grows; 0 if the slices alternate */
    int64_t size;    /* size of the dimension in the source */
    int32_t next;    /* next place of the same tensor, or -1 */
} place_entry;

/* The places of every tensor. */
typedef struct place_list {
    const gac_checkpoint *checkpoint;
    const gac_model *model; /* NULL for places of a record */
    place_entry *entries;
    int32_t n_entries, capacity;
    int32_t *first; /* (n_tensors) */
} place_list;

/* Returns n_parts of a place. */
int64_t gac_place_parts(const gac_place *place);
gac_status gac_places_create(const gac_model *model, place_list *out, gac_error *err);
void gac_places_dispose(place_list *list);
/* Starts a list that the caller fills. */
gac_status gac_places_start(const gac_checkpoint *checkpoint, place_list *out, gac_error *err);
gac_status gac_places_add(place_list *list, int32_t tensor, place_entry entry, gac_error *err);

/* Makes the map of a tensor with this shape when its dimensions change to
 * sizes. GAC_USAGE if half a head or an element of less than a byte would be
 * cut. GAC_BAD_INPUT if places do not fit the shape. Dispose of it, also after
 * a failure. */
gac_status gac_map_create(const place_list *list, int32_t tensor, const int64_t *shape,
                          const int64_t *sizes, tensor_map *out, gac_error *err);
/* Composes map with next, whose source is the target of map. */
gac_status gac_map_follow(tensor_map *map, const tensor_map *next, gac_error *err);
/* Swaps source and target. */
void gac_map_invert(tensor_map *map);
/* Returns whether both maps move the same elements to the same positions. */
bool gac_map_equal(const tensor_map *a, const tensor_map *b);
void gac_map_dispose(tensor_map *map);

/* A row is one extent of the last changed axis. Calls visit for each group of
 * rows that are contiguous in source and target. */
typedef gac_status (*row_visit)(void *user, uint64_t from_row, uint64_t to_row, uint64_t n_rows,
                                gac_error *err);
gac_status gac_map_rows(const tensor_map *map, row_visit visit, void *user, gac_error *err);
/* Returns the bytes of n indices of the last changed axis. */
uint64_t gac_map_bytes(const tensor_map *map, int64_t n);
/* Computes the bytes of one row in source and target. */
void gac_map_row_bytes(const tensor_map *map, uint64_t *from, uint64_t *to);
/* Copies n_rows rows from source to target. All other bytes of target become 0. */
void gac_map_scatter(const tensor_map *map, const char *source, char *target, uint64_t n_rows);

/* Checks that every byte that the map does not fill is zero. tensor has the
 * target's shape. */
gac_status gac_pads_are_zero(gac_checkpoint *checkpoint, int32_t tensor, const tensor_map *map,
                             bool *out, gac_error *err);

/* Copies a tensor through its map into the writer. Bytes that are read are also
 * fed to hash, unless it is NULL. */
gac_status gac_transfer(gac_checkpoint *checkpoint, int32_t from, const tensor_map *map,
                        gac_writer *writer, int32_t to, gac_tensor_hash *hash, gac_error *err);

/* Makes the exact config (gac_json_parse_exact) of the repaired model. with_code: modelling code
 * may state sizes that a plain config cannot. *code gets its text if it is needed and the config
 * did not name it yet; otherwise NULL. The caller owns *out and *code. */
gac_status gac_repair_config(const gac_model *model, const int64_t *sizes, gac_widths widths,
                             bool with_code, json_t **out, char **code, gac_error *err);

/* The same config as text; NULL if it equals the present one. */
gac_status gac_new_config(const gac_model *model, const int64_t *sizes, gac_widths widths,
                          bool with_code, char **text, char **code, gac_error *err);
/* Whether a repair that changes n_changed dimensions may write modelling code: a copy does not, and
 * a file of its name stays. */
gac_status gac_may_write_code(const gac_model *model, int32_t n_changed, bool *out, gac_error *err);

/* Updates head and hidden sizes in a config. */
gac_status gac_rescaled_config(const gac_model *model, const int64_t *sizes, json_t *config,
                               gac_error *err);

/* A range of rows of a repaired tensor whose values are multiplied by a factor. */
typedef struct scaled_range {
    int64_t start, n_rows; /* indices on axis 0 of the target */
    double factor;
} scaled_range;

enum { GAC_MAX_SCALED_RANGES = 4 };

typedef struct tensor_scaling {
    scaled_range ranges[GAC_MAX_SCALED_RANGES];
    int32_t n_ranges;
    int64_t last_start;
    gac_dtype dtype;
} tensor_scaling;

/* Finds the ranges of a tensor that must be scaled. False if there are none. */
bool gac_scaling_of(const place_list *list, int32_t tensor, const int64_t *sizes,
                    tensor_scaling *out);

/* Multiplies n elements by factor. False for a dtype that cannot be scaled. */
bool gac_scale_elements(void *data, uint64_t n, gac_dtype dtype, double factor);

/* Makes the record of a repair: the changed dimensions with their places in the
 * original, the original's config, hashes of its config and tensors (zeros
 * until gac_record_set_hashes), and the record of an earlier repair. The caller
 * owns *out. */
gac_status gac_record_create(gac_checkpoint *checkpoint, const gac_model *model,
                             const int64_t *sizes, gac_widths widths, json_t **out, gac_error *err);
/* Reads the record of a repaired checkpoint. *out is NULL if there is none.
 * Errors: GAC_BAD_INPUT if it does not match its checksum. */
gac_status gac_record_find(const gac_checkpoint *checkpoint, json_t **out, gac_error *err);
/* Writes the record as text for the metadata, malloc'ed, and the hash of that
 * text. */
gac_status gac_record_text(const json_t *record, char **text, char sum[17], gac_error *err);
bool gac_record_is_rescaled(const json_t *record);
/* Returns false for records of version 0.1. */
bool gac_record_has_checksums(const json_t *record);
gac_widths gac_record_widths(const json_t *record);
/* Notes in a record that modelling code was allowed, and the checksum of code, the text that was
 * written, or NULL. */
gac_status gac_record_set_code(json_t *record, const char *code, gac_error *err);
bool gac_record_allows_code(const json_t *record);
/* Returns the checksum of the modelling code that the repairs of a chain wrote, from record back to
 * last; NULL if none did. Borrowed. */
const char *gac_record_code_sum(const json_t *record, const json_t *last);
/* Returns the first record of a chain of repairs. It describes the very
 * original. */
const json_t *gac_record_oldest(const json_t *record);
int32_t gac_record_n_dims(const json_t *record);
/* Updates sizes (of model's dimensions) to those after the repair. False if the
 * record has dimensions or sizes that do not fit; these are skipped. */
bool gac_record_apply(const json_t *record, const gac_model *model, int64_t *sizes);

/* Computes the rank of each tensor in the order of names. Hashes in a record
 * have this order. *out is malloc'ed. */
gac_status gac_tensor_ranks(const gac_checkpoint *checkpoint, int32_t **out, gac_error *err);
gac_status gac_record_set_hashes(json_t *record, const gac_checkpoint *checkpoint,
                                 const uint64_t *hashes, gac_error *err);
bool gac_record_hash_is(const json_t *record, int32_t rank, uint64_t hash);
/* Returns whether a record has the hashes of exactly n_tensors tensors. */
bool gac_record_counts(const json_t *record, int32_t n_tensors);

/* Checks by the record's checksums that the directory at path is the original.
 * *proved is false if the record has no checksums. Errors: GAC_BAD_INPUT naming
 * the tensor that differs. */
gac_status gac_prove_original(const char *path, const json_t *record, gac_progress *progress,
                              bool *proved, gac_error *err);

/* The repairs from an original to a repaired checkpoint, by the records of a
 * chain. */
typedef struct history {
    place_list *lists; /* (n), oldest repair first */
    int64_t **sizes;
    int32_t n;
} history;
/* Makes a history. first is the record whose repair started from the original.
 * NULL means the oldest record, which starts from the very original. */
gac_status gac_history_create(const json_t *record, const json_t *first,
                              const gac_checkpoint *checkpoint, history *out, gac_error *err);
void gac_history_dispose(history *h);
gac_status gac_history_map(const history *h, const gac_checkpoint *checkpoint, int32_t tensor,
                           tensor_map *out, gac_error *err);

#endif
