/* Verifies the tensors of a repaired checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "base/arguments.h"
#include "repair/verify_internal.h"

static void differ(gac_verification *out, const char *tensor, const char *format, long long a)
{
    char q[160], what[256];
    snprintf(what, sizeof what, format, a);
    gac_differ(out, "tensor \"%s\": %s", gac_quote(q, sizeof q, tensor), what);
}

static void check_names(comparison *c)
{
    const gac_checkpoint *checkpoints[2] = { c->original, c->repaired };
    for (int side = 0; side < 2; side++)
        for (int32_t i = 0; i < gac_checkpoint_n_tensors(checkpoints[side]); i++) {
            const char *name = gac_checkpoint_tensor(checkpoints[side], i)->name;
            if (gac_checkpoint_find(checkpoints[1 - side], name) >= 0)
                continue;
            c->out->same_tensors = false;
            if (side == 0)
                c->out->lossless = false;
            differ(c->out, name, side ? "is extra" : "is missing", 0);
        }
}

/* The state of comparing the rows of one tensor. */
typedef struct row_check {
    comparison *c;
    const tensor_map *map;
    const tensor_scaling *scaling; /* or NULL */
    int32_t from, to;
    uint64_t row_from, row_to;
    uint64_t next_row; /* row of the target; earlier rows are done */
    bool equal, zero;
    uint64_t where; /* offset of the first difference */
} row_check;

/* Checks that target rows [from, to) are zero. */
static gac_status check_zero_rows(row_check *k, uint64_t from, uint64_t to, gac_error *err)
{
    uint64_t offset = from * k->row_to, left = (to - from) * k->row_to;
    while (left && k->zero) {
        size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
        gac_status status = gac_checkpoint_read(k->c->repaired, k->to, offset, k->c->found, n, err);
        if (status != GAC_OK)
            return status;
        for (size_t i = 0; i < n && k->zero; i++)
            if (k->c->found[i]) {
                k->zero = false;
                k->where = offset + i;
            }
        offset += n;
        left -= n;
    }
    return GAC_OK;
}

/* Returns whether a byte of a target row was inserted. */
static bool is_pad(const tensor_map *map, uint64_t byte)
{
    const axis_map *axis = &map->axes[map->last];
    for (int32_t i = 0; i < axis->n_runs; i++) {
        uint64_t from = gac_map_bytes(map, axis->runs[i].to);
        if (byte >= from && byte < from + gac_map_bytes(map, axis->runs[i].length))
            return false;
    }
    return true;
}

/* Scales the expected bytes. Rows here are those of the last changed axis, but
 * ranges are those of axis 0. */
static void scale_expected(const row_check *k, char *bytes, uint64_t offset, uint64_t n_bytes)
{
    uint64_t axis0 = (uint64_t)k->map->axes[0].n_to;
    uint64_t total = k->row_to;
    for (int32_t a = 0; a < k->map->last; a++)
        total *= (uint64_t)k->map->axes[a].n_to;
    uint64_t row0 = axis0 ? total / axis0 : 0;
    for (int32_t r = 0; k->scaling && r < k->scaling->n_ranges; r++) {
        const scaled_range *s = &k->scaling->ranges[r];
        uint64_t from = (uint64_t)s->start * row0, to = from + (uint64_t)s->n_rows * row0;
        uint64_t low = from > offset ? from : offset;
        uint64_t high = to < offset + n_bytes ? to : offset + n_bytes;
        uint64_t element = (uint64_t)gac_dtype_bits(k->scaling->dtype) / 8;
        if (low < high)
            gac_scale_elements(bytes + (low - offset), (high - low) / element, k->scaling->dtype,
                               s->factor);
    }
}

static void note_difference(row_check *k, uint64_t offset, uint64_t n_bytes)
{
    uint64_t i = 0;
    while (i < n_bytes && k->c->expected[i] == k->c->found[i])
        i++;
    if (i == n_bytes)
        return;
    if (is_pad(k->map, (offset + i) % k->row_to))
        k->zero = false;
    else
        k->equal = false;
    k->where = offset + i;
}

