/* What the files of this room share. */
#ifndef GAC_REPAIR_INTERNAL_H
#define GAC_REPAIR_INTERNAL_H

#include <gac/repair.h>

#include <jansson.h>

#include "base/arena.h"

/* Where what was done is recorded: a key of __metadata__ in every file. */
#define GAC_RECORD_KEY "gac_repair"
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

/* The places of every tensor, found once. */
typedef struct place_list {
    const gac_model *model;
    int32_t *dims, *places, *next; /* linked lists; next is -1 at the end */
    int32_t *first;                /* (n_tensors) */
} place_list;

gac_status gac_places_create(const gac_model *model, place_list *out, gac_error *err);
void gac_places_dispose(place_list *list);

/* The map of a tensor of model when its dimensions go to sizes. The map's
 * source is the tensor as model has it. GAC_USAGE when a half of a head or a
 * sub-byte element would be cut. Dispose of it, also after a failure. */
gac_status gac_map_create(const place_list *list, int32_t tensor, const int64_t *sizes,
                          tensor_map *out, gac_error *err);
void gac_map_dispose(tensor_map *map);

/* Rows: extents of the last changed axis. Calls visit for each group of rows
 * that are contiguous in source and target. */
typedef gac_status (*row_visit)(void *user, uint64_t from_row, uint64_t to_row, uint64_t n_rows,
                                gac_error *err);
gac_status gac_map_rows(const tensor_map *map, row_visit visit, void *user, gac_error *err);
/* Bytes of one row in source and target. */
void gac_map_row_bytes(const tensor_map *map, uint64_t *from, uint64_t *to);
/* Puts n_rows rows from source into target, whose other bytes are set to 0. */
void gac_map_scatter(const tensor_map *map, const char *source, char *target, uint64_t n_rows);

/* Copies a tensor through its map into the writer. */
gac_status gac_transfer(gac_checkpoint *checkpoint, int32_t from, const tensor_map *map,
                        gac_writer *writer, int32_t to, gac_error *err);

/* The config of the repaired model; the caller owns *out. */
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

/* What was done, as text for the metadata: the dimensions, and the config as
 * it was. The caller owns *out. */
gac_status gac_record_create(gac_checkpoint *checkpoint, const gac_model *model,
                             const int64_t *sizes, json_t **out, gac_error *err);
/* The record of a repaired checkpoint, or *out NULL when it has none. */
gac_status gac_record_find(const gac_checkpoint *checkpoint, json_t **out, gac_error *err);
bool gac_record_is_rescaled(const json_t *record);
/* Original sizes by a record, one per dimension of the repaired model. */
gac_status gac_record_sizes(const json_t *record, const gac_model *model, int64_t *sizes,
                            gac_error *err);

#endif
