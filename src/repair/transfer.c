/* Streams one tensor from a checkpoint through its map into a writer. */
#include <stdlib.h>

#include "repair/repair_internal.h"

/* Rows of at most ROW_BYTES are gathered in memory. Runs of at least
 * LONG_RUN_BYTES are worth a system call of their own. Pieces in memory fit
 * into a core's own cache. */
enum { ROW_BYTES = 4 << 20, LONG_RUN_BYTES = 128 << 10, PIECE_BYTES = 128 << 10 };

typedef struct transfer {
    gac_checkpoint *checkpoint;
    gac_writer *writer;
    int32_t from, to;
    const tensor_map *map;
    gac_tensor_hash *hash;     /* hashes the bytes that are read; or NULL */
    uint64_t row_from, row_to; /* bytes */
    uint64_t at_once;          /* rows that are gathered at once; 0: runs are copied one by one */
    char *source, *target;     /* (at_once rows) each, or source (PIECE_BYTES) */
    uint64_t n_copied;
} transfer;

/* Copies a run of bytes directly from file to file, or through memory if it is
 * hashed. */
static gac_status copy_run(transfer *t, uint64_t from, uint64_t to, uint64_t n_bytes,
                           gac_error *err)
{
    t->n_copied += n_bytes;
    if (!t->hash)
        return gac_writer_copy(t->writer, t->to, to, t->checkpoint, t->from, from, n_bytes, err);
    gac_status status = GAC_OK;
    while (n_bytes && status == GAC_OK) {
        size_t n = n_bytes < PIECE_BYTES ? (size_t)n_bytes : PIECE_BYTES;
        status = gac_checkpoint_read(t->checkpoint, t->from, from, t->source, n, err);
        if (status != GAC_OK)
            break;
        gac_tensor_hash_feed(t->hash, from, t->source, n);
        status = gac_writer_write(t->writer, t->to, to, t->source, n, err);
        from += n;
        to += n;
        n_bytes -= n;
    }
    return status;
}

/* Copies the runs of one row. The bytes between them stay zero. */
static gac_status copy_runs(transfer *t, uint64_t from_row, uint64_t to_row, gac_error *err)
{
    const axis_map *axis = &t->map->axes[t->map->last];
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < axis->n_runs && status == GAC_OK; i++) {
        const run *r = &axis->runs[i];
        status = copy_run(t, from_row * t->row_from + gac_map_bytes(t->map, r->from),
                          to_row * t->row_to + gac_map_bytes(t->map, r->to),
                          gac_map_bytes(t->map, r->length), err);
    }
    return status;
}

static gac_status copy_rows(void *user, uint64_t from_row, uint64_t to_row, uint64_t n_rows,
                            gac_error *err)
{
    transfer *t = user;
    gac_status status = GAC_OK;
    for (uint64_t r = 0; r < n_rows && t->at_once == 0 && status == GAC_OK; r++)
        status = copy_runs(t, from_row + r, to_row + r, err);
    while (n_rows && t->at_once && status == GAC_OK) {
        uint64_t n = n_rows < t->at_once ? n_rows : t->at_once;
        status = gac_checkpoint_read(t->checkpoint, t->from, from_row * t->row_from, t->source,
                                     (size_t)(n * t->row_from), err);
        if (status != GAC_OK)
            break;
        gac_tensor_hash_feed(t->hash, from_row * t->row_from, t->source, (size_t)(n * t->row_from));
        gac_map_scatter(t->map, t->source, t->target, n);
        status = gac_writer_write(t->writer, t->to, to_row * t->row_to, t->target,
                                  (size_t)(n * t->row_to), err);
        t->n_copied += n * t->row_to;
        from_row += n;
        to_row += n;
        n_rows -= n;
    }
    return status;
}

/* Returns how many rows to gather at once; 0 if their runs are long enough to
 * be copied one by one. */
static uint64_t rows_at_once(const transfer *t)
{
    const axis_map *axis = &t->map->axes[t->map->last];
    uint64_t widest = t->row_from > t->row_to ? t->row_from : t->row_to;
    if (widest > ROW_BYTES || t->row_from == 0 || t->row_to == 0 ||
        t->row_from / (uint64_t)(axis->n_runs ? axis->n_runs : 1) >= LONG_RUN_BYTES)
        return 0;
    return widest < PIECE_BYTES ? PIECE_BYTES / widest : 1;
}

