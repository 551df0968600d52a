/* Finds the tensors in the values of a torch file's pickle, and names them.
 *
 * A dict gives each tensor its key; dicts in dicts and lists are joined with
 * dots. An object with _parameters, _buffers and _modules is a torch module: its
 * tensors get the names that state_dict() would give them. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/torch.h"

typedef struct walk {
    torch_file *t;
    char name[GAC_MAX_NAME_BYTES + 1];
    size_t n_name;
    int64_t n_steps;
    int64_t n_name_bytes;
    int32_t n_aside; /* objects that are neither tensors nor hold any */
    char aside[160]; /* the class of the first one */
    uint64_t tensor_bytes;
} walk;

static gac_status bad_tensor(const walk *w, const pickle_value *at, const char *format, ...)
    GAC_PRINTF(3, 4);

/* Sets the error "FILE: tensor "NAME": offset N: what is wrong". */
static gac_status bad_tensor(const walk *w, const pickle_value *at, const char *format, ...)
{
    char qp[256], qn[160], what[256];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return gac_error_set(w->t->err, GAC_BAD_INPUT, "%s: tensor \"%s\": offset %llu: %s",
                         gac_quote(qp, sizeof qp, w->t->path), gac_quote(qn, sizeof qn, w->name),
                         (unsigned long long)(w->t->base + at->at), what);
}

/* What values are. */

/* Writes the class of an object for messages, such as "torch.Size". */
static const char *class_of(const pickle_value *value, char text[160])
{
    static const char *const kinds[] = { "None",      "a bool",   "an integer", "an integer",
                                         "a number",  "a text",   "bytes",      "a tuple",
                                         "a list",    "a set",    "a dict",     "a class",
                                         "an object", "a storage" };
    char name[160];
    const pickle_value *class = value;
    if (value->kind == PICKLE_OBJECT) {
        class = value->parts->callable;
        if (class->kind == PICKLE_PERSISTENT && class->parts->args->kind == PICKLE_TUPLE &&
            class->parts->args->n > 1)
            class = class->parts->args->items[1];
    }
    if (class->kind != PICKLE_GLOBAL)
        return kinds[value->kind];
    const pickle_parts *p = class->parts;
    snprintf(name, sizeof name, "%.*s.%.*s", (int)gac_min_i64(p->callable->n, 70),
             p->callable->text, (int)gac_min_i64(p->args->n, 70), p->args->text);
    return gac_quote(text, 160, name);
}

static bool is_call_of(const pickle_value *value, const char *module, const char *name)
{
    return value->kind == PICKLE_OBJECT &&
           gac_pickle_global_is(value->parts->callable, module, name);
}

static bool starts_with(const pickle_value *text, const char *start)
{
    size_t n = strlen(start);
    return text->kind == PICKLE_TEXT && text->n >= n && memcmp(text->text, start, n) == 0;
}

/* Returns whether value is what one of torch's functions makes a tensor of, of
 * any kind. */
static bool is_tensor(const pickle_value *value)
{
    const pickle_value *f = value->kind == PICKLE_OBJECT ? value->parts->callable : NULL;
    if (!f || f->kind != PICKLE_GLOBAL || !starts_with(f->parts->callable, "torch"))
        return false;
    return starts_with(f->parts->args, "_rebuild_") || starts_with(f->parts->args, "_load_from_");
}

static bool is_mapping(const pickle_value *value)
{
    return value->kind == PICKLE_DICT || is_call_of(value, "collections", "OrderedDict") ||
           (value->kind == PICKLE_OBJECT && value->n > 0);
}

/* Returns the value of a key, or NULL. */
static pickle_value *get(const pickle_value *mapping, const char *key)
{
    for (uint32_t i = 0; mapping && is_mapping(mapping) && i + 1 < mapping->n; i += 2)
        if (gac_pickle_text_is(mapping->items[i], key))
            return mapping->items[i + 1];
    return NULL;
}

