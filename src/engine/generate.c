#include "base/arguments.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"

#include <stdlib.h>
#include <string.h>

typedef struct generator {
    gac_engine *engine;
    gac_tokenizer *tokenizer;
    const gac_generate_options *options;
    gac_generation *out;
    sampler sampler;
    text_stream stream;
    float *logits; /* (vocab) */
    size_t n_shown;
    bool first; /* no text precedes the next token */
} generator;

const char *gac_stop_name(gac_stop stop)
{
    switch (stop) {
    case GAC_STOP_EOS:
        return "eos";
    case GAC_STOP_LENGTH:
        return "length";
    case GAC_STOP_CONTEXT:
        return "context";
    case GAC_STOP_CALLER:
        break;
    }
    return "caller";
}

void gac_generation_dispose(gac_generation *generation)
{
    if (!generation)
        return;
    free(generation->ids);
    free(generation->text);
    *generation = (gac_generation){ 0 };
}

/* Passes new text to the caller. False if the caller wants to stop. */
static bool show(generator *g, int32_t id)
{
    const char *text = g->stream.text.data ? g->stream.text.data : "";
    size_t from = g->n_shown;
    g->n_shown = g->stream.text.n;
    if (!g->options->show || (id < 0 && from == g->n_shown))
        return true;
    return g->options->show(g->options->show_context, id, text + from, g->n_shown - from);
}

static gac_status add_text(generator *g, int32_t id, gac_error *err)
{
    const char *bytes;
    size_t n;
    if (!g->tokenizer || gac_tokenizer_is_special(g->tokenizer, id))
        return GAC_OK;
    gac_status status = gac_tokenizer_decode_one(g->tokenizer, id, g->first, &bytes, &n, err);
    if (status != GAC_OK)
        return status;
    g->first = false;
    return gac_text_stream_add(&g->stream, bytes, n) ? GAC_OK : gac_error_no_memory(err);
}

static bool is_eos(const gac_generate_options *options, int32_t id)
{
    for (int32_t i = 0; i < options->n_eos; i++)
        if (options->eos[i] == id)
            return true;
    return false;
}

static gac_status loop(generator *g, const int32_t *prompt, int64_t n_prompt, int64_t room,
                       gac_error *err)
{
    gac_generation *out = g->out;
    int64_t n_past = n_prompt;
    int32_t id;
    gac_status status = gac_engine_forward(g->engine, prompt, 1, n_prompt, 0, g->logits, err);
    while (status == GAC_OK) {
        status = gac_sampler_pick(&g->sampler, g->logits, &id, err);
        if (status != GAC_OK)
            break;
        if (is_eos(g->options, id)) {
            out->stop = GAC_STOP_EOS;
            break;
        }
        out->ids[out->n_ids++] = id;
        status = add_text(g, id, err);
        if (status != GAC_OK)
            break;
        if (!show(g, id)) {
            out->stop = GAC_STOP_CALLER;
            break;
        }
        if (out->n_ids == g->options->max_tokens || n_past == room) {
            out->stop = out->n_ids == g->options->max_tokens ? GAC_STOP_LENGTH : GAC_STOP_CONTEXT;
            break;
        }
        status = gac_engine_forward(g->engine, &id, 1, 1, n_past++, g->logits, err);
    }
    return status;
}

/* Returns whether the prompt has no text of its own: all its tokens are special. */
static bool starts_text(gac_tokenizer *tokenizer, const int32_t *prompt, size_t n_prompt)
{
    for (size_t i = 0; i < n_prompt && tokenizer; i++)
        if (!gac_tokenizer_is_special(tokenizer, prompt[i]))
            return false;
    return true;
}

static gac_status check(const gac_engine_info *info, size_t n_prompt, int64_t max_tokens,
                        gac_error *err)
{
    if (n_prompt == 0)
        return gac_error_set(err, GAC_USAGE, "the prompt has no tokens");
    if (n_prompt > (size_t)info->max_context)
        return gac_error_set(err, GAC_USAGE, "the prompt has %zu tokens, the context %lld",
                             n_prompt, (long long)info->max_context);
    if (max_tokens < 1)
        return gac_error_set(err, GAC_USAGE, "max_tokens %lld: must be at least 1",
                             (long long)max_tokens);
    return GAC_OK;
}

gac_status gac_engine_generate(gac_engine *engine, gac_tokenizer *tokenizer, const int32_t *prompt,
                               size_t n_prompt, const gac_generate_options *options,
                               gac_generation *out, gac_error *err)
{
    if (out) /* to be disposed of, whatever happens */
        *out = (gac_generation){ 0 };
    GAC_REFUSE_NULL(err, engine, prompt, out);
    GAC_REFUSE(err, options && (options->n_eos < 0 || (options->n_eos > 0 && !options->eos)),
               "eos is NULL");
    static const gac_generate_options usual = GAC_GENERATE_OPTIONS_INIT;
    gac_engine_info info;
    generator g = { .engine = engine, .tokenizer = tokenizer, .out = out };
    g.options = options ? options : &usual;
    gac_engine_describe(engine, &info);
    gac_status status = check(&info, n_prompt, g.options->max_tokens, err);
    if (status == GAC_OK)
        status = gac_sampler_init(&g.sampler, &g.options->sampling, info.vocab, err);
    if (status != GAC_OK)
        return status;
    int64_t most = info.max_context - (int64_t)n_prompt + 1; /* the last token is not fed back */
    most = most < g.options->max_tokens ? most : g.options->max_tokens;
    g.first = starts_text(tokenizer, prompt, n_prompt);
    g.logits = malloc((size_t)info.vocab * sizeof *g.logits);
    out->ids = calloc((size_t)most, sizeof *out->ids);
    if (!g.logits || !out->ids || !gac_text_stream_add(&g.stream, "", 0))
        status = gac_error_no_memory(err);
    if (status == GAC_OK)
        status = gac_engine_reserve(engine, 1, info.max_context, err);
    if (status == GAC_OK)
        status = loop(&g, prompt, (int64_t)n_prompt, info.max_context, err);
    if (status == GAC_OK && !gac_text_stream_finish(&g.stream))
        status = gac_error_no_memory(err);
    if (status == GAC_OK && !show(&g, -1))
        out->stop = GAC_STOP_CALLER;
    out->text = g.stream.text.data;
    out->n_bytes = g.stream.text.n;
    g.stream.text = (byte_buffer){ 0 };
    gac_text_stream_dispose(&g.stream);
    gac_sampler_dispose(&g.sampler);
    free(g.logits);
    return status;
}
