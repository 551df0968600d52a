/* Verifies the config of a repaired checkpoint. */
#include <stdlib.h>
#include <string.h>

#include "base/json_parse.h"
#include "repair/verify_internal.h"

/* Returns whether a key may differ: tools change it, and it does not concern
 * the model. */
static bool may_differ(const char *key)
{
    return strcmp(key, "transformers_version") == 0 || strcmp(key, "_name_or_path") == 0;
}

static void config_differs(comparison *c, const char *path, const char *what)
{
    char q[200];
    c->out->config_ok = false;
    gac_differ(c->out, "%s: \"%s\" %s", gac_checkpoint_config_name(c->repaired),
               gac_quote(q, sizeof q, path), what);
}

static void compare_values(comparison *c, const char *path, const json_t *expected,
                           const json_t *found);

static void compare_objects(comparison *c, const char *path, const json_t *expected,
                            const json_t *found)
{
    char below[320];
    const char *key;
    json_t *value;
    for (int side = 0; side < 2; side++)
        json_object_foreach((json_t *)(uintptr_t)(side ? found : expected), key, value) {
            const json_t *other = json_object_get(side ? expected : found, key);
            snprintf(below, sizeof below, "%s%s%s", path, *path ? "." : "", key);
            if (may_differ(key))
                continue;
            if (!other)
                config_differs(c, below, side ? "was added" : "is missing");
            else if (side == 0)
                compare_values(c, below, value, other);
        }
}

/* Returns whether a value is a number, including integers that keep their
 * digits. */
static bool is_number(const json_t *value)
{
    return json_is_number(value) || gac_json_digits(value);
}

static double to_double(const json_t *value)
{
    const char *digits = gac_json_digits(value);
    return digits ? gac_json_digits_value(digits) : json_number_value(value);
}

/* Whether a number is an integer beyond 64 bits. */
static bool is_large(const json_t *value)
{
    const char *digits = gac_json_digits(value);
    return digits && !strpbrk(digits, ".eE");
}

/* Compares values, not their spelling: 10000 equals 10000.0. Large integers are
 * compared as integers, because doubles cannot distinguish them. */
static void compare_numbers(comparison *c, const char *path, const json_t *expected,
                            const json_t *found)
{
    char what[120];
    if (json_is_integer(expected) && json_is_integer(found)) {
        long long a = json_integer_value(expected), b = json_integer_value(found);
        snprintf(what, sizeof what, "is %lld and must be %lld", b, a);
        if (a != b)
            config_differs(c, path, what);
    } else if (is_large(expected) && is_large(found)) {
        if (!json_equal(expected, found))
            config_differs(c, path, "is another large integer");
    } else {
        double a = to_double(expected), b = to_double(found);
        snprintf(what, sizeof what, "is %.17g and must be %.17g", b, a);
        if (a != b)
            config_differs(c, path, what);
    }
}

static void compare_values(comparison *c, const char *path, const json_t *expected,
                           const json_t *found)
{
    char below[320];
    if (json_is_object(expected) && json_is_object(found)) {
        compare_objects(c, path, expected, found);
    } else if (json_is_array(expected) && json_is_array(found) &&
               json_array_size(expected) == json_array_size(found)) {
        for (size_t i = 0; i < json_array_size(expected); i++) {
            snprintf(below, sizeof below, "%s[%zu]", path, i);
            compare_values(c, below, json_array_get(expected, i), json_array_get(found, i));
        }
    } else if (is_number(expected) && is_number(found)) {
        compare_numbers(c, path, expected, found);
    } else if (!json_equal(expected, found)) {
        config_differs(c, path, "has another value than the repair gives it");
    }
}

/* Checks that config keys agree with the tensors. A key may be wrong only if it
 * was wrong before and the size did not change. */
static void check_sizes(comparison *c)
{
    for (int32_t i = 0; i < gac_model_n_dims(c->repaired_model); i++) {
        const gac_dim *d = gac_model_dim(c->repaired_model, i);
        int32_t before = gac_model_find_dim(c->model, d->name);
        if (d->declared < 0 || d->declared == d->size)
            continue;
        const gac_dim *old = before < 0 ? NULL : gac_model_dim(c->model, before);
        if (old && old->size == d->size && old->declared == d->declared)
            continue;
        c->out->config_ok = false;
        gac_differ(c->out, "%s: %s states %lld for %s, the tensors have %lld",
                   gac_checkpoint_config_name(c->repaired), d->config_key, (long long)d->declared,
                   d->name, (long long)d->size);
    }
}

/* Builds the model of the original with other sizes and another config, as
 * after some repairs of a chain. */
