/* Computes where the elements of a tensor move when dimensions on its axes
 * change. */
#include <stdlib.h>
#include <string.h>

#include "repair/repair_internal.h"

gac_status gac_places_start(const gac_checkpoint *checkpoint, place_list *out, gac_error *err)
{
    int32_t n = gac_checkpoint_n_tensors(checkpoint);
    *out = (place_list){ .checkpoint = checkpoint };
    out->first = calloc((size_t)n + 1, sizeof *out->first);
    if (!out->first)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < n; i++)
        out->first[i] = -1;
    return GAC_OK;
}

gac_status gac_places_add(place_list *list, int32_t tensor, place_entry entry, gac_error *err)
{
    if (!gac_grow((void **)&list->entries, list->n_entries, &list->capacity, sizeof *list->entries))
        return gac_error_no_memory(err);
    entry.next = list->first[tensor];
    list->first[tensor] = list->n_entries;
    list->entries[list->n_entries++] = entry;
    return GAC_OK;
}

int64_t gac_place_parts(const gac_place *place)
{
    return place->repeat == GAC_REPEAT_HALF ? 2 : place->repeat == GAC_REPEAT_PAIRS ? 0 : 1;
}

gac_status gac_places_create(const gac_model *model, place_list *out, gac_error *err)
{
    gac_status status = gac_places_start(gac_model_checkpoint(model), out, err);
    out->model = model;
    for (int32_t i = 0; i < gac_model_n_dims(model) && status == GAC_OK; i++) {
        const gac_dim *d = gac_model_dim(model, i);
        for (int32_t p = 0; p < d->n_places && status == GAC_OK; p++) {
            const gac_place *place = &d->places[p];
            status = gac_places_add(out, place->tensor,
                                    (place_entry){ i, place->axis, place->start, place->n_slices,
                                                   gac_place_parts(place), d->size, -1 },
                                    err);
        }
    }
    return status;
}

void gac_places_dispose(place_list *list)
{
    free(list->entries);
    free(list->first);
}

/* Appends a run, or extends the last one if the new run continues it. */
static bool add_run(axis_map *axis, int64_t from, int64_t to, int64_t length)
{
    run *last = axis->n_runs ? &axis->runs[axis->n_runs - 1] : NULL;
    if (length == 0)
        return true;
    if (last && last->from + last->length == from && last->to + last->length == to) {
        last->length += length;
        return true;
    }
    if (!gac_grow((void **)&axis->runs, axis->n_runs, &axis->capacity, sizeof *axis->runs))
        return false;
    axis->runs[axis->n_runs++] = (run){ from, to, length };
    return true;
}

/* A place that changes size. Each slice consists of n_parts parts, which grow
 * or shrink at their ends. */
typedef struct growth {
    int64_t start, n_slices, from_size, to_size;
    int64_t n_parts;
} growth;

static int by_start(const void *a, const void *b)
{
    const growth *x = a, *y = b;
    return x->start < y->start ? -1 : x->start > y->start;
}

static gac_status cannot(const place_list *list, int32_t tensor, gac_status status,
                         const char *what, gac_error *err)
{
    char q[160];
    return gac_error_set(
        err, status, "tensor \"%s\": %s",
        gac_quote(q, sizeof q, gac_checkpoint_tensor(list->checkpoint, tensor)->name), what);
}

/* Fills the runs of one axis of n_from indices. *fits is false if places
 * overlap or leave the axis. */
static gac_status fill_axis(axis_map *axis, int64_t n_from, growth *list, int32_t n, bool *fits,
                            gac_error *err)
{
    int64_t from = 0, to = 0;
    bool ok = true;
    qsort(list, (size_t)n, sizeof *list, by_start);
    for (int32_t i = 0; i < n && ok && *fits; i++) {
        const growth *g = &list[i];
        int64_t part_from = g->from_size / g->n_parts, part_to = g->to_size / g->n_parts;
        *fits = g->start >= from && g->start <= n_from &&
                g->n_slices <= (n_from - g->start) / g->from_size;
        if (!*fits)
            break;
        ok = add_run(axis, from, to, g->start - from);
        to += g->start - from;
        from = g->start;
        for (int64_t p = 0; p < g->n_slices * g->n_parts && ok; p++) {
            ok = add_run(axis, from, to, part_from < part_to ? part_from : part_to);
            from += part_from;
            to += part_to;
        }
    }
    ok = ok && add_run(axis, from, to, n_from - from);
    axis->n_from = n_from;
    axis->n_to = to + n_from - from;
    return ok ? GAC_OK : gac_error_no_memory(err);
}