/* Returns the attributes of a torch module, or NULL for any other value. */
static const pickle_value *module_state(walk *w, const pickle_value *value)
{
    const pickle_value *state = value->kind == PICKLE_OBJECT ? value->parts->state : NULL;
    if (state && state->kind == PICKLE_TUPLE && state->n == 2)
        state = state->items[0]; /* the other one has what is in slots */
    if (!state || state->kind != PICKLE_DICT)
        return NULL;
    w->n_steps += state->n;
    return get(state, "_modules") && get(state, "_parameters") ? state : NULL;
}

/* One tensor. */

/* Follows parameters and subclasses down to the call that makes a tensor of a
 * storage. *args: its arguments. NULL if it is another kind of tensor. */
static void plain_tensor(const pickle_value *value, const pickle_value **function,
                         const pickle_value **args)
{
    const pickle_value *f = value->parts->callable, *a = value->parts->args;
    for (int i = 0; i < 4; i++) {
        if ((gac_pickle_global_is(f, "torch._utils", "_rebuild_parameter") ||
             gac_pickle_global_is(f, "torch._utils", "_rebuild_parameter_with_state")) &&
            a->n >= 1 && a->items[0]->kind == PICKLE_OBJECT) {
            f = a->items[0]->parts->callable;
            a = a->items[0]->parts->args;
        } else if (gac_pickle_global_is(f, "torch._tensor", "_rebuild_from_type_v2") && a->n >= 3 &&
                   a->items[2]->kind == PICKLE_TUPLE &&
                   (gac_pickle_global_is(a->items[1], "torch", "Tensor") ||
                    gac_pickle_global_is(a->items[1], "torch.nn.parameter", "Parameter"))) {
            f = a->items[0];
            a = a->items[2];
        }
    }
    bool known = gac_pickle_global_is(f, "torch._utils", "_rebuild_tensor") ||
                 gac_pickle_global_is(f, "torch._utils", "_rebuild_tensor_v2") ||
                 gac_pickle_global_is(f, "torch._utils", "_rebuild_tensor_v3");
    *function = f;
    *args = known && a->n >= 4 ? a : NULL;
}

/* Takes a tuple of sizes or of strides. */
static gac_status take_axes(const walk *w, const pickle_value *value, const char *what,
                            gac_arena *arena, int32_t *n_axes, int64_t **out)
{
    const pickle_value *tuple = value;
    if (is_call_of(value, "torch", "Size") && value->parts->args->n == 1)
        tuple = value->parts->args->items[0];
    if (tuple->kind != PICKLE_TUPLE && tuple->kind != PICKLE_LIST)
        return bad_tensor(w, value, "its %s are not a tuple", what);
    if (tuple->n > GAC_MAX_AXES)
        return bad_tensor(w, value, "%u axes, more than %d", tuple->n, GAC_MAX_AXES);
    int64_t *axes = gac_arena_alloc(arena, tuple->n * sizeof *axes + 1);
    if (!axes)
        return gac_error_no_memory(w->t->err);
    for (uint32_t i = 0; i < tuple->n; i++) {
        axes[i] = tuple->items[i]->kind == PICKLE_INT ? tuple->items[i]->integer : -1;
        if (axes[i] < 0)
            return bad_tensor(w, value, "entry %u of its %s is negative or no number", i, what);
    }
    *n_axes = (int32_t)tuple->n;
    *out = axes;
    return GAC_OK;
}

