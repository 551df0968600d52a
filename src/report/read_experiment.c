/* gac.experiment/1: claims beside what was published, and a figure for each sweep. */
#include <string.h>

#include "report/report_internal.h"

enum {
    MAX_SWEEPS = 8,
    MAX_VARIABLES = 8,
    MAX_VARIANTS = 16,
    MAX_VALUES = 32, /* distinct values of a variable that are told apart */
    MAX_CASES = 20000,
    CURVE = 8 /* from so many values on, a variable is an axis */
};

typedef struct variable {
    const char *name;
    double values[MAX_VALUES];
    int n_values;
} variable;

typedef struct sweep {
    const char *name;
    variable variables[MAX_VARIABLES];
    const char *variants[MAX_VARIANTS];
    int n_variables, n_variants, n_cases;
    double least_us, most_us; /* of what was measured or published */
    bool published;
} sweep;

/* How a sweep is drawn. */
typedef struct drawing {
    const sweep *s;
    const variable *axis;  /* NULL: by the number of the case */
    const variable *split; /* one figure for each of its values; or NULL */
    double value;          /* of split */
    double unit_us;
    const char *published; /* the name of its series */
    rep_figure *figure;
    int n_drawn;
    bool second; /* bars are added first, then the marks over them */
} drawing;

static const char *format_value(rep_reader *in, const char *as, double value)
{
    if (isfinite(value) && as && strcmp(as, "percent") == 0)
        return rep_printf(in->report, "%+.2f %%", value);
    return rep_number(in->report, value);
}

static bool read_claims(rep_reader *in, const char *id, const char *stack, const char *verdict)
{
    static const char *const counted[REP_N_VERDICTS] = { "contradicted", "weaker", "stronger",
                                                         "reproduced", "ambiguous" };
    const json_t *claims;
    double counts[REP_N_VERDICTS] = { 0 };
    gac_report *report = in->report;
    if (!rep_take_array(in, in->root, "claims", 1000, &claims))
        return false;
    rep_table *table =
        rep_table_add(report, in->section, "Claims", "claim|#published|#here|!verdict|why");
    if (table)
        table->prose = true;
    for (size_t i = 0; i < json_array_size(claims); i++) {
        const char *says, *as, *word, *reason;
        double published, ours;
        const json_t *claim = rep_entry(in, claims, i, "claims");
        if (!claim || !rep_need_text(in, claim, "says", &says) ||
            !rep_take_text(in, claim, "as", &as) || !rep_need_text(in, claim, "verdict", &word) ||
            !rep_take_text(in, claim, "reason", &reason) ||
            !rep_take_number(in, claim, "published", &published) ||
            !rep_take_number(in, claim, "ours", &ours))
            return false;
        for (int k = 0; k < REP_N_VERDICTS; k++)
            counts[k] += strcmp(counted[k], word) == 0;
        REP_ROW(report, table, says, format_value(in, as, published), format_value(in, as, ours),
                word, rep_or(reason, ""));
    }
    rep_add_verdicts(in, id, stack, verdict, counts);
    return true;
}

static bool read_checks(rep_reader *in)
{
    const json_t *checks;
    gac_report *report = in->report;
    if (!rep_take_array(in, in->root, "checks", 1000, &checks))
        return false;
    rep_table *table = json_array_size(checks) > 0
                           ? rep_table_add(report, in->section, "Checks of outputs",
                                           "check|#head|#stored|#difference|#allowed|!holds")
                           : NULL;
    if (table)
        table->prose = true;
    for (size_t i = 0; i < json_array_size(checks); i++) {
        const char *says;
        double head, stored, relative, tolerance;
        bool holds;
        const json_t *check = rep_entry(in, checks, i, "checks");
        if (!check || !rep_take_text(in, check, "says", &says) ||
            !rep_take_number(in, check, "head", &head) ||
            !rep_take_number(in, check, "stored", &stored) ||
            !rep_take_number(in, check, "relative", &relative) ||
            !rep_take_number(in, check, "tolerance", &tolerance) ||
            !rep_take_flag(in, check, "holds", &holds))
            return false;
        REP_ROW(report, table, rep_or(says, ""), rep_number(report, head),
                rep_number(report, stored), rep_number(report, relative),
                rep_number(report, tolerance), holds ? "yes" : "no");
    }
    return true;
}