/* Collects the changed places of one axis. room has space for all places of the
 * tensor. */
static gac_status collect(const place_list *list, int32_t tensor, int32_t axis,
                          const int64_t *sizes, growth *room, int32_t *n, gac_error *err)
{
    *n = 0;
    for (int32_t r = list->first[tensor]; r >= 0; r = list->entries[r].next) {
        const place_entry *e = &list->entries[r];
        int64_t to = sizes[e->dim];
        if (e->axis != axis || to == e->size)
            continue;
        if (e->n_parts == 0) { /* slices that alternate grow as one */
            int64_t n_slices = e->n_slices;
            room[(*n)++] = (growth){ e->start, 1, n_slices * e->size, n_slices * to, 1 };
            continue;
        }
        if (e->size % e->n_parts != 0 || to % e->n_parts != 0)
            return cannot(list, tensor, GAC_USAGE, "an odd head size has no halves to rotate", err);
        room[(*n)++] = (growth){ e->start, e->n_slices, e->size, to, e->n_parts };
    }
    return GAC_OK;
}

/* Checks that elements of less than a byte move in whole bytes. Every boundary
 * of a run, multiplied by the elements behind the axis, must be at a byte. */
static gac_status check_bits(const place_list *list, int32_t tensor, const tensor_map *map,
                             gac_error *err)
{
    int64_t bits = gac_dtype_bits(map->dtype);
    bool whole = true;
    for (int32_t a = map->n_axes - 1; a >= 0 && bits % 8 != 0; a--) {
        const axis_map *axis = &map->axes[a];
        for (int32_t i = 0; i < axis->n_runs && a <= map->last; i++)
            whole = whole && axis->runs[i].from * bits % 8 == 0 &&
                    axis->runs[i].to * bits % 8 == 0 && axis->runs[i].length * bits % 8 == 0;
        /* Rows of a changed tensor move one by one, as bytes. */
        if (a > 0 && a <= map->last)
            whole = whole && axis->n_from * bits % 8 == 0 && axis->n_to * bits % 8 == 0;
        bits = axis->n_to % 8 * bits % 8;
    }
    return whole
               ? GAC_OK
               : cannot(list, tensor, GAC_USAGE, "its packed elements would have to be split", err);
}

gac_status gac_map_create(const place_list *list, int32_t tensor, const int64_t *shape,
                          const int64_t *sizes, tensor_map *out, gac_error *err)
{
    const gac_tensor *t = gac_checkpoint_tensor(list->checkpoint, tensor);
    int32_t n_places = 0;
    bool fits = true;
    *out = (tensor_map){ .n_axes = t->n_axes, .last = -1, .dtype = t->dtype };
    for (int32_t r = list->first[tensor]; r >= 0; r = list->entries[r].next)
        n_places++;
    growth *room = calloc((size_t)n_places + 1, sizeof *room);
    out->axes = calloc((size_t)t->n_axes + 1, sizeof *out->axes);
    gac_status status = room && out->axes ? GAC_OK : gac_error_no_memory(err);
    for (int32_t a = 0; a < t->n_axes && status == GAC_OK && fits; a++) {
        int32_t n;
        status = collect(list, tensor, a, sizes, room, &n, err);
        if (status == GAC_OK)
            status = fill_axis(&out->axes[a], shape[a], room, n, &fits, err);
        if (n > 0)
            out->last = a;
    }
    free(room);
    if (status == GAC_OK && !fits)
        status =
            cannot(list, tensor, GAC_BAD_INPUT, "the places of its dimensions do not fit it", err);
    return status == GAC_OK && out->last >= 0 ? check_bits(list, tensor, out, err) : status;
}

/* Composes two maps of an axis: keeps the parts of each run that the next map
 * moves further. */
static bool follow_axis(axis_map *axis, const axis_map *next)
{
    axis_map result = { .n_from = axis->n_from, .n_to = next->n_to };
    bool ok = true;
    int32_t k = 0;
    for (int32_t i = 0; i < axis->n_runs && ok; i++) {
        const run *r = &axis->runs[i];
        while (k > 0 && next->runs[k].from > r->to)
            k--;
        for (; k < next->n_runs && next->runs[k].from < r->to + r->length && ok; k++) {
            const run *s = &next->runs[k];
            int64_t low = s->from > r->to ? s->from : r->to;
            int64_t end = s->from + s->length, high = r->to + r->length;
            high = end < high ? end : high;
            if (low < high)
                ok = add_run(&result, r->from + low - r->to, s->to + low - s->from, high - low);
        }
        if (k == next->n_runs)
            k--;
    }
    free(axis->runs);
    *axis = result;
    return ok;
}

