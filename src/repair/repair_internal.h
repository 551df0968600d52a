/* What the files of this room share. */
#ifndef GAC_REPAIR_INTERNAL_H
#define GAC_REPAIR_INTERNAL_H

#include <gac/repair.h>

#include <jansson.h>

#include "base/arena.h"

/* Where what was done is recorded: a key of __metadata__ in the first file. */
#define GAC_RECORD_KEY "gac_repair"
/* And beside it the hash of its text. */
#define GAC_RECORD_SUM_KEY "gac_repair_xxh3"
/* A checkpoint inside: tensors whose values changed, as they were. */
#define GAC_ORIGINALS_NAME "gac_originals"

/* length indices of an axis, from index from of the source to index to of the
 * target. */
typedef struct run {
    int64_t from, to, length;
} run;

typedef struct axis_map {
    int64_t n_from, n_to; /* length of the axis in source and target */
    run *runs;
    int32_t n_runs, capacity;
} axis_map;

/* How one tensor's elements move. Axes of equal length have one run. */
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
    int64_t n_parts; /* 2 where each half of a slice grows */
    int64_t size;    /* of the dimension in the source */
    int32_t next;    /* place of the same tensor, or -1 */
} place_entry;

/* The places of every tensor, found once. */
typedef struct place_list {
    const gac_checkpoint *checkpoint;
    const gac_model *model; /* NULL for places of a record */
    place_entry *entries;
    int32_t n_entries, capacity;
    int32_t *first; /* (n_tensors) */
} place_list;

gac_status gac_places_create(const gac_model *model, place_list *out, gac_error *err);
void gac_places_dispose(place_list *list);
/* For those who fill a list themselves. */
gac_status gac_places_start(const gac_checkpoint *checkpoint, place_list *out, gac_error *err);
gac_status gac_places_add(place_list *list, int32_t tensor, place_entry entry, gac_error *err);

/* The map of a tensor of n_axes and shape when its dimensions go to sizes.
 * GAC_USAGE when a half of a head or a sub-byte element would be cut,
 * GAC_BAD_INPUT when places do not fit the shape. Dispose of it, also after a
 * failure. */
gac_status gac_map_create(const place_list *list, int32_t tensor, const int64_t *shape,
                          const int64_t *sizes, tensor_map *out, gac_error *err);
/* Lets next, whose source is this map's target, follow. */
gac_status gac_map_follow(tensor_map *map, const tensor_map *next, gac_error *err);
/* Source and target change places. */
void gac_map_invert(tensor_map *map);
/* Whether both move the same elements to the same places. */
bool gac_map_equal(const tensor_map *a, const tensor_map *b);
void gac_map_dispose(tensor_map *map);

/* Rows: extents of the last changed axis. Calls visit for each group of rows
 * that are contiguous in source and target. */
typedef gac_status (*row_visit)(void *user, uint64_t from_row, uint64_t to_row, uint64_t n_rows,
                                gac_error *err);
gac_status gac_map_rows(const tensor_map *map, row_visit visit, void *user, gac_error *err);
/* Bytes of n indices of the last changed axis. */
uint64_t gac_map_bytes(const tensor_map *map, int64_t n);
/* Bytes of one row in source and target. */
void gac_map_row_bytes(const tensor_map *map, uint64_t *from, uint64_t *to);
/* Puts n_rows rows from source into target, whose other bytes are set to 0. */
void gac_map_scatter(const tensor_map *map, const char *source, char *target, uint64_t n_rows);

/* Whether every byte of the target that the map does not fill is zero in
 * tensor, which has the target's shape. */
gac_status gac_pads_are_zero(gac_checkpoint *checkpoint, int32_t tensor, const tensor_map *map,
                             bool *out, gac_error *err);

/* Copies a tensor through its map into the writer, and feeds hash (or NULL) with
 * the bytes that are read. */
gac_status gac_transfer(gac_checkpoint *checkpoint, int32_t from, const tensor_map *map,
                        gac_writer *writer, int32_t to, gac_tensor_hash *hash, gac_error *err);

/* The target must not touch the input: not be it, lie in it or hold it. Errors:
 * GAC_USAGE. */
