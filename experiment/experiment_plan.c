/* Expands a specification for one stack: sweeps become cases, cases become
 * variants, and variants become jobs whose times are added. */
#include "experiment/experiment_internal.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The variables of a part: those of the case, then of the variant, then of the
 * loop. The last one of a name counts. */
typedef struct bindings {
    int n;
    const char *names[EXP_MAX_VARS * 2 + 1];
    double values[EXP_MAX_VARS * 2 + 1];
} bindings;

static bool bindings_lookup(void *context, const char *name, double *out)
{
    const bindings *b = context;
    for (int i = b->n - 1; i >= 0; i--) {
        if (strcmp(b->names[i], name) == 0) {
            *out = b->values[i];
            return true;
        }
    }
    return false;
}

static bool is_reserved(const char *name)
{
    static const char *const names[] = { "time", "tflops", "gbps", "served",
                                         "up",   "min",    "max",  NULL };
    for (int i = 0; names[i]; i++)
        if (strcmp(names[i], name) == 0)
            return true;
    return strncmp(name, "ran_", 4) == 0;
}

/* Adds one job of a part to a cell. */
static bool add_part(gac_reader *r, exp_plan *plan, const json_t *part, const char *path,
                     bindings *b, exp_cell *cell)
{
    gac_task_spec spec;
    double times = 1;
    if (json_object_get(part, "times") && !exp_value(r, part, "times", bindings_lookup, b, &times))
        return false;
    if (!(times >= 1 && times <= 1e6))
        return exp_fault(r, "times must be from 1 to 1000000");
    if (!exp_read_part(r, part, path, plan->dtype, bindings_lookup, b, &spec))
        return false;
    if (plan->n_uses >= EXP_MAX_USES)
        return exp_fault(r, "more than %d operator calls in all", EXP_MAX_USES);
    int32_t job = exp_plan_job(plan, &spec, path, r->err);
    if (job < 0) {
        r->status = r->err ? r->err->status : GAC_NO_RESOURCE;
        return false;
    }
    if (!gac_grow((void **)&plan->uses, plan->n_uses, &plan->cap_uses, sizeof *plan->uses))
        return gac_reader_no_memory(r);
    plan->uses[plan->n_uses++] = (exp_use){ job, times };
    cell->n_uses++;
    return true;
}

static bool add_loop(gac_reader *r, exp_plan *plan, const json_t *part, const char *path,
                     bindings *b, exp_cell *cell)
{
    const json_t *loop = json_object_get(part, "for");
    if (!loop)
        return add_part(r, plan, part, path, b, cell);
    const char *name;
    json_t *values;
    size_t before = gac_reader_enter(r, ".for");
    if (!exp_keys(r, loop, "name values") || !exp_text(r, loop, "name", true, &name) ||
        !exp_list(r, loop, "values", 1, 256, &values))
        return false;
    if (!exp_is_name(name) || is_reserved(name))
        return exp_fault(r, "name must be lower-case and not reserved");
    int at = b->n++;
    b->names[at] = name;
    for (size_t i = 0; i < json_array_size(values); i++) {
        if (!gac_reader_to_number(r, json_array_get(values, i), 1, EXP_MAX_VALUE, &b->values[at]))
            return false;
        gac_reader_leave(r, before);
        if (!add_part(r, plan, part, path, b, cell))
            return false;
        before = gac_reader_enter(r, ".for");
    }
    b->n--;
    gac_reader_leave(r, before);
    return true;
}

/* Finds the path of a variant under a stack. *out is NULL if the stack does not
 * run it. */
static bool read_path(gac_reader *r, const json_t *variant, gac_stack stack, const char **out)
{
    static const char *const paths[GAC_STACK_COUNT][6] = {
        { "auto", "library", "math", "flash", "padded", NULL },
        { "auto", "flash", "efficient", "cudnn", "math", NULL },
    };
    const char *key = gac_stack_name(stack);
    const json_t *value = json_object_get(variant, key);
    *out = value ? NULL : "auto";
    if (!value || json_is_null(value))
        return true;
    for (int i = 0; paths[stack][i]; i++)
        if (json_is_string(value) && strcmp(paths[stack][i], json_string_value(value)) == 0)
            *out = paths[stack][i];
    gac_reader_enter(r, ".%s", key);
    return *out || exp_fault(r, stack == GAC_STACK_NATIVE
                                    ? "must be auto, library, math, flash, padded or null"
                                    : "must be auto, flash, efficient, cudnn, math or null");
}