static gac_status get_buffers(transfer *t, gac_error *err)
{
    bool rows = t->at_once > 0, ok = true;
    if (rows || t->hash)
        ok = (t->source = malloc(rows ? (size_t)(t->at_once * t->row_from) : PIECE_BYTES)) != NULL;
    if (rows && ok)
        ok = (t->target = malloc((size_t)(t->at_once * t->row_to))) != NULL;
    return ok ? GAC_OK : gac_error_no_memory(err);
}

static uint64_t target_bytes(const tensor_map *map)
{
    uint64_t row_from, row_to;
    gac_map_row_bytes(map, &row_from, &row_to);
    for (int32_t a = 0; a < map->last; a++)
        row_to *= (uint64_t)map->axes[a].n_to;
    return row_to;
}

gac_status gac_transfer(gac_checkpoint *checkpoint, int32_t from, const tensor_map *map,
                        gac_writer *writer, int32_t to, gac_tensor_hash *hash, gac_error *err)
{
    transfer t = {
        .checkpoint = checkpoint, .writer = writer, .from = from, .to = to, .map = map, .hash = hash
    };
    bool changes = map->last >= 0;
    if (changes) {
        gac_map_row_bytes(map, &t.row_from, &t.row_to);
        t.at_once = rows_at_once(&t);
    }
    gac_status status = get_buffers(&t, err);
    if (status == GAC_OK && !changes)
        status = copy_run(&t, 0, 0, gac_checkpoint_tensor(checkpoint, from)->size_bytes, err);
    if (status == GAC_OK && changes)
        status = gac_map_rows(map, copy_rows, &t, err);
    if (status == GAC_OK && changes)
        status = gac_writer_leave_zero(writer, to, target_bytes(map) - t.n_copied, err);
    free(t.source);
    free(t.target);
    return status;
}

/* The state of checking the bytes that a map does not fill. */
typedef struct pad_check {
    gac_checkpoint *checkpoint;
    int32_t tensor;
    const tensor_map *map;
    uint64_t row, next_row; /* bytes of a row; rows before next_row are done */
    char *buffer;
    bool zero;
} pad_check;

static gac_status check_bytes(pad_check *p, uint64_t from, uint64_t to, gac_error *err)
{
    gac_status status = GAC_OK;
    while (from < to && p->zero && status == GAC_OK) {
        size_t n = to - from < PIECE_BYTES ? (size_t)(to - from) : PIECE_BYTES;
        status = gac_checkpoint_read(p->checkpoint, p->tensor, from, p->buffer, n, err);
        for (size_t i = 0; i < n && status == GAC_OK; i++)
            p->zero = p->zero && p->buffer[i] == 0;
        from += n;
    }
    return status;
}

static gac_status check_gaps(void *user, uint64_t from_row, uint64_t to_row, uint64_t n_rows,
                             gac_error *err)
{
    pad_check *p = user;
    const axis_map *axis = &p->map->axes[p->map->last];
    (void)from_row;
    gac_status status = check_bytes(p, p->next_row * p->row, to_row * p->row, err);
    for (uint64_t r = to_row; r < to_row + n_rows && status == GAC_OK && p->zero; r++) {
        uint64_t done = 0;
        for (int32_t i = 0; i <= axis->n_runs && status == GAC_OK; i++) {
            uint64_t to = i < axis->n_runs ? gac_map_bytes(p->map, axis->runs[i].to) : p->row;
            status = check_bytes(p, r * p->row + done, r * p->row + to, err);
            if (i < axis->n_runs)
                done = to + gac_map_bytes(p->map, axis->runs[i].length);
        }
    }
    p->next_row = to_row + n_rows;
    return status;
}

gac_status gac_pads_are_zero(gac_checkpoint *checkpoint, int32_t tensor, const tensor_map *map,
                             bool *out, gac_error *err)
{
    uint64_t row_from;
    pad_check p = { .checkpoint = checkpoint, .tensor = tensor, .map = map, .zero = true };
    *out = true;
    if (map->last < 0)
        return GAC_OK;
    p.buffer = malloc(PIECE_BYTES);
    if (!p.buffer)
        return gac_error_no_memory(err);
    gac_map_row_bytes(map, &row_from, &p.row);
    gac_status status = gac_map_rows(map, check_gaps, &p, err);
    if (status == GAC_OK)
        status = check_bytes(&p, p.next_row * p.row,
                             gac_checkpoint_tensor(checkpoint, tensor)->size_bytes, err);
    free(p.buffer);
    *out = p.zero;
    return status;
}