/* Notes a value of a variable of the sweep. */
static bool note_variables(rep_reader *in, sweep *s, const json_t *one)
{
    const char *key;
    json_t *value, *all = (json_t *)(uintptr_t)json_object_get(one, "variables");
    json_object_foreach(all, key, value) {
        int i = 0, k = 0;
        if (!json_is_number(value))
            return gac_reader_fault_at(&in->r, "cases.variables", "must be numbers");
        while (i < s->n_variables && strcmp(s->variables[i].name, key) != 0)
            i++;
        if (i == MAX_VARIABLES)
            continue;
        if (i == s->n_variables)
            s->variables[s->n_variables++].name = key;
        variable *v = &s->variables[i];
        while (k < v->n_values && v->values[k] != json_number_value(value))
            k++;
        if (k == v->n_values && k < MAX_VALUES)
            v->values[v->n_values++] = json_number_value(value);
    }
    return true;
}

static void note_time(sweep *s, double us)
{
    if (!(us > 0))
        return;
    s->least_us = s->least_us > 0 ? fmin(s->least_us, us) : us;
    s->most_us = fmax(s->most_us, us);
}

/* What one variant of a case took. time_us and published_us are NAN if there is none. */
typedef struct cell {
    const char *variant, *state, *families, *reason;
    double time_us, published_us;
} cell;

static bool read_cell(rep_reader *in, const char *variant, const json_t *object, cell *out)
{
    char q[80];
    double published_ms;
    *out = (cell){ .variant = rep_printf(in->report, "%s", gac_quote(q, sizeof q, variant)) };
    if (!json_is_object(object))
        return gac_reader_fault_at(&in->r, "cases.variants", "must have objects");
    if (!rep_need_text(in, object, "state", &out->state) ||
        !rep_take_text(in, object, "families", &out->families) ||
        !rep_take_text(in, object, "reason", &out->reason) ||
        !rep_take_number(in, object, "time_us", &out->time_us) ||
        !rep_take_number(in, object, "published_ms", &published_ms))
        return false;
    out->published_us = published_ms * 1000;
    return true;
}

static bool note_variants(rep_reader *in, sweep *s, const json_t *one)
{
    const char *key;
    json_t *value, *all = (json_t *)(uintptr_t)json_object_get(one, "variants");
    json_object_foreach(all, key, value) {
        cell c;
        int i = 0;
        if (!read_cell(in, key, value, &c))
            return false;
        note_time(s, c.time_us);
        note_time(s, c.published_us);
        s->published = s->published || isfinite(c.published_us);
        while (i < s->n_variants && strcmp(s->variants[i], c.variant) != 0)
            i++;
        if (i == s->n_variants && i < MAX_VARIANTS && isfinite(c.time_us))
            s->variants[s->n_variants++] = c.variant;
    }
    return true;
}

/* Lists the sweeps, their variables and variants. */
static bool list_sweeps(rep_reader *in, const json_t *cases, sweep *sweeps, int *n_sweeps)
{
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const char *name;
        const json_t *variables, *variants, *one = rep_entry(in, cases, i, "cases");
        int k = 0;
        if (!one || !rep_need_text(in, one, "sweep", &name) ||
            !rep_take_object(in, one, "variables", &variables) ||
            !rep_take_object(in, one, "variants", &variants))
            return false;
        while (k < *n_sweeps && strcmp(sweeps[k].name, name) != 0)
            k++;
        if (k == MAX_SWEEPS)
            continue;
        if (k == *n_sweeps)
            sweeps[(*n_sweeps)++].name = name;
        sweeps[k].n_cases++;
        if (!note_variables(in, &sweeps[k], one) || !note_variants(in, &sweeps[k], one))
            return false;
    }
    return true;
}