/* Finds the dtype, and the bytes of the storage that the tensor may use. */
static gac_status take_storage(const walk *w, const pickle_value *function,
                               const pickle_value *args, gac_tensor *tensor, uint64_t *n_bytes)
{
    char text[160];
    uint64_t start;
    const pickle_value *value = args->items[0];
    if (value->kind != PICKLE_PERSISTENT || value->integer < 0)
        return bad_tensor(w, value, "its storage is %s", class_of(value, text));
    const torch_storage *s = &w->t->storages[value->integer];
    tensor->dtype = s->dtype;
    bool has_dtype = gac_pickle_global_is(function, "torch._utils", "_rebuild_tensor_v3");
    if (has_dtype && (args->n < 7 || !gac_torch_dtype(args->items[6], &tensor->dtype)))
        return bad_tensor(w, value, "its dtype %s is not one that safetensors can hold",
                          args->n < 7 ? "is missing and" : class_of(args->items[6], text));
    if (has_dtype && !s->untyped && tensor->dtype != s->dtype)
        return bad_tensor(w, value, "its dtype differs from that of its storage");
    gac_status status = gac_torch_view(w->t, value, &start, n_bytes);
    tensor->offset = s->offset + start;
    return status;
}

/* Refuses a tensor whose numbers are others than its bytes say: torch may mark it as negative or
 * conjugate in place of changing them. */
static gac_status check_marks(const walk *w, const pickle_value *function, const pickle_value *args)
{
    static const char *const marks[] = { "neg", "conj" };
    const uint32_t at =
        gac_pickle_global_is(function, "torch._utils", "_rebuild_tensor_v3") ? 7 : 6;
    const pickle_value *state = args->n > at ? args->items[at] : NULL;
    for (int i = 0; i < 2 && state && state->kind == PICKLE_DICT; i++) {
        const pickle_value *mark = get(state, marks[i]);
        if (mark && !(mark->kind == PICKLE_BOOL && mark->integer == 0))
            return bad_tensor(w, args, "it has torch's mark \"%s\", which gac does not read",
                              marks[i]);
    }
    return GAC_OK;
}

/* Returns whether the elements lie in order without gaps. */
static bool is_in_order(const gac_tensor *t, const int64_t *strides)
{
    int64_t step = 1;
    for (int32_t axis = t->n_axes; axis-- > 0;) {
        if (t->shape[axis] != 1 && strides[axis] != step)
            return t->n_elements == 0;
        step *= t->shape[axis];
    }
    return true;
}

/* Checks that all elements lie in the n_bytes of the storage. */
static gac_status check_extent(const walk *w, const pickle_value *args, gac_tensor *tensor,
                               const int64_t *strides, uint64_t n_bytes)
{
    const pickle_value *first = args->items[1];
    int64_t element = gac_dtype_bits(tensor->dtype) / 8, last, start;
    int64_t n_there = (int64_t)(n_bytes / (uint64_t)element);
    if (first->kind != PICKLE_INT || first->integer < 0 || first->integer > n_there)
        return bad_tensor(w, args, "it starts outside of its storage");
    if (!gac_tensor_bytes(tensor->dtype, tensor->n_axes, tensor->shape, &tensor->n_elements,
                          &tensor->size_bytes))
        return bad_tensor(w, args, "its size overflows");
    last = first->integer;
    for (int32_t i = 0; i < tensor->n_axes && tensor->n_elements; i++) {
        int64_t reach;
        if (!gac_mul_i64(tensor->shape[i] - 1, strides[i], &reach) ||
            !gac_add_i64(last, reach, &last))
            return bad_tensor(w, args, "its strides overflow");
    }
    if (tensor->n_elements && last >= n_there)
        return bad_tensor(w, args, "its last element is number %lld of a storage of %lld",
                          (long long)last, (long long)n_there);
    if (tensor->n_elements > n_there)
        return bad_tensor(w, args, "%lld elements share the %lld of its storage",
                          (long long)tensor->n_elements, (long long)n_there);
    if (!gac_mul_i64(first->integer, element, &start))
        return bad_tensor(w, args, "its offset overflows");
    tensor->offset += (uint64_t)start;
    return GAC_OK;
}

