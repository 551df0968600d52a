#include "eval.h"

#include <math.h>

static int64_t memory_bytes(const gac_engine_info *info)
{
    return info->weight_bytes + info->cache_bytes + info->work_bytes;
}

static void print_shapes(const char *what, const shape_list *list, char between)
{
    char shape[48];
    for (int i = 0; i < list->n; i++) {
        const gac_pass_timing *t = &list->timings[i];
        snprintf(shape, sizeof shape, "%lld%c%lld", (long long)t->batch, between,
                 (long long)t->length);
        printf("%-13s %-10s %12.3f ms +/- %.1f %%  %12.1f tokens/s  (%d samples%s)\n", what, shape,
               t->timing.median_us / 1000, 100 * t->timing.spread_us / t->timing.median_us,
               t->tokens_per_s, t->timing.n_samples, t->timing.steady ? "" : ", not steady");
    }
}

void eval_print(const eval_command *o)
{
    const gac_engine_info *info = &o->info;
    const gac_perplexity *p = &o->perplexity;
    char all[32], weights[32], cache[32], work[32], q[300];
    printf("model         %s: %s, %s\n", gac_quote(q, sizeof q, o->engine.path),
           gac_model_family(o->engine.model), gac_model_compressor(o->engine.model));
    printf("device        %s, %s%s; loaded in %.2f s\n", o->engine.options.device,
           gac_dtype_name(info->dtype), o->engine.options.no_pad ? ", sizes as they are" : "",
           info->load_s);
    printf("memory        %s: weights %s, cache %s, work %s\n",
           cli_bytes(all, (uint64_t)memory_bytes(info)),
           cli_bytes(weights, (uint64_t)info->weight_bytes),
           cli_bytes(cache, (uint64_t)info->cache_bytes),
           cli_bytes(work, (uint64_t)info->work_bytes));
    if (o->text)
        printf("perplexity    PPL = %.6f +/- %.6f  (%lld tokens predicted, %lld windows of %lld)\n",
               p->value, p->value_error, (long long)p->n_tokens, (long long)p->n_windows,
               (long long)p->window);
    print_shapes("prefill", &o->prefill, 'x');
    print_shapes("decode", &o->decode, '@');
    if (o->piqa)
        printf(
            "piqa          acc %.4f +/- %.4f, acc_norm %.4f +/- %.4f  (%lld of %lld questions)\n",
            o->piqa_score.acc, o->piqa_score.acc_error, o->piqa_score.acc_norm,
            o->piqa_score.acc_norm_error, (long long)o->piqa_score.n_asked,
            (long long)o->piqa_score.n_questions);
}

/* Infinity, which a broken model may reach, becomes null, because JSON has
 * none. */
static json_t *real(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t *perplexity_json(const eval_command *o)
{
    const gac_perplexity *p = &o->perplexity;
    char q[300];
    return json_pack("{s:o, s:o, s:f, s:I, s:I, s:I, s:s}", "value", real(p->value), "stderr",
                     real(p->value_error), "mean_loss", p->mean_loss, "n_tokens",
                     (json_int_t)p->n_tokens, "n_windows", (json_int_t)p->n_windows, "window",
                     (json_int_t)p->window, "file", gac_quote(q, sizeof q, o->text));
}

static json_t *shapes_json(const shape_list *list, const char *key)
{
    json_t *all = json_array();
    for (int i = 0; i < list->n; i++)
        json_array_append_new(all, gac_pass_timing_json(&list->timings[i], key));
    return all;
}

json_t *eval_lm_eval_json(const eval_command *o)
{
    const gac_piqa *p = &o->piqa_score;
    char data[300], path[300];
    json_t *limit = o->limit > 0 ? json_integer((json_int_t)o->limit) : json_null();
    return json_pack(
        "{s:{s:{s:s, s:f, s:f, s:f, s:f}}, s:{s:[]}, s:{s:{s:s, s:s, s:s, s:s, s:s, s:s, s:s, "
        "s:i, s:[{s:s, s:s, s:b}, {s:s, s:s, s:b}], s:{s:f}}}, s:{s:f}, s:{s:i}, s:{s:{s:b, s:b}}, "
        "s:{s:{s:I, s:I}}, s:{s:s, s:s, s:s, s:o}}",
        "results", "piqa", "alias", "piqa", "acc,none", p->acc, "acc_stderr,none", p->acc_error,
        "acc_norm,none", p->acc_norm, "acc_norm_stderr,none", p->acc_norm_error, "group_subtasks",
        "piqa", "configs", "piqa", "task", "piqa", "dataset_path",
        gac_quote(data, sizeof data, o->task_data), "output_type", "multiple_choice", "doc_to_text",
        "Question: {{goal}}\nAnswer:", "doc_to_target", "label", "doc_to_choice",
        "{{[sol1, sol2]}}", "target_delimiter", " ", "num_fewshot", 0, "metric_list", "metric",
        "acc", "aggregation", "mean", "higher_is_better", 1, "metric", "acc_norm", "aggregation",
        "mean", "higher_is_better", 1, "metadata", "version", 1.0, "versions", "piqa", 1.0,
        "n-shot", "piqa", 0, "higher_is_better", "piqa", "acc", 1, "acc_norm", 1, "n-samples",
        "piqa", "original", (json_int_t)p->n_questions, "effective", (json_int_t)p->n_asked,
        "config", "model", "gac", "model_args", gac_quote(path, sizeof path, o->engine.path),
        "device", o->engine.options.device, "limit", limit);
}

json_t *eval_json(cli *c, const eval_command *o)
{
    const gac_engine_info *info = &o->info;
    char q[300];
    json_t *result = gac_json_result("gac.eval/1", c->argc, c->argv);
    json_t *body = json_pack(
        "{s:{s:s, s:s, s:s, s:I}, s:s, s:s, s:b, s:f, s:I, s:{s:I, s:I, s:I}}", "checkpoint",
        "path", gac_quote(q, sizeof q, o->engine.path), "family", gac_model_family(o->engine.model),
        "compressor", gac_model_compressor(o->engine.model), "n_params",
        (json_int_t)gac_checkpoint_n_params(o->engine.checkpoint), "device",
        o->engine.options.device, "dtype", gac_dtype_name(info->dtype), "no_pad",
        o->engine.options.no_pad, "load_s", info->load_s, "memory_bytes",
        (json_int_t)memory_bytes(info), "memory", "weights", (json_int_t)info->weight_bytes,
        "cache", (json_int_t)info->cache_bytes, "work", (json_int_t)info->work_bytes);
    if (body && o->text)
        json_object_set_new(body, "perplexity", perplexity_json(o));
    if (body && o->prefill.n > 0)
        json_object_set_new(body, "prefill", shapes_json(&o->prefill, "length"));
    if (body && o->decode.n > 0)
        json_object_set_new(body, "decode", shapes_json(&o->decode, "context"));
    if (body && o->piqa)
        json_object_set_new(body, "tasks", eval_lm_eval_json(o));
    if (!result || !body || json_object_update(result, body) != 0) {
        json_decref(result);
        result = NULL;
    }
    json_decref(body);
    return result;
}