static rep_colour family_colour(const char *family, int n)
{
    static const struct {
        const char *name;
        rep_colour colour;
    } known[] = { { "cudnn-flash", REP_BLUE },
                  { "nvjet", REP_BLUE },
                  { "gac-flash", REP_VERMILLION },
                  { "cutlass-align1", REP_VERMILLION },
                  { "cutlass-align2", REP_ORANGE },
                  { "fa2 + copy + fill", REP_VERMILLION },
                  { "fa2 + copy", REP_ORANGE },
                  { "mem-efficient", REP_GREEN },
                  { "gac-pad", REP_PURPLE },
                  { "copy + fill", REP_PURPLE },
                  { "fa2", REP_SKY } };
    static const rep_colour rest[] = { REP_GREEN, REP_PURPLE, REP_SKY, REP_BROWN };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(known[i].name, family) == 0)
            return known[i].colour;
    return rest[n % 4];
}

static int variant_number(const sweep *s, const char *name)
{
    for (int i = 0; i < s->n_variants; i++)
        if (strcmp(s->variants[i], name) == 0)
            return i;
    return -1;
}

/* Adds a case of a curve: a dot for each variant, coloured by the family of its kernels. */
static void add_dots(rep_reader *in, drawing *d, double x, const char *label, const cell *c)
{
    gac_report *report = in->report;
    const char *family = rep_or(c->families, "unknown kernel");
    int v = variant_number(d->s, c->variant);
    if (v >= 0 && isfinite(c->time_us)) {
        const char *name =
            d->s->n_variants > 1 ? rep_printf(report, "%s: %s", c->variant, family) : family;
        rep_series *series =
            rep_series_get(report, d->figure, name,
                           family_colour(family, d->figure ? d->figure->n_series : 0), REP_DOTS);
        if (series)
            series->mark = v;
        rep_point_add(report, d->figure, series, x, c->time_us / d->unit_us, label);
    }
    if (v <= 0 && isfinite(c->published_us)) /* other variants are the same calls */
        rep_point_add(report, d->figure,
                      rep_series_get(report, d->figure, d->published, REP_GREY, REP_LINES), x,
                      c->published_us / d->unit_us, label);
}

static void add_bar(rep_reader *in, drawing *d, const char *label, const cell *c)
{
    static const rep_colour colours[] = { REP_VERMILLION, REP_BLUE, REP_GREEN, REP_ORANGE,
                                          REP_PURPLE,     REP_SKY,  REP_BROWN };
    gac_report *report = in->report;
    int v = variant_number(d->s, c->variant);
    bool one = d->s->n_cases == 1;
    if (!isfinite(c->time_us) && !isfinite(c->published_us))
        return;
    int x = rep_category(d->figure, one ? c->variant : label);
    if (x < 0)
        return;
    rep_series *bars = rep_series_get(report, d->figure, one ? "measured here" : c->variant,
                                      one ? REP_BLUE : colours[(v + 7) % 7], REP_DOTS);
    if (!d->second) {
        rep_point_add(report, d->figure, bars, x, c->time_us / d->unit_us, c->families);
    } else if (isfinite(c->published_us)) {
        rep_series *marks = rep_series_get(report, d->figure, d->published, REP_INK, REP_OVER);
        rep_point_add(report, d->figure, marks, x, c->published_us / d->unit_us, c->variant);
        if (marks && marks->last)
            marks->last->over = bars;
    }
}

/* Adds the cases of the sweep that belong into this figure. */
static bool add_cases(rep_reader *in, drawing *d, const json_t *cases)
{
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const json_t *variables = json_object_get(one, "variables");
        const char *name = json_string_value(json_object_get(one, "sweep")), *label, *key;
        char q[80];
        json_t *value, *variants = (json_t *)(uintptr_t)json_object_get(one, "variants");
        if (strcmp(gac_quote(q, sizeof q, name), d->s->name) != 0 ||
            (d->split && gac_json_number_or(variables, d->split->name, NAN) != d->value))
            continue;
        if (!rep_take_text(in, one, "label", &label))
            return false;
        double x = d->axis ? gac_json_number_or(variables, d->axis->name, NAN) : d->n_drawn;
        d->n_drawn++;
        json_object_foreach(variants, key, value) {
            cell c;
            if (!read_cell(in, key, value, &c))
                return false;
            if (d->figure && d->figure->kind == REP_BARS)
                add_bar(in, d, rep_or(label, "case"), &c);
            else
                add_dots(in, d, x, label, &c);
        }
    }
    return true;
}