gac_status gac_check_target(const char *from, const char *out, gac_error *err);

/* The config of the repaired model, exact (gac_json_parse_exact); the caller owns
 * *out. */
gac_status gac_repair_config(const gac_model *model, const int64_t *sizes, gac_widths widths,
                             json_t **out, gac_error *err);

/* Head and hidden sizes in a config that is ours to change. */
gac_status gac_rescaled_config(const gac_model *model, const int64_t *sizes, json_t *config,
                               gac_error *err);

/* Rows of a repaired tensor whose values are multiplied by a factor. */
typedef struct scaled_range {
    int64_t start, n_rows; /* on axis 0 of the target */
    double factor;
} scaled_range;

enum { GAC_MAX_SCALED_RANGES = 4 };

typedef struct tensor_scaling {
    scaled_range ranges[GAC_MAX_SCALED_RANGES];
    int32_t n_ranges;
    int64_t last_start;
    gac_dtype dtype;
} tensor_scaling;

/* What of a tensor must be scaled; false for nothing. */
bool gac_scaling_of(const place_list *list, int32_t tensor, const int64_t *sizes,
                    tensor_scaling *out);

/* Multiplies n elements; false for a dtype that cannot be. */
bool gac_scale_elements(void *data, uint64_t n, gac_dtype dtype, double factor);

/* What was done, for the metadata: dimensions with their places in the
 * checkpoint as it was, its config, hashes of its config and its tensors (zeros
 * until gac_record_set_hashes), and an earlier record. The caller owns *out. */
gac_status gac_record_create(gac_checkpoint *checkpoint, const gac_model *model,
                             const int64_t *sizes, gac_widths widths, json_t **out, gac_error *err);
/* The record of a repaired checkpoint, or *out NULL when it has none. Errors:
 * GAC_BAD_INPUT when it does not fit its checksum. */
gac_status gac_record_find(const gac_checkpoint *checkpoint, json_t **out, gac_error *err);
/* Its text for the metadata, malloc'ed, and the hash of that. */
gac_status gac_record_text(const json_t *record, char **text, char sum[17], gac_error *err);
bool gac_record_is_rescaled(const json_t *record);
/* False for records of version 0.1. */
bool gac_record_has_checksums(const json_t *record);
gac_widths gac_record_widths(const json_t *record);
/* The first record of a chain: what was done to the very original. */
const json_t *gac_record_oldest(const json_t *record);
int32_t gac_record_n_dims(const json_t *record);
/* Brings sizes (of model's dimensions) to those after the repair; false when the
 * record has dimensions or sizes that do not fit them, which are passed over. */
bool gac_record_apply(const json_t *record, const gac_model *model, int64_t *sizes);

/* Where each tensor stands in the order of names, which is the order of hashes
 * in a record. *out is malloc'ed. */
gac_status gac_tensor_ranks(const gac_checkpoint *checkpoint, int32_t **out, gac_error *err);
gac_status gac_record_set_hashes(json_t *record, const gac_checkpoint *checkpoint,
                                 const uint64_t *hashes, gac_error *err);
bool gac_record_hash_is(const json_t *record, int32_t rank, uint64_t hash);
/* Whether a record has the hashes of that many tensors. */
bool gac_record_counts(const json_t *record, int32_t n_tensors);

/* Whether the directory at path is the original that a record tells of, by its
 * checksums; *proved is false when it has none. Errors: GAC_BAD_INPUT naming the
 * tensor that differs. */
gac_status gac_prove_original(const char *path, const json_t *record, gac_progress *progress,
                              bool *proved, gac_error *err);

/* From an original of a repaired checkpoint to what it is now, over the records of
 * a chain. */
typedef struct history {
    place_list *lists; /* oldest first */
    int64_t **sizes;
    int32_t n;
} history;
/* first is the record of the chain that starts at the original; NULL: the oldest,
 * which starts at the very original. */
gac_status gac_history_create(const json_t *record, const json_t *first,
                              const gac_checkpoint *checkpoint, history *out, gac_error *err);
void gac_history_dispose(history *h);
gac_status gac_history_map(const history *h, const gac_checkpoint *checkpoint, int32_t tensor,
                           tensor_map *out, gac_error *err);

#endif