static bool set_variables(gac_reader *r, const json_t *variant, bindings *b)
{
    json_t *set = json_object_get(variant, "set");
    if (!set)
        return true;
    bindings now = *b; /* all are computed from the case's own values */
    size_t before = gac_reader_enter(r, ".set");
    if (!json_is_object(set) || json_object_size(set) > EXP_MAX_VARS)
        return exp_fault(r, "must be an object of at most %d entries", EXP_MAX_VARS);
    for (void *i = json_object_iter(set); i; i = json_object_iter_next(set, i)) {
        const char *name = json_object_iter_key(i);
        double value;
        if (!exp_is_name(name) || is_reserved(name))
            return exp_fault(r, "names must be lower-case and not reserved");
        if (!exp_value(r, set, name, bindings_lookup, &now, &value))
            return false;
        b->names[b->n] = name;
        b->values[b->n++] = value;
    }
    gac_reader_leave(r, before);
    return true;
}

static bool add_variant(gac_reader *r, exp_plan *plan, const exp_sweep *sweep,
                        const json_t *variant, bindings b)
{
    const char *path;
    size_t start = r->length;
    exp_cell cell = { .first_use = plan->n_uses };
    if (!read_path(r, variant, plan->stack, &path))
        return false;
    gac_reader_leave(r, start);
    if (!set_variables(r, variant, &b))
        return false;
    const json_t *owner = json_object_get(variant, "parts") ? variant : sweep->json;
    json_t *parts;
    if (!exp_list(r, owner, "parts", 1, 64, &parts))
        return false;
    for (size_t i = 0; path && i < json_array_size(parts); i++) {
        size_t before = gac_reader_enter(r, ".parts[%zu]", i);
        if (!add_loop(r, plan, json_array_get(parts, i), path, &b, &cell))
            return false;
        gac_reader_leave(r, before);
    }
    if (!gac_grow((void **)&plan->cells, plan->n_cells, &plan->cap_cells, sizeof *plan->cells))
        return gac_reader_no_memory(r);
    plan->cells[plan->n_cells++] = cell;
    return true;
}

static const char *make_label(exp_plan *plan, const exp_sweep *sweep, const double *values)
{
    char text[200] = "";
    size_t n = 0;
    for (int i = 0; i < sweep->n_vars && n + 1 < sizeof text; i++) {
        int k = snprintf(text + n, sizeof text - n, "%s%s=%.0f", i ? " " : "", sweep->vars[i],
                         values[i]);
        n += k > 0 ? (size_t)k : 0;
    }
    return gac_arena_strdup(&plan->arena, text);
}

/* Adds one point of a sweep, unless its conditions exclude it. */
static bool add_case(gac_reader *r, exp_plan *plan, int at, bool quick, const double *values,
                     const char *label)
{
    const exp_sweep *sweep = &plan->sweeps[at];
    bindings b = { .n = sweep->n_vars };
    for (int i = 0; i < sweep->n_vars; i++) {
        b.names[i] = sweep->vars[i];
        b.values[i] = values[i];
    }
    static const char *const conditions[] = { "where", "quick" };
    for (int i = 0; i < 1 + quick; i++) {
        double holds = 1;
        if (json_object_get(sweep->json, conditions[i]) &&
            !exp_value(r, sweep->json, conditions[i], bindings_lookup, &b, &holds))
            return false;
        if (holds == 0)
            return true;
    }
    if (plan->n_cases >= EXP_MAX_CASES)
        return exp_fault(r, "more than %d cases in all", EXP_MAX_CASES);
    if (!gac_grow((void **)&plan->cases, plan->n_cases, &plan->cap_cases, sizeof *plan->cases))
        return gac_reader_no_memory(r);
    exp_case *c = &plan->cases[plan->n_cases++];
    *c = (exp_case){ .sweep = at, .first_cell = plan->n_cells };
    memcpy(c->values, values, (size_t)sweep->n_vars * sizeof *values);
    c->label = label ? label : make_label(plan, sweep, values);
    if (!c->label)
        return gac_reader_no_memory(r);
    const json_t *variants = json_object_get(sweep->json, "variants");
    for (int i = 0; i < sweep->n_variants; i++) {
        size_t before = gac_reader_enter(r, ".variants[%d]", i);
        if (!add_variant(r, plan, sweep, json_array_get(variants, (size_t)i), b))
            return false;
        gac_reader_leave(r, before);
    }
    return true;
}

/* Reads the values of one variable: numbers, ranges {"from", "to", "step"}, or
 * a list of both. */