/* Names the axis of a variable. */
static const char *axis_title(rep_reader *in, const variable *axis)
{
    char q[40];
    if (!axis)
        return "case";
    const char *name = axis->name;
    if (strcmp(name, "d") == 0)
        return "head size d";
    if (strcmp(name, "n") == 0)
        return "outputs n";
    return strcmp(name, "k") == 0 ? "inputs k"
                                  : rep_printf(in->report, "%s", gac_quote(q, sizeof q, name));
}

/* Says what the first call of a sweep is: results name calls "sdpa …", "gemm …". */
static const char *kind_of_time(rep_reader *in, const json_t *cases, const sweep *s)
{
    const json_t *calls = json_object_get(in->root, "calls");
    char q[80];
    for (size_t i = 0; i < json_array_size(cases); i++) {
        const json_t *one = json_array_get(cases, i);
        const char *name = json_string_value(json_object_get(one, "sweep")), *key;
        json_t *value, *variants = (json_t *)(uintptr_t)json_object_get(one, "variants");
        if (strcmp(gac_quote(q, sizeof q, name), s->name) != 0)
            continue;
        json_object_foreach(variants, key, value) {
            const json_t *first = json_array_get(json_object_get(value, "calls"), 0);
            const json_t *number = json_object_get(first, "call");
            if (!json_is_integer(number) || json_integer_value(number) < 0)
                continue;
            const json_t *call = json_array_get(calls, (size_t)json_integer_value(number));
            const char *text = json_string_value(json_object_get(call, "call"));
            if (text && strncmp(text, "sdpa ", 5) == 0)
                return "Attention time";
            if (text && strncmp(text, "gemm ", 5) == 0)
                return "GEMM time";
        }
    }
    return "Time";
}

static bool draw_one(rep_reader *in, const json_t *cases, const char *id, const char *stack,
                     drawing *d)
{
    gac_report *report = in->report;
    const sweep *s = d->s;
    bool bars = !d->axis && s->n_cases * s->n_variants <= 48 && s->n_cases <= 12;
    const bool ms = s->most_us >= 1000;
    char part[60] = "", q[40];
    d->unit_us = ms ? 1000 : 1;
    d->n_drawn = 0;
    if (d->split)
        snprintf(part, sizeof part, ", %s = %g", gac_quote(q, sizeof q, d->split->name), d->value);
    const char *axis = axis_title(in, d->axis);
    d->figure = rep_figure_add(
        report, in->section,
        &(rep_figure){
            .name = rep_printf(report, "%s-%s-%s%s", id, stack, s->name, part),
            .title = rep_printf(report, "%s against %s (%s, %s%s)", kind_of_time(in, cases, s),
                                axis, id, s->name, part),
            .caption = d->axis ? "Each colour is a family of kernels. Where the colour changes, "
                                 "the library has changed to another kernel, and the time jumps."
                       : !s->published
                           ? "Each colour is one way to run the same work. Shorter is faster."
                           : "Each colour is one way to run the same work. Shorter is faster. "
                             "Diamonds are the published times, of another GPU.",
            .x_title = axis,
            .y_title = ms ? "time, ms" : "time, µs",
            .kind = bars ? REP_BARS : REP_SCATTER,
            .log_y = s->most_us > 20 * s->least_us });
    d->second = false;
    if (!add_cases(in, d, cases) || !bars)
        return !in->r.status;
    d->second = true;
    return add_cases(in, d, cases);
}