static gac_status add_tensor(walk *w, const pickle_value *at, gac_tensor *tensor)
{
    char why[300];
    torch_file *t = w->t;
    uint64_t most;
    bool bounded = gac_mul_u64(gac_file_size(t->file), GAC_MAX_TORCH_SHARING, &most);
    /* So there are no more tensors than the file has bytes. */
    uint64_t counted =
        tensor->size_bytes < GAC_MAX_TORCH_SHARING ? GAC_MAX_TORCH_SHARING : tensor->size_bytes;
    if (!gac_add_u64(w->tensor_bytes, counted, &w->tensor_bytes))
        return bad_tensor(w, at, "the total size overflows");
    if (bounded && w->tensor_bytes > most)
        return bad_tensor(w, at, "the tensors have more than %d times the bytes of the file",
                          GAC_MAX_TORCH_SHARING);
    w->n_name_bytes += (int64_t)w->n_name;
    if (w->n_name_bytes > GAC_MAX_TORCH_NAMES)
        return bad_tensor(w, at, "the names have more than %d bytes", GAC_MAX_TORCH_NAMES);
    tensor->name = gac_arena_strdup(&t->checkpoint->arena, w->name);
    if (!tensor->name)
        return gac_error_no_memory(t->err);
    gac_status status = gac_checkpoint_add_tensor(t->checkpoint, tensor, why, t->err);
    return *why ? bad_tensor(w, at, "%s", why) : status;
}

static gac_status take_tensor(walk *w, const pickle_value *value)
{
    char text[160];
    uint64_t n_bytes = 0;
    int32_t n_strides = 0;
    int64_t *shape = NULL, *strides = NULL;
    const pickle_value *function, *args;
    gac_checkpoint *c = w->t->checkpoint;
    gac_tensor tensor = { .file = w->t->index };
    plain_tensor(value, &function, &args);
    if (!args)
        return bad_tensor(w, value, "made by %s, which is no plain tensor",
                          class_of(function, text));
    if (w->n_name == 0 || strcmp(w->name, "__metadata__") == 0)
        return bad_tensor(w, value, "safetensors need another name");
    gac_status status = check_marks(w, function, args);
    if (status == GAC_OK)
        status = take_storage(w, function, args, &tensor, &n_bytes);
    if (status == GAC_OK)
        status = take_axes(w, args->items[2], "sizes", &c->arena, &tensor.n_axes, &shape);
    if (status == GAC_OK)
        status = take_axes(w, args->items[3], "strides", &w->t->memory.arena, &n_strides, &strides);
    if (status == GAC_OK && n_strides != tensor.n_axes)
        status = bad_tensor(w, args, "%d sizes and %d strides", tensor.n_axes, n_strides);
    tensor.shape = shape;
    if (status == GAC_OK)
        status = check_extent(w, args, &tensor, strides, n_bytes);
    if (status == GAC_OK && !is_in_order(&tensor, strides)) {
        size_t n_strided = (size_t)n_strides * sizeof *strides;
        int64_t *kept = gac_arena_alloc(&c->arena, n_strided);
        if (!kept)
            return gac_error_no_memory(w->t->err);
        tensor.strides = memcpy(kept, strides, n_strided);
    }
    return status == GAC_OK ? add_tensor(w, value, &tensor) : status;
}

/* Names. */

/* Appends a key to the name. *before is the length to go back to. */
static gac_status enter(walk *w, const pickle_value *key, size_t *before)
{
    char number[24];
    const char *text = number;
    size_t n = 0, dot = w->n_name ? 1 : 0;
    *before = w->n_name;
    if (key->kind == PICKLE_INT) {
        n = (size_t)snprintf(number, sizeof number, "%lld", (long long)key->integer);
    } else if (key->kind == PICKLE_TEXT) {
        text = key->text;
        n = key->n;
    } else {
        return bad_tensor(w, key, "a key below it is neither a text nor an integer");
    }
    if (n + dot > GAC_MAX_NAME_BYTES - w->n_name || !gac_is_utf8(text, n))
        return bad_tensor(w, key, "a key below it of %zu bytes is too long or no UTF-8", n);
    if (dot)
        w->name[w->n_name++] = '.';
    memcpy(w->name + w->n_name, text, n);
    w->n_name += n;
    w->name[w->n_name] = 0;
    return GAC_OK;
}