static bool read_values(gac_reader *r, const json_t *value, double **out, int32_t *n, int32_t *cap)
{
    double from, to, step = 1;
    if (json_is_array(value)) {
        for (size_t i = 0; i < json_array_size(value); i++) {
            const json_t *item = json_array_get(value, i);
            size_t before = gac_reader_enter(r, "[%zu]", i);
            if (json_is_array(item))
                return exp_fault(r, "must be a number or a range");
            if (!read_values(r, item, out, n, cap))
                return false;
            gac_reader_leave(r, before);
        }
        return *n > 0 || exp_fault(r, "must not be empty");
    }
    if (json_is_object(value)) {
        if (!exp_keys(r, value, "from to step") ||
            !gac_reader_to_number(r, json_object_get(value, "from"), 0, EXP_MAX_VALUE, &from) ||
            !gac_reader_to_number(r, json_object_get(value, "to"), from, EXP_MAX_VALUE, &to) ||
            (json_object_get(value, "step") &&
             !gac_reader_to_number(r, json_object_get(value, "step"), 1, EXP_MAX_VALUE, &step)))
            return false;
    } else {
        if (!gac_reader_to_number(r, value, 0, EXP_MAX_VALUE, &from))
            return false;
        to = from;
    }
    for (double at = from; at <= to; at += step) {
        if (*n >= EXP_MAX_CASES)
            return exp_fault(r, "more than %d values", EXP_MAX_CASES);
        if (!gac_grow((void **)out, *n, cap, sizeof **out))
            return gac_reader_no_memory(r);
        (*out)[(*n)++] = at;
    }
    return true;
}

/* Adds all combinations of the variables' values. The last variable changes
 * fastest. */
static bool expand_over(gac_reader *r, exp_plan *plan, int at, bool quick, json_t *over)
{
    exp_sweep *sweep = &plan->sweeps[at];
    double *lists[EXP_MAX_VARS] = { NULL };
    int32_t n[EXP_MAX_VARS] = { 0 }, cap[EXP_MAX_VARS] = { 0 };
    int64_t total = 1;
    bool ok = true;
    size_t before = gac_reader_enter(r, ".over");
    if (json_object_size(over) < 1 || json_object_size(over) > EXP_MAX_VARS)
        return exp_fault(r, "must be an object of 1 to %d variables", EXP_MAX_VARS);
    for (void *i = json_object_iter(over); i && ok; i = json_object_iter_next(over, i)) {
        const char *name = json_object_iter_key(i);
        int v = sweep->n_vars++;
        sweep->vars[v] = name;
        if (!exp_is_name(name) || is_reserved(name)) {
            ok = exp_fault(r, "variables must be lower-case and not reserved");
            break;
        }
        size_t here = gac_reader_enter(r, ".%s", name);
        ok = read_values(r, json_object_iter_value(i), &lists[v], &n[v], &cap[v]);
        if (ok)
            gac_reader_leave(r, here);
        if (ok && (!gac_mul_i64(total, n[v], &total) || total > 10 * EXP_MAX_CASES))
            ok = exp_fault(r, "more than %d combinations", 10 * EXP_MAX_CASES);
    }
    if (ok)
        gac_reader_leave(r, before);
    for (int64_t i = 0; ok && i < total; i++) {
        double values[EXP_MAX_VARS];
        int64_t rest = i;
        for (int v = sweep->n_vars - 1; v >= 0; v--) {
            values[v] = lists[v][rest % n[v]];
            rest /= n[v];
        }
        ok = add_case(r, plan, at, quick, values, NULL);
    }
    for (int v = 0; v < EXP_MAX_VARS; v++)
        free(lists[v]);
    return ok;
}

/* Adds the points of {"names": […], "values": [[…], …], "labels": […]}. */
static bool expand_rows(gac_reader *r, exp_plan *plan, int at, bool quick, const json_t *rows)
{
    exp_sweep *sweep = &plan->sweeps[at];
    json_t *names, *list, *labels;
    size_t before = gac_reader_enter(r, ".rows");
    if (!exp_keys(r, rows, "names values labels") ||
        !exp_list(r, rows, "names", 1, EXP_MAX_VARS, &names) ||
        !exp_list(r, rows, "values", 1, EXP_MAX_CASES, &list) ||
        !exp_list(r, rows, "labels", 0, EXP_MAX_CASES, &labels))
        return false;
    if (labels && json_array_size(labels) != json_array_size(list))
        return exp_fault(r, "there must be as many labels as values");
    sweep->n_vars = (int)json_array_size(names);
    for (int v = 0; v < sweep->n_vars; v++) {
        sweep->vars[v] = json_string_value(json_array_get(names, (size_t)v));
        if (!exp_is_name(sweep->vars[v]) || is_reserved(sweep->vars[v]))
            return exp_fault(r, "names must be lower-case and not reserved");
    }
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *row = json_array_get(list, i);
        double values[EXP_MAX_VARS];
        size_t here = gac_reader_enter(r, ".values[%zu]", i);
        if (!json_is_array(row) || json_array_size(row) != (size_t)sweep->n_vars)
            return exp_fault(r, "must be an array of %d numbers", sweep->n_vars);
        for (int v = 0; v < sweep->n_vars; v++)
            if (!gac_reader_to_number(r, json_array_get(row, (size_t)v), 0, EXP_MAX_VALUE,
                                      &values[v]))
                return false;
        const char *label = NULL;
        if (labels) {
            label = json_string_value(json_array_get(labels, i));
            if (!label || strlen(label) > 80 || !gac_reader_is_printable(label))
                return exp_fault(r, "needs a label of at most 80 printable bytes");
        }
        gac_reader_leave(r, before);
        if (!add_case(r, plan, at, quick, values, label))
            return false;
        gac_reader_enter(r, ".rows");
        gac_reader_leave(r, here);
    }
    gac_reader_leave(r, before);
    return true;
}