/* Checks a long row: its runs one by one, and the gaps between them. */
static gac_status check_long_row(row_check *k, uint64_t from_row, uint64_t to_row, gac_error *err)
{
    const axis_map *axis = &k->map->axes[k->map->last];
    uint64_t done = 0;
    gac_status status = GAC_OK;
    for (int32_t i = 0; i <= axis->n_runs && status == GAC_OK && k->equal && k->zero; i++) {
        uint64_t to = i < axis->n_runs ? gac_map_bytes(k->map, axis->runs[i].to) : k->row_to;
        for (uint64_t at = done; at < to && status == GAC_OK && k->zero;) {
            size_t n = to - at < BUFFER_BYTES ? (size_t)(to - at) : BUFFER_BYTES;
            status = gac_checkpoint_read(k->c->repaired, k->to, to_row * k->row_to + at,
                                         k->c->found, n, err);
            memset(k->c->expected, 0, n);
            if (status == GAC_OK)
                note_difference(k, to_row * k->row_to + at, n);
            at += n;
        }
        if (i == axis->n_runs)
            break;
        uint64_t from = gac_map_bytes(k->map, axis->runs[i].from);
        uint64_t length = gac_map_bytes(k->map, axis->runs[i].length);
        for (uint64_t at = 0; at < length && status == GAC_OK && k->equal;) {
            size_t n = length - at < BUFFER_BYTES ? (size_t)(length - at) : BUFFER_BYTES;
            uint64_t offset = to_row * k->row_to + to + at;
            status =
                gac_checkpoint_read(k->c->original, k->from, from_row * k->row_from + from + at,
                                    k->c->expected, n, err);
            if (status == GAC_OK)
                gac_tensor_hash_feed(k->c->hash, from_row * k->row_from + from + at, k->c->expected,
                                     n);
            if (status == GAC_OK)
                status = gac_checkpoint_read(k->c->repaired, k->to, offset, k->c->found, n, err);
            if (status == GAC_OK) {
                scale_expected(k, k->c->expected, offset, n);
                note_difference(k, offset, n);
            }
            at += n;
        }
        done = to + length;
    }
    return status;
}

static gac_status check_rows(void *user, uint64_t from_row, uint64_t to_row, uint64_t n_rows,
                             gac_error *err)
{
    row_check *k = user;
    gac_status status = check_zero_rows(k, k->next_row, to_row, err);
    k->next_row = to_row + n_rows;
    uint64_t at_once = k->row_to ? BUFFER_BYTES / k->row_to : 0;
    for (uint64_t r = 0; r < n_rows && at_once == 0 && k->row_to && status == GAC_OK; r++)
        status = check_long_row(k, from_row + r, to_row + r, err);
    while (n_rows && at_once && status == GAC_OK && k->equal && k->zero) {
        uint64_t n = n_rows < at_once ? n_rows : at_once;
        status = gac_checkpoint_read(k->c->original, k->from, from_row * k->row_from, k->c->source,
                                     (size_t)(n * k->row_from), err);
        if (status == GAC_OK)
            gac_tensor_hash_feed(k->c->hash, from_row * k->row_from, k->c->source,
                                 (size_t)(n * k->row_from));
        if (status == GAC_OK)
            status = gac_checkpoint_read(k->c->repaired, k->to, to_row * k->row_to, k->c->found,
                                         (size_t)(n * k->row_to), err);
        if (status == GAC_OK) {
            gac_map_scatter(k->map, k->c->source, k->c->expected, n);
            scale_expected(k, k->c->expected, to_row * k->row_to, n * k->row_to);
            note_difference(k, to_row * k->row_to, n * k->row_to);
        }
        from_row += n;
        to_row += n;
        n_rows -= n;
    }
    return status;
}

static bool same_shape(const gac_tensor *t, const tensor_map *map)
{
    if (t->n_axes != map->n_axes || t->dtype != map->dtype)
        return false;
    for (int32_t a = 0; a < t->n_axes; a++)
        if (t->shape[a] != map->axes[a].n_to)
            return false;
    return true;
}

static bool same_tensor(const gac_tensor *a, const gac_tensor *b)
{
    return a->dtype == b->dtype && a->n_axes == b->n_axes &&
           memcmp(a->shape, b->shape, (size_t)a->n_axes * sizeof *a->shape) == 0;
}

