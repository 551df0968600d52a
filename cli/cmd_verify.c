#include "engine_args.h"
#include "plan_args.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct verify_command {
    bool forward;
    const char *tokens;
    gac_compare_options compare;
    int64_t seed;

    gac_verification v; /* results */
    gac_logit_comparison logits;
    bool promised; /* the logits must have the same bits */
    bool ok;
} verify_command;

static const verify_command initial = { .compare = GAC_COMPARE_OPTIONS_INIT, .seed = 1 };

#define AT(member) .at = offsetof(verify_command, member)
static const opt options[] = {
    { "forward", 0, NULL,
      "also run both and compare every logit: the same bits, where the repair is exact and the "
      "device is reference",
      OPT_FLAG, AT(forward) },
    { "tokens", 0, "FILE",
      "compare over the beginning of this text, by ORIGINAL's tokenizer (default: random tokens)",
      OPT_TEXT, AT(tokens) },
    { "n-tokens", 0, "N", "number of tokens (default 64)", OPT_INT, AT(compare.n_ids), .least = 1 },
    { "seed", 0, "S", "seed of the random tokens (default 1)", OPT_INT, AT(seed) },
    { "device", 0, "D",
      "where both run: reference (the default), cpu, cuda or cuda:N; the others "
      "report how close they are",
      OPT_CALL, AT(compare.engine.device), .take = cli_take_device },
    { 0 }
};

static json_t *forward_json(const verify_command *o)
{
    const gac_logit_comparison *l = &o->logits;
    if (!o->forward)
        return json_pack("{s:b}", "ran", 0);
    json_t *json = json_pack("{s:b, s:b, s:b, s:b, s:s, s:s, s:I, s:I}", "ran", 1, "bit_exact",
                             l->bit_exact, "promised", o->promised, "finite", l->finite, "device",
                             o->compare.engine.device, "dtype", gac_dtype_name(l->dtype),
                             "n_tokens", (json_int_t)l->n_ids, "vocab", (json_int_t)l->vocab);
    json_object_set_new(json, "max_abs_diff", l->finite ? json_real(l->max_abs_diff) : json_null());
    json_object_set_new(json, "relative",
                        l->finite && isfinite(l->relative) ? json_real(l->relative) : json_null());
    json_object_set_new(json, "position", json_integer((json_int_t)l->position));
    json_object_set_new(json, "token", json_integer((json_int_t)l->token));
    return json;
}

static void print_forward(const verify_command *o)
{
    const gac_logit_comparison *l = &o->logits;
    printf("forward       %lld tokens on %s, %s: ", (long long)l->n_ids, o->compare.engine.device,
           gac_dtype_name(l->dtype));
    if (!l->finite)
        printf("a logit is NOT FINITE, at position %lld token %lld\n", (long long)l->position,
               (long long)l->token);
    else if (l->bit_exact)
        printf("bit-exact, all %lld logits of each\n", (long long)l->vocab);
    else
        printf("%s, largest difference %.3g at position %lld token %lld, relative %.3g\n",
               o->promised ? "NOT bit-exact" : "not bit-exact", l->max_abs_diff,
               (long long)l->position, (long long)l->token, l->relative);
    if (!o->promised)
        printf("              the same bits are not promised: %s\n",
               o->v.rescaled ? "some tensors were scaled"
                             : "this device sums in an order of its own");
}

static gac_status report_json(cli *c, const verify_command *o)
{
    const gac_verification *v = &o->v;
    json_t *result = gac_json_result("gac.verify/1", c->argc, c->argv);
    json_t *body =
        json_pack("{s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:b, s:i, s:i, s:o, s:b, s:s}",
                  "lossless", v->lossless, "pads_zero", v->pads_zero, "config_ok", v->config_ok,
                  "same_tensors", v->same_tensors, "same_files", v->same_files, "has_record",
                  v->has_record, "record_ok", v->record_ok, "old_record", v->old_record, "rescaled",
                  v->rescaled, "n_tensors", v->n_tensors, "n_dims_changed", v->n_dims_changed,
                  "forward", forward_json(o), "ok", o->ok, "difference", v->difference);
    json_object_update(result, body);
    json_decref(body);
    gac_status status = cli_print_result(c, result);
    json_decref(result);
    return status;
}

static void print_check(const char *label, bool holds, const char *text)
{
    colour shade = holds ? COLOUR_GOOD : COLOUR_BAD;
    printf("%-13s %s%s%s\n", label, colour_on(stdout, shade), text, colour_off(stdout, shade));
}