gac_status gac_map_follow(tensor_map *map, const tensor_map *next, gac_error *err)
{
    for (int32_t a = 0; a < map->n_axes; a++)
        if (next->axes[a].n_runs && !follow_axis(&map->axes[a], &next->axes[a]))
            return gac_error_no_memory(err);
    map->last = next->last > map->last ? next->last : map->last;
    return GAC_OK;
}

void gac_map_invert(tensor_map *map)
{
    for (int32_t a = 0; a < map->n_axes; a++) {
        axis_map *axis = &map->axes[a];
        int64_t swap = axis->n_from;
        axis->n_from = axis->n_to;
        axis->n_to = swap;
        for (int32_t i = 0; i < axis->n_runs; i++) {
            swap = axis->runs[i].from;
            axis->runs[i].from = axis->runs[i].to;
            axis->runs[i].to = swap;
        }
    }
}

bool gac_map_equal(const tensor_map *a, const tensor_map *b)
{
    bool equal = a->n_axes == b->n_axes;
    for (int32_t i = 0; i < a->n_axes && equal; i++) {
        const axis_map *x = &a->axes[i], *y = &b->axes[i];
        equal = x->n_from == y->n_from && x->n_to == y->n_to && x->n_runs == y->n_runs;
        /* A run that continues another is merged with it, so equal maps have
         * equal runs. */
        for (int32_t k = 0; k < x->n_runs && equal; k++)
            equal = x->runs[k].from == y->runs[k].from && x->runs[k].to == y->runs[k].to &&
                    x->runs[k].length == y->runs[k].length;
    }
    return equal;
}

void gac_map_dispose(tensor_map *map)
{
    for (int32_t a = 0; map->axes && a < map->n_axes; a++)
        free(map->axes[a].runs);
    free(map->axes);
    map->axes = NULL;
}

uint64_t gac_map_bytes(const tensor_map *map, int64_t n)
{
    int64_t elements = n;
    for (int32_t a = map->last + 1; a < map->n_axes; a++)
        elements *= map->axes[a].n_to;
    return (uint64_t)elements * (uint64_t)gac_dtype_bits(map->dtype) / 8;
}

void gac_map_row_bytes(const tensor_map *map, uint64_t *from, uint64_t *to)
{
    *from = gac_map_bytes(map, map->axes[map->last].n_from);
    *to = gac_map_bytes(map, map->axes[map->last].n_to);
}

typedef struct row_walk {
    const tensor_map *map;
    row_visit visit;
    void *user;
} row_walk;

static gac_status walk_axis(const row_walk *w, int32_t a, uint64_t from, uint64_t to,
                            gac_error *err)
{
    if (a == w->map->last)
        return w->visit(w->user, from, to, 1, err);
    const axis_map *axis = &w->map->axes[a];
    from *= (uint64_t)axis->n_from;
    to *= (uint64_t)axis->n_to;
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < axis->n_runs && status == GAC_OK; i++) {
        uint64_t run_from = from + (uint64_t)axis->runs[i].from;
        uint64_t run_to = to + (uint64_t)axis->runs[i].to;
        int64_t n = axis->runs[i].length;
        if (a == w->map->last - 1)
            status = w->visit(w->user, run_from, run_to, (uint64_t)n, err);
        for (int64_t k = 0; k < n && a < w->map->last - 1 && status == GAC_OK; k++)
            status = walk_axis(w, a + 1, run_from + (uint64_t)k, run_to + (uint64_t)k, err);
    }
    return status;
}

gac_status gac_map_rows(const tensor_map *map, row_visit visit, void *user, gac_error *err)
{
    row_walk w = { map, visit, user };
    return walk_axis(&w, 0, 0, 0, err);
}

void gac_map_scatter(const tensor_map *map, const char *source, char *target, uint64_t n_rows)
{
    uint64_t row_from, row_to;
    const axis_map *axis = &map->axes[map->last];
    gac_map_row_bytes(map, &row_from, &row_to);
    for (uint64_t r = 0; r < n_rows; r++, source += row_from, target += row_to) {
        uint64_t done = 0;
        for (int32_t i = 0; i < axis->n_runs; i++) {
            uint64_t to = gac_map_bytes(map, axis->runs[i].to);
            uint64_t length = gac_map_bytes(map, axis->runs[i].length);
            if (to > done)
                memset(target + done, 0, to - done);
            memcpy(target + to, source + gac_map_bytes(map, axis->runs[i].from), length);
            done = to + length;
        }
        memset(target + done, 0, row_to - done);
    }
}