static bool read_variants(gac_reader *r, exp_sweep *sweep)
{
    json_t *list;
    if (!exp_list(r, sweep->json, "variants", 1, EXP_MAX_VARIANTS, &list))
        return false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *variant = json_array_get(list, i);
        size_t before = gac_reader_enter(r, ".variants[%zu]", i);
        const char *name, *note;
        if (!exp_keys(r, variant, "name native pytorch set parts note") ||
            !exp_text(r, variant, "name", true, &name) ||
            !exp_text(r, variant, "note", false, &note))
            return false;
        if (!exp_is_name(name))
            return exp_fault(r, "name must be lower-case letters, digits and _");
        for (int k = 0; k < sweep->n_variants; k++)
            if (strcmp(sweep->variants[k], name) == 0)
                return exp_fault(r, "a second variant of this name");
        sweep->variants[sweep->n_variants++] = name;
        gac_reader_leave(r, before);
    }
    return true;
}

static bool expand_sweep(gac_reader *r, exp_plan *plan, json_t *json, bool quick)
{
    int at = plan->n_sweeps++;
    exp_sweep *sweep = &plan->sweeps[at];
    const char *where, *note;
    *sweep = (exp_sweep){ .json = json };
    if (!exp_keys(r, json, "name note over rows where quick parts variants") ||
        !exp_text(r, json, "name", true, &sweep->name) ||
        !exp_text(r, json, "note", false, &note) || !exp_text(r, json, "where", false, &where) ||
        !exp_text(r, json, "quick", false, &where) || !read_variants(r, sweep))
        return false;
    for (int i = 0; i < at; i++)
        if (strcmp(plan->sweeps[i].name, sweep->name) == 0)
            return exp_fault(r, "a second sweep of this name");
    json_t *over = json_object_get(json, "over"), *rows = json_object_get(json, "rows");
    if (json_is_object(over) && !rows)
        return expand_over(r, plan, at, quick, over);
    if (json_is_object(rows) && !over)
        return expand_rows(r, plan, at, quick, rows);
    return exp_fault(r, "needs an object over, or an object rows");
}

gac_status exp_plan_build(const gac_experiment *experiment, gac_stack stack, bool quick,
                          exp_plan *plan, gac_error *err)
{
    gac_error local = GAC_ERROR_INIT;
    gac_reader r = GAC_READER_INIT(experiment->source, err ? err : &local);
    json_t *sweeps;
    const char *dtype = NULL;
    memset(plan, 0, sizeof *plan);
    plan->stack = stack;
    plan->quick = quick;
    plan->dtype = GAC_DTYPE_F16;
    plan->what = gac_arena_printf(&plan->arena, "%s, %s", experiment->id, gac_stack_name(stack));
    if (!plan->what)
        return gac_error_no_memory(err);
    gac_status status = gac_namemap_init(&plan->by_key, err);
    if (status != GAC_OK)
        return status;
    if (!exp_text(&r, experiment->spec, "dtype", false, &dtype) ||
        !exp_list(&r, experiment->spec, "sweeps", 1, EXP_MAX_SWEEPS, &sweeps))
        return r.status;
    if (dtype && strcmp(dtype, "BF16") == 0)
        plan->dtype = GAC_DTYPE_BF16;
    else if (dtype && strcmp(dtype, "F16") != 0)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: .dtype: must be F16 or BF16",
                             experiment->source);
    for (size_t i = 0; i < json_array_size(sweeps); i++) {
        size_t before = gac_reader_enter(&r, ".sweeps[%zu]", i);
        if (!expand_sweep(&r, plan, json_array_get(sweeps, i), quick))
            return r.status;
        gac_reader_leave(&r, before);
    }
    return plan->n_cases > 0 ? GAC_OK
                             : gac_error_set(err, GAC_BAD_INPUT, "%s: .sweeps: no case is left",
                                             experiment->source);
}

void exp_plan_dispose(exp_plan *plan)
{
    for (int32_t i = 0; i < plan->n_jobs; i++) {
        json_decref(plan->jobs[i].timing);
        json_decref(plan->jobs[i].kernels);
    }
    free(plan->cases);
    free(plan->cells);
    free(plan->uses);
    free(plan->jobs);
    gac_namemap_dispose(&plan->by_key);
    gac_arena_free(&plan->arena);
    memset(plan, 0, sizeof *plan);
}