static gac_status sketch_model(const comparison *c, const int64_t *sizes, const json_t *config,
                               gac_checkpoint **sketch, gac_model **model, gac_error *err)
{
    int32_t n = gac_checkpoint_n_tensors(c->original);
    int64_t **shapes = calloc((size_t)n + 1, sizeof *shapes);
    gac_status status = shapes ? GAC_OK : gac_error_no_memory(err);
    for (int32_t i = 0; i < n && status == GAC_OK; i++) {
        tensor_map map;
        const gac_tensor *t = gac_checkpoint_tensor(c->original, i);
        status = gac_map_create(&c->places, i, t->shape, sizes, &map, err);
        shapes[i] = calloc((size_t)t->n_axes + 1, sizeof **shapes);
        if (status == GAC_OK && !shapes[i])
            status = gac_error_no_memory(err);
        for (int32_t a = 0; a < t->n_axes && status == GAC_OK; a++)
            shapes[i][a] = map.axes[a].n_to;
        gac_map_dispose(&map);
    }
    if (status == GAC_OK)
        status =
            gac_checkpoint_sketch(c->original, (const int64_t *const *)shapes, config, sketch, err);
    if (status == GAC_OK)
        status = gac_model_create(*sketch, model, err);
    for (int32_t i = 0; i < n && shapes; i++)
        free(shapes[i]);
    free(shapes);
    return status;
}

/* Makes the config that the repair of a record writes for a model. */
static gac_status config_after(const gac_model *model, const json_t *record, json_t **out,
                               gac_error *err)
{
    char *code = NULL;
    int64_t *sizes = calloc((size_t)gac_model_n_dims(model) + 1, sizeof *sizes);
    if (!sizes)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < gac_model_n_dims(model); i++)
        sizes[i] = gac_model_dim(model, i)->size;
    gac_record_apply(record, model, sizes);
    gac_status status = gac_repair_config(model, sizes, gac_record_widths(record),
                                          gac_record_allows_code(record), out, &code, err);
    free(code);
    free(sizes);
    return status;
}

/* Makes the config after a record of the chain. sizes are those of the original
 * at first, and those after the record at the end. */
static gac_status follow_chain(const comparison *c, const json_t *record, int64_t *sizes,
                               json_t **out, gac_error *err)
{
    json_t *before = NULL;
    gac_checkpoint *sketch = NULL;
    gac_model *model = NULL;
    gac_status status = GAC_OK;
    if (record != c->step) {
        status = follow_chain(c, json_object_get(record, "before"), sizes, &before, err);
        if (status == GAC_OK)
            status = sketch_model(c, sizes, before, &sketch, &model, err);
    }
    if (status == GAC_OK)
        status = config_after(model ? model : c->model, record, out, err);
    gac_record_apply(record, c->model, sizes);
    gac_model_free(model);
    gac_checkpoint_close(sketch);
    json_decref(before);
    return status;
}

/* Makes the config.json that the repaired checkpoint must have. */
static gac_status expected_config(const comparison *c, json_t **out, gac_error *err)
{
    if (!c->step && !c->record && !c->out->n_dims_changed) { /* a plain copy */
        *out = json_incref((json_t *)(uintptr_t)gac_checkpoint_config_exact(c->original));
        return GAC_OK;
    }
    if (!c->step) {
        char *code = NULL;
        bool has = json_object_get(gac_checkpoint_config(c->repaired), "gac_modules") != NULL;
        gac_status made =
            gac_repair_config(c->model, c->sizes, GAC_WIDTHS_AUTO, has, out, &code, err);
        free(code);
        return made;
    }
    int64_t *sizes = calloc((size_t)gac_model_n_dims(c->model) + 1, sizeof *sizes);
    if (!sizes)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < gac_model_n_dims(c->model); i++)
        sizes[i] = gac_model_dim(c->model, i)->size;
    gac_status status = follow_chain(c, c->record, sizes, out, err);
    free(sizes);
    return status;
}

gac_status gac_verify_config(comparison *c)
{
    json_t *expected = NULL;
    gac_error why = GAC_ERROR_INIT;
    const json_t *found = gac_checkpoint_config_exact(c->repaired);
    /* If no repair gives these sizes, there is no expected config. */
    if (!c->out->lossless)
        return GAC_OK;
    gac_status status = expected_config(c, &expected, &why);
    if (status == GAC_USAGE || status == GAC_BAD_INPUT) {
        c->out->config_ok = false;
        gac_differ(c->out, "%s: %s", gac_checkpoint_config_name(c->repaired), why.text);
        return GAC_OK;
    }
    if (status != GAC_OK)
        return gac_error_set(c->err, status, "%s", why.text);
    if (!expected != !found) {
        c->out->config_ok = false;
        gac_differ(c->out, "%s is %s", gac_checkpoint_config_name(c->repaired),
                   found ? "extra" : "missing");
    } else if (expected) {
        compare_objects(c, "", expected, found);
    }
    json_decref(expected);
    check_sizes(c);
    return GAC_OK;
}