static gac_status report(cli *c, const verify_command *o)
{
    char lossless[96];
    const gac_verification *v = &o->v;
    if (c->json)
        return report_json(c, o);
    snprintf(lossless, sizeof lossless,
             "yes: without the padding, %d tensors have their original bytes", v->n_tensors);
    print_check("lossless", v->lossless, v->lossless ? lossless : "NO");
    print_check("pads zero", v->pads_zero, v->pads_zero ? "yes" : "NO");
    print_check("same tensors", v->same_tensors, v->same_tensors ? "yes" : "NO");
    print_check("config", v->config_ok,
                !v->config_ok           ? "DIFFERS"
                : v->n_dims_changed > 0 ? "is the original's with the new sizes"
                                        : "is the original's");
    print_check("other files", v->same_files, v->same_files ? "are the original's" : "DIFFER");
    print_check("record", v->record_ok,
                !v->has_record  ? "none"
                : !v->record_ok ? "DOES NOT FIT"
                : v->old_record ? "fits; version 0.1 has no checksums"
                                : "fits");
    printf("dimensions    %d changed%s\n", v->n_dims_changed,
           v->rescaled ? "; some tensors scaled, their originals kept" : "");
    if (o->forward)
        print_forward(o);
    return GAC_OK;
}

static gac_status run_forward(cli *c, verify_command *o, const char *path,
                              gac_model *const models[2])
{
    gac_tokenizer *tokenizer = NULL;
    int32_t *ids = NULL;
    size_t n_ids = 0;
    gac_status status = GAC_OK;
    gac_compare_options *by = &o->compare;
    int64_t wanted = by->n_ids;
    by->engine.progress = by->progress = c->progress;
    by->engine.log = &c->log;
    by->seed = (uint64_t)o->seed;
    if (o->tokens) {
        status = gac_tokenizer_open(path, &tokenizer, &c->error);
        if (status == GAC_OK)
            status = cli_read_tokens(c, tokenizer, o->tokens, &ids, &n_ids);
        by->ids = ids;
        by->n_ids = n_ids < (size_t)wanted ? (int64_t)n_ids : wanted;
    }
    if (status == GAC_OK)
        status = gac_engine_compare(models[0], models[1], by, &o->logits, &c->error);
    if (status == GAC_OK && o->logits.n_ids < wanted)
        gac_log_write(&c->log, 0, "compared over %lld tokens instead of %lld: %s",
                      (long long)o->logits.n_ids, (long long)wanted,
                      o->logits.n_ids == by->n_ids ? "the text has no more"
                                                   : "the context or memory allows no more");
    gac_tokenizer_close(tokenizer);
    free(ids);
    return status;
}

static void judge(verify_command *o)
{
    const gac_verification *v = &o->v;
    o->ok = v->lossless && v->pads_zero && v->config_ok && v->same_tensors && v->same_files &&
            v->record_ok;
    if (!o->forward)
        return;
    o->promised = !v->rescaled && strcmp(o->compare.engine.device, "reference") == 0;
    o->ok = o->ok && o->logits.finite && (o->logits.bit_exact || !o->promised);
}

static gac_status explain(cli *c, const verify_command *o)
{
    const gac_logit_comparison *l = &o->logits;
    if (o->v.difference[0])
        return gac_error_set(&c->error, GAC_CHECK, "%s", o->v.difference);
    return gac_error_set(&c->error, GAC_CHECK, "logits %s at position %lld, token %lld",
                         l->finite ? "differ most" : "are not finite", (long long)l->position,
                         (long long)l->token);
}

static gac_status compare(cli *c, verify_command *o, const char **paths)
{
    gac_checkpoint *checkpoints[2] = { NULL, NULL };
    gac_model *models[2] = { NULL, NULL };
    gac_status status = GAC_OK;
    for (int i = 0; i < 2 && status == GAC_OK; i++)
        status = cli_open_model(c, paths[i], &checkpoints[i], &models[i]);
    if (status == GAC_OK)
        status = gac_repair_verify(checkpoints[0], models[0], checkpoints[1], models[1],
                                   c->progress, &o->v, &c->error);
    if (status == GAC_OK && o->forward)
        status = run_forward(c, o, paths[0], models);
    if (status == GAC_OK) {
        judge(o);
        status = report(c, o);
    }
    if (status == GAC_OK && !o->ok)
        status = explain(c, o);
    for (int i = 0; i < 2; i++) {
        gac_model_free(models[i]);
        gac_checkpoint_close(checkpoints[i]);
    }
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    verify_command *o = filled;
    (void)n;
    if (!cli_given(c, "device"))
        o->compare.engine.device = "reference";
    if (!o->forward && options_given_of(&c->parsed, options))
        return gac_error_set(&c->error, GAC_USAGE,
                             "--tokens, --n-tokens, --seed and --device go with --forward");
    return compare(c, o, arguments);
}

const command cmd_verify = {
    .name = "verify",
    .summary = "is a repaired checkpoint the same model?",
    .usage = "ORIGINAL REPAIRED [--forward [options]]",
    .about = "Is REPAIRED the same model as ORIGINAL? Every tensor must be the original's with "
             "nothing but zeros added, the config and all other files what the repair of the "
             "original gives. Exits with 5 and names the first difference when that does not hold.",
    .example = "./llama-svd ./llama-svd-fit --forward",
    COMMAND_RUNS(2, 2, "the original and the repaired directory"),
};