static void leave(walk *w, size_t before)
{
    w->n_name = before;
    w->name[before] = 0;
}

/* The walk. */

static gac_status visit(walk *w, pickle_value *value, int depth);

static gac_status visit_items(walk *w, const pickle_value *value, int depth)
{
    gac_status status = GAC_OK;
    bool mapping = is_mapping(value);
    for (uint32_t i = 0; i < value->n && status == GAC_OK; i += mapping ? 2 : 1) {
        size_t before;
        pickle_value number = { .kind = PICKLE_INT, .integer = i, .at = value->at };
        pickle_value *item = value->items[mapping ? i + 1 : i];
        w->n_steps++;
        /* Numbers and texts beside tensors have no names. */
        if (item->kind < PICKLE_TUPLE)
            continue;
        status = enter(w, mapping ? value->items[i] : &number, &before);
        if (status == GAC_OK)
            status = visit(w, item, depth + 1);
        if (status == GAC_OK)
            leave(w, before);
    }
    return status;
}

/* Returns whether a module does not save a buffer. */
static bool is_not_saved(walk *w, const pickle_value *set, const pickle_value *key)
{
    const pickle_value *items = set;
    if (set && set->kind == PICKLE_OBJECT && set->parts->args->n == 1)
        items = set->parts->args->items[0]; /* set([...]) */
    bool found = false;
    for (uint32_t i = 0; items && (items->kind == PICKLE_LIST || items->kind == PICKLE_SET) &&
                         i < items->n && !found;
         i++) {
        const pickle_value *item = items->items[i];
        w->n_steps++;
        found = item->kind == PICKLE_TEXT && key->kind == PICKLE_TEXT && item->n == key->n &&
                memcmp(item->text, key->text, key->n) == 0;
    }
    return found;
}

/* Takes the tensors of _parameters or _buffers. */
static gac_status visit_own(walk *w, const pickle_value *own, const pickle_value *not_saved)
{
    char text[160];
    gac_status status = GAC_OK;
    for (uint32_t i = 0; own && is_mapping(own) && i + 1 < own->n && status == GAC_OK; i += 2) {
        size_t before;
        const pickle_value *value = own->items[i + 1];
        w->n_steps++;
        if (value->kind == PICKLE_NONE || is_not_saved(w, not_saved, own->items[i]))
            continue;
        status = enter(w, own->items[i], &before);
        if (status == GAC_OK && !is_tensor(value))
            status = bad_tensor(w, value, "%s, which is no plain tensor", class_of(value, text));
        if (status == GAC_OK)
            status = take_tensor(w, value);
        if (status == GAC_OK)
            leave(w, before);
    }
    return status;
}

static gac_status visit_module(walk *w, const pickle_value *state, int depth)
{
    gac_status status = visit_own(w, get(state, "_parameters"), NULL);
    if (status == GAC_OK)
        status = visit_own(w, get(state, "_buffers"), get(state, "_non_persistent_buffers_set"));
    const pickle_value *modules = get(state, "_modules");
    for (uint32_t i = 0; modules && is_mapping(modules) && i + 1 < modules->n && status == GAC_OK;
         i += 2) {
        size_t before;
        w->n_steps++;
        if (modules->items[i + 1]->kind == PICKLE_NONE)
            continue;
        status = enter(w, modules->items[i], &before);
        if (status == GAC_OK && !module_state(w, modules->items[i + 1]))
            status = bad_tensor(w, modules->items[i + 1], "a module without tensors or modules");
        if (status == GAC_OK)
            status = visit(w, modules->items[i + 1], depth + 1);
        if (status == GAC_OK)
            leave(w, before);
    }
    return status;
}

