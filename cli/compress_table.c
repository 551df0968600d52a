#include "compress_table.h"

#include <math.h>
#include <string.h>

void compress_table_clear(compress_measured *measured)
{
    for (int k = 0; k < N_MEASURED; k++) {
        measured[k].perplexity = NAN;
        for (int i = 0; i < GAC_MAX_PHASES; i++)
            measured[k].phase_ms[i] = NAN;
    }
}

/* Lists the phases that an engine is to time: those that fit into the model's context. */
static void list_work(const gac_workload *workload, int64_t context, gac_pass_shape *prefill,
                      gac_pass_shape *decode, gac_engine_work *work)
{
    for (int i = 0; i < workload->n_phases; i++) {
        const gac_phase *phase = &workload->phases[i];
        const gac_pass_shape shape = { phase->batch, phase->length };
        if (phase->length > context)
            continue;
        if (phase->decode)
            decode[work->n_decode++] = shape;
        else
            prefill[work->n_prefill++] = shape;
    }
    work->prefill = prefill;
    work->decode = decode;
}

static gac_status time_phases(cli *c, gac_engine *engine, const gac_workload *workload,
                              int64_t context, compress_measured *out)
{
    gac_status status = GAC_OK;
    for (int i = 0; i < workload->n_phases && status == GAC_OK; i++) {
        const gac_phase *phase = &workload->phases[i];
        gac_pass_timing t;
        if (phase->length > context)
            continue;
        status = phase->decode
                     ? gac_engine_time_decode(engine, phase->batch, phase->length, GAC_DECODE_CHUNK,
                                              NULL, c->progress, &t, &c->error)
                     : gac_engine_time_prefill(engine, phase->batch, phase->length, NULL,
                                               c->progress, &t, &c->error);
        if (status == GAC_OK)
            out->phase_ms[i] = t.timing.median_us / 1000;
    }
    return status;
}

gac_status compress_table_measure(cli *c, engine_args *model, const gac_workload *workload,
                                  const compress_test *test, compress_measured *out)
{
    gac_pass_shape prefill[GAC_MAX_PHASES], decode[GAC_MAX_PHASES];
    gac_engine_work work = GAC_ENGINE_WORK_INIT;
    const bool times = strncmp(model->options.device, "cuda", 4) == 0;
    int64_t context = 0;
    if (!times && !test->ids)
        return GAC_OK;
    gac_status status = gac_engine_model_context(model->model, &context, &c->error);
    work.perplexity = test->ids != NULL;
    if (times)
        list_work(workload, context, prefill, decode, &work);
    if (status == GAC_OK)
        status = gac_engine_size(model->model, &work, &model->options, &c->error);
    if (status == GAC_OK)
        status = engine_args_start(c, model);
    if (status == GAC_OK && test->ids) {
        gac_perplexity_options how = GAC_PERPLEXITY_OPTIONS_INIT;
        gac_perplexity found;
        how.progress = c->progress;
        status =
            gac_engine_perplexity(model->engine, test->ids, test->n_ids, &how, &found, &c->error);
        if (status == GAC_OK)
            out->perplexity = found.value;
    }
    if (status == GAC_OK && times)
        status = time_phases(c, model->engine, workload, context, out);
    gac_engine_close(model->engine);
    model->engine = NULL;
    return status;
}

/* Which measurement belongs to a row; NULL: none. */
static const compress_measured *measured_of(const compress_measured *measured, int row)
{
    return row == GAC_COMPRESS_ROW_DENSE    ? &measured[MEASURED_DENSE]
           : row == GAC_COMPRESS_ROW_RESULT ? &measured[MEASURED_RESULT]
                                            : NULL;
}

static bool any_time(const compress_measured *measured)
{
    bool any = false;
    for (int i = 0; i < GAC_MAX_PHASES; i++)
        any = any || isfinite(measured[MEASURED_DENSE].phase_ms[i]);
    return any;
}

/* The name of a row in print. */
static const char *label(int row, const gac_compress_options *o, char buffer[32])
{
    static const char *const labels[] = { "dense", "as compressed", "rounded", "gac" };
    if (row != GAC_COMPRESS_ROW_RESULT)
        return labels[row];
    if (o->align == GAC_ALIGN_CONTRACT)
        return o->method == GAC_COMPRESS_GAC ? labels[row] : "aligned";
    if (o->align == GAC_ALIGN_NONE)
        return labels[GAC_COMPRESS_ROW_UNALIGNED];
    snprintf(buffer, 32, "round:%lld", (long long)o->multiple);
    return buffer;
}

static void print_number(double value)
{
    if (isfinite(value))
        printf(" %11.3f", value);
    else
        printf(" %11s", "-");
}

static void print_heads(const gac_workload *workload, const char *what)
{
    char head[48];
    for (int i = 0; i < workload->n_phases; i++) {
        const gac_phase *phase = &workload->phases[i];
        snprintf(head, sizeof head, "%lld%c%lld", (long long)phase->batch,
                 phase->decode ? '@' : 'x', (long long)phase->length);
        printf(" %11s", what ? (i ? "" : what) : head);
    }
}

void compress_table_print(const gac_compress_result *r, const gac_compress_options *o,
                          const compress_measured *measured)
{
    const gac_workload *workload = o->workload;
    const bool times = any_time(measured), test = isfinite(measured[MEASURED_DENSE].perplexity);
    char name[32], count[32], bytes[32];
    if (!r->rows[GAC_COMPRESS_ROW_DENSE].n_params)
        return;
    printf("\ntimes in ms, predicted for %s%s%s\n", gac_contract_gpu(o->contract),
           times ? ", measured on " : "", times ? o->device : "");
    printf("%-14s %13s %10s %8s", "", "", "", "");
    print_heads(workload, "predicted");
    if (times)
        print_heads(workload, "measured");
    printf("\n%-14s %13s %10s %8s", "", "parameters", "bytes", "aligned");
    print_heads(workload, NULL);
    if (times)
        print_heads(workload, NULL);
    printf("%s\n", test ? "  perplexity" : "");
    for (int i = 0; i < GAC_COMPRESS_ROW_COUNT; i++) {
        const gac_compress_row *row = &r->rows[i];
        const compress_measured *m = measured_of(measured, i);
        if (!row->n_params)
            continue;
        printf("%-14s %13s %10s %6.1f %%", label(i, o, name), cli_count(count, row->n_params),
               cli_bytes(bytes, (uint64_t)row->size_bytes), row->aligned_pct);
        for (int p = 0; p < workload->n_phases; p++)
            print_number(row->phase_ms[p]);
        for (int p = 0; p < workload->n_phases && times; p++)
            print_number(m ? m->phase_ms[p] : NAN);
        if (test)
            print_number(m ? m->perplexity : NAN);
        printf("\n");
    }
}

void compress_table_add(json_t *table, const compress_measured *measured)
{
    size_t i, p;
    json_t *row, *phase;
    json_array_foreach(table, i, row) {
        const char *name = json_string_value(json_object_get(row, "row"));
        const compress_measured *m = NULL;
        for (int k = 0; name && k < GAC_COMPRESS_ROW_COUNT; k++)
            if (strcmp(name, gac_compress_row_name((gac_compress_row_kind)k)) == 0)
                m = measured_of(measured, k);
        json_object_set_new(row, "perplexity", cli_number_or_null(m ? m->perplexity : NAN));
        json_array_foreach(json_object_get(row, "phases"), p, phase)
            json_object_set_new(phase, "measured_ms", cli_number_or_null(m ? m->phase_ms[p] : NAN));
    }
}