/* Checks that the original of a scaled tensor was kept, byte for byte. */
static gac_status check_kept(comparison *c, int32_t tensor)
{
    const gac_tensor *t = gac_checkpoint_tensor(c->original, tensor);
    int32_t kept = c->kept ? gac_checkpoint_find(c->kept, t->name) : -1;
    c->out->rescaled = true;
    if (kept < 0 || !same_tensor(gac_checkpoint_tensor(c->kept, kept), t)) {
        c->out->lossless = false;
        differ(c->out, t->name, "was scaled, and its original is not kept", 0);
        return GAC_OK;
    }
    gac_status status = GAC_OK;
    for (uint64_t at = 0; at < t->size_bytes && status == GAC_OK;) {
        uint64_t left = t->size_bytes - at;
        size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
        status = gac_checkpoint_read(c->original, tensor, at, c->source, n, c->err);
        if (status == GAC_OK)
            status = gac_checkpoint_read(c->kept, kept, at, c->found, n, c->err);
        if (status == GAC_OK && memcmp(c->source, c->found, n) != 0) {
            c->out->lossless = false;
            differ(c->out, t->name, "its kept original differs near byte %lld", (long long)at);
            break;
        }
        at += n;
    }
    return status;
}

/* Checks that a tensor has the same bytes as the original. */
static gac_status check_same(comparison *c, int32_t from, int32_t to)
{
    const gac_tensor *t = gac_checkpoint_tensor(c->original, from);
    gac_status status = GAC_OK;
    for (uint64_t at = 0; at < t->size_bytes && status == GAC_OK;) {
        uint64_t left = t->size_bytes - at;
        size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES, i = 0;
        status = gac_checkpoint_read(c->original, from, at, c->source, n, c->err);
        if (status == GAC_OK)
            gac_tensor_hash_feed(c->hash, at, c->source, n);
        if (status == GAC_OK)
            status = gac_checkpoint_read(c->repaired, to, at, c->found, n, c->err);
        while (status == GAC_OK && i < n && c->source[i] == c->found[i])
            i++;
        if (status == GAC_OK && i < n) {
            c->out->lossless = false;
            differ(c->out, t->name, "differs from the original at byte %lld", (long long)(at + i));
            break;
        }
        at += n;
    }
    return status;
}

static gac_status check_changed(comparison *c, int32_t i, int32_t to, const tensor_map *map)
{
    tensor_scaling scaling;
    const char *name = gac_checkpoint_tensor(c->original, i)->name;
    bool scaled = gac_scaling_of(&c->places, i, c->sizes, &scaling);
    row_check k = { .c = c,
                    .map = map,
                    .scaling = scaled ? &scaling : NULL,
                    .from = i,
                    .to = to,
                    .equal = true,
                    .zero = true };
    gac_map_row_bytes(map, &k.row_from, &k.row_to);
    gac_status status = gac_map_rows(map, check_rows, &k, c->err);
    uint64_t n_rows = k.row_to ? gac_checkpoint_tensor(c->repaired, to)->size_bytes / k.row_to : 0;
    if (status == GAC_OK && k.equal && k.next_row < n_rows)
        status = check_zero_rows(&k, k.next_row, n_rows, c->err);
    c->out->lossless = c->out->lossless && k.equal;
    c->out->pads_zero = c->out->pads_zero && k.zero;
    if (!k.equal)
        differ(c->out, name, "differs from the original at byte %lld", (long long)k.where);
    else if (!k.zero)
        differ(c->out, name, "an inserted byte is not zero: %lld", (long long)k.where);
    return status == GAC_OK && scaled ? check_kept(c, i) : status;
}

static gac_status check_tensor(comparison *c, int32_t i)
{
    tensor_map map;
    gac_error why = GAC_ERROR_INIT;
    const gac_tensor *t = gac_checkpoint_tensor(c->original, i);
    int32_t to = gac_checkpoint_find(c->repaired, t->name);
    if (to < 0)
        return GAC_OK;
    gac_status status = gac_map_create(&c->places, i, t->shape, c->sizes, &map, &why);
    if (status == GAC_USAGE) { /* its elements do not allow this size */
        c->out->lossless = false;
        gac_differ(c->out, "no repair gives these sizes: %s", why.text);
        status = GAC_OK;
    } else if (status != GAC_OK) {
        gac_error_set(c->err, status, "%s", why.text);
    } else if (!same_shape(gac_checkpoint_tensor(c->repaired, to), &map)) {
        c->out->lossless = false;
        differ(c->out, t->name, "its shape or dtype is not the original's with larger sizes", 0);
    } else {
        status = map.last < 0 ? check_same(c, i, to) : check_changed(c, i, to, &map);
    }
    gac_map_dispose(&map);
    return status;
}