static bool draw_sweep(rep_reader *in, const json_t *cases, const char *id, const char *stack,
                       const char *published, const sweep *s)
{
    drawing d = { .s = s, .published = published };
    if (s->n_variants == 0)
        return true; /* arithmetic: nothing was run */
    for (int i = 0; i < s->n_variables; i++)
        if (s->variables[i].n_values >= CURVE &&
            (!d.axis || s->variables[i].n_values > d.axis->n_values))
            d.axis = &s->variables[i];
    for (int i = 0; i < s->n_variables && d.axis; i++)
        if (!d.split && s->variables[i].n_values > 1 && s->variables[i].n_values <= 4)
            d.split = &s->variables[i];
    for (int i = 0; i < (d.split ? d.split->n_values : 1); i++) {
        d.value = d.split ? d.split->values[i] : 0;
        if (!draw_one(in, cases, id, stack, &d))
            return false;
    }
    return true;
}

static bool read_head(rep_reader *in, const char **id, const char **stack)
{
    const json_t *summary, *notes;
    const char *title, *question, *why, *dtype, *source, *verdict;
    bool quick;
    const json_t *root = in->root;
    gac_report *report = in->report;
    rep_section *section = in->section;
    /* Results of older versions say "lens" for "stack". */
    if (!rep_need_text(in, root, "id", id) || !rep_take_text(in, root, "title", &title) ||
        !rep_take_text(in, root, json_object_get(root, "stack") ? "stack" : "lens", stack) ||
        !rep_take_text(in, root, "question", &question) || !rep_take_text(in, root, "why", &why) ||
        !rep_take_text(in, root, "dtype", &dtype) ||
        !rep_take_text(in, root, "published_source", &source) ||
        !rep_take_flag(in, root, "quick", &quick) ||
        !rep_take_object(in, root, "summary", &summary) ||
        !rep_take_text(in, summary, "verdict", &verdict) ||
        !rep_take_array(in, root, "notes", 50, &notes))
        return false;
    *stack = rep_or(*stack, "native");
    section->title =
        rep_printf(report, "%s: %s (%s stack)", *id, rep_or(title, "experiment"), *stack);
    section->lead = rep_printf(report, "%s %s", rep_or(question, ""), rep_or(why, ""));
    rep_fact_add(report, section, "summary", verdict);
    rep_fact_add(report, section, "dtype", dtype);
    if (source)
        rep_note_add(report, section, rep_printf(report, "Published figures: %s", source));
    if (quick)
        rep_fact_add(report, section, "run", "quick: fewer cases");
    for (size_t i = 0; i < json_array_size(notes); i++) {
        char q[400];
        const char *note = json_string_value(json_array_get(notes, i));
        rep_note_add(report, section,
                     note ? rep_printf(report, "%s", gac_quote(q, sizeof q, note)) : NULL);
    }
    return read_claims(in, *id, *stack, rep_or(verdict, ""));
}

bool rep_read_experiment(rep_reader *in)
{
    const json_t *cases;
    const char *id, *stack, *setup;
    sweep sweeps[MAX_SWEEPS] = { 0 };
    int n_sweeps = 0;
    if (!read_head(in, &id, &stack) || !rep_need_array(in, in->root, "cases", MAX_CASES, &cases) ||
        !list_sweeps(in, cases, sweeps, &n_sweeps) ||
        !rep_take_text(in, in->root, "published_setup", &setup))
        return false;
    /* The setup begins with the name of the GPU. */
    const char *gpu = setup && strncmp(setup, "NVIDIA ", 7) == 0 ? setup + 7 : setup;
    const char *published =
        gpu ? rep_printf(in->report, "published, %.*s", (int)strcspn(gpu, ",-"), gpu) : "published";
    if (setup)
        rep_note_add(in->report, in->section,
                     rep_printf(in->report, "Setup of the published figures: %s", setup));
    for (int i = 0; i < n_sweeps; i++)
        if (!draw_sweep(in, cases, id, stack, published, &sweeps[i]))
            return false;
    return read_checks(in);
}