static gac_status visit_inside(walk *w, const pickle_value *value, int depth)
{
    const pickle_value *state = module_state(w, value);
    if (state)
        return visit_module(w, state, depth);
    if (is_mapping(value) || value->kind == PICKLE_LIST || value->kind == PICKLE_TUPLE)
        return visit_items(w, value, depth);
    if (value->kind == PICKLE_OBJECT && w->n_aside++ == 0)
        class_of(value, w->aside);
    return GAC_OK;
}

/* Visits a value. One without tensors is visited once only, because there may be
 * very many ways to it. */
static gac_status visit(walk *w, pickle_value *value, int depth)
{
    int32_t n_before = w->t->checkpoint->n_tensors;
    if (depth > GAC_MAX_TORCH_NESTING)
        return bad_tensor(w, value, "nested deeper than %d", GAC_MAX_TORCH_NESTING);
    if (++w->n_steps > GAC_MAX_TORCH_STEPS)
        return bad_tensor(w, value, "more than %d values to visit", GAC_MAX_TORCH_STEPS);
    if (is_tensor(value))
        return take_tensor(w, value);
    gac_status status = value->has_no_use ? GAC_OK : visit_inside(w, value, depth);
    value->has_no_use = w->t->checkpoint->n_tensors == n_before;
    return status;
}

/* Adds the note "FILE: " and what. */
static gac_status note(const walk *w, const char *format, ...) GAC_PRINTF(2, 3);

static gac_status note(const walk *w, const char *format, ...)
{
    char what[256];
    gac_checkpoint *c = w->t->checkpoint;
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    const char *text = gac_arena_printf(&c->arena, "%s: %s", c->files[w->t->index].name, what);
    return text ? gac_checkpoint_add_note(c, text, w->t->err) : gac_error_no_memory(w->t->err);
}

/* Goes down from a training's checkpoint, {"model": ..., "optimizer": ...}, to
 * the model. */
static gac_status find_model(walk *w, pickle_value **root)
{
    static const char *const keys[] = { "state_dict", "model_state_dict", "model", "module", NULL };
    const pickle_value *found = *root;
    for (int level = 0; level < 4 && found; level++) {
        pickle_value *inside = NULL;
        const char *const *key = keys;
        for (uint32_t i = 1; is_mapping(*root) && i < (*root)->n; i += 2)
            if (is_tensor((*root)->items[i]))
                return GAC_OK;
        for (; *key && !inside; key += !inside) {
            pickle_value *value = get(*root, *key);
            if (value && (is_mapping(value) || module_state(w, value)))
                inside = value;
        }
        if (inside && (*root)->n > 2) {
            gac_status status = note(w, "the tensors of \"%s\" are read, %u other entries are not",
                                     *key, (*root)->n / 2 - 1);
            if (status != GAC_OK)
                return status;
        }
        *root = inside ? inside : *root;
        found = inside;
    }
    return GAC_OK;
}

gac_status gac_torch_add_tensors(torch_file *t)
{
    char text[160];
    int32_t first = t->checkpoint->n_tensors;
    pickle_value *root = t->pickle.root;
    walk *w = calloc(1, sizeof *w);
    if (!w)
        return gac_error_no_memory(t->err);
    w->t = t;
    gac_status status = find_model(w, &root);
    if (status == GAC_OK)
        status = visit(w, root, 0);
    if (status == GAC_OK && t->checkpoint->n_tensors == first && (w->n_aside || !is_mapping(root)))
        status = gac_torch_bad(t, root, "no tensors: it holds %s, which is no torch module",
                               w->n_aside ? w->aside : class_of(root, text));
    if (status == GAC_OK && w->n_aside)
        status = note(w, "%d objects that are neither tensors nor modules are not read, such as %s",
                      w->n_aside, w->aside);
    free(w);
    return status;
}