/* Opens the kept originals. If they are missing or cannot be read, check_kept
 * reports each scaled tensor. */
static gac_status open_kept(comparison *c)
{
    char *path;
    gac_error local = GAC_ERROR_INIT;
    if (!gac_record_is_rescaled(c->record))
        return GAC_OK;
    if (asprintf(&path, "%s/%s", gac_checkpoint_path(c->repaired), GAC_ORIGINALS_NAME) < 0)
        return gac_error_no_memory(c->err);
    gac_status status = gac_checkpoint_open(path, NULL, &c->kept, &local);
    free(path);
    return status == GAC_OK || status == GAC_BAD_INPUT
               ? GAC_OK
               : gac_error_set(c->err, status, "%s", local.text);
}

/* Checks a tensor, and hashes its original meanwhile. */
static gac_status check_hashed(comparison *c, int32_t i)
{
    uint64_t found = 0;
    gac_status status = GAC_OK;
    if (c->ranks)
        status = gac_tensor_hash_start(c->original, i, &c->hash, c->err);
    if (status == GAC_OK)
        status = check_tensor(c, i);
    gac_status hashed = gac_tensor_hash_finish(c->hash, &found, status == GAC_OK ? c->err : NULL);
    c->hash = NULL;
    if (status == GAC_OK)
        status = hashed;
    if (status == GAC_OK && c->ranks && !gac_record_hash_is(c->step, c->ranks[i], found)) {
        c->out->record_ok = false;
        differ(c->out, gac_checkpoint_tensor(c->original, i)->name,
               "the record of the repair has another checksum of its original", 0);
    }
    return status;
}

static gac_status check_tensors(comparison *c, gac_progress *progress)
{
    uint64_t n_done = 0;
    gac_status status = GAC_OK;
    gac_progress_start(progress, "comparing", "bytes", gac_checkpoint_size_bytes(c->original));
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c->original) && status == GAC_OK; i++) {
        status = check_hashed(c, i);
        c->out->n_tensors++;
        n_done += gac_checkpoint_tensor(c->original, i)->size_bytes;
        gac_progress_step(progress, n_done);
    }
    gac_progress_finish(progress);
    return status;
}

gac_status gac_repair_verify(gac_checkpoint *original, const gac_model *model,
                             gac_checkpoint *repaired, const gac_model *repaired_model,
                             gac_progress *progress, gac_verification *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, original, model, repaired, repaired_model, out);
    *out = (gac_verification){ .lossless = true,
                               .pads_zero = true,
                               .config_ok = true,
                               .same_tensors = true,
                               .same_files = true,
                               .record_ok = true };
    comparison c = { .original = original,
                     .repaired = repaired,
                     .model = model,
                     .repaired_model = repaired_model,
                     .out = out,
                     .err = err };
    c.sizes = calloc((size_t)gac_model_n_dims(model) + 1, sizeof *c.sizes);
    c.source = malloc(BUFFER_BYTES);
    c.expected = malloc(BUFFER_BYTES);
    c.found = malloc(BUFFER_BYTES);
    gac_status status =
        c.sizes && c.source && c.expected && c.found ? GAC_OK : gac_error_no_memory(err);
    if (status == GAC_OK)
        status = gac_places_create(model, &c.places, err);
    if (status == GAC_OK)
        status = gac_verify_record(&c);
    if (status == GAC_OK)
        status = open_kept(&c);
    if (status == GAC_OK)
        check_names(&c);
    if (status == GAC_OK)
        status = gac_verify_config(&c);
    if (status == GAC_OK)
        status = gac_verify_files(&c);
    if (status == GAC_OK)
        status = check_tensors(&c, progress);
    if (status == GAC_OK)
        status = gac_verify_chain(&c);
    if (status == GAC_OK)
        status = gac_memory_check(err);
    gac_places_dispose(&c.places);
    gac_checkpoint_close(c.kept);
    json_decref(c.record);
    free(c.ranks);
    free(c.sizes);
    free(c.source);
    free(c.expected);
    free(c.found);
    return status;
}
