#include "fake_engine.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { ROOM = 1 << 16 };

struct gac_engine {
    fake_engine f;
    int64_t n_rows, first_position, n_new;
    int32_t ids[ROOM]; /* of the last pass */
};

gac_engine *fake_engine_create(const fake_engine *settings)
{
    gac_engine *engine = calloc(1, sizeof *engine);
    engine->f = *settings;
    return engine;
}

const fake_engine *fake_engine_look(const gac_engine *engine)
{
    return &engine->f;
}

int32_t fake_engine_next(int64_t vocab, int32_t id)
{
    return (int32_t)((5 * (int64_t)id + 3) % vocab);
}

gac_status gac_engine_open(const gac_model *model, const gac_engine_options *options,
                           gac_engine **out, gac_error *err)
{
    static const gac_engine_options usual = GAC_ENGINE_OPTIONS_INIT;
    if (!options)
        options = &usual;
    int64_t context = options->max_context;
    if (context == 0 && gac_engine_model_context(model, &context, err) != GAC_OK)
        return err ? err->status : GAC_BAD_INPUT;
    fake_engine settings = { .max_context = context, .nan_at = -1, .vocab = 64 };
    settings.max_new = options->max_new ? options->max_new : context;
    for (int32_t i = 0; i < gac_model_n_dims(model); i++)
        if (gac_model_dim(model, i)->role == GAC_ROLE_VOCAB)
            settings.vocab = gac_model_dim(model, i)->size;
    settings.odd_at = gac_model_n_layers(model) == 3 ? 21 : 0;
    *out = fake_engine_create(&settings);
    return GAC_OK;
}

void gac_engine_close(gac_engine *engine)
{
    free(engine);
}

void gac_engine_describe(const gac_engine *engine, gac_engine_info *out)
{
    *out = (gac_engine_info){ .vocab = engine->f.vocab,
                              .hidden = 1,
                              .n_layers = 1,
                              .max_context = engine->f.max_context,
                              .model_context = engine->f.max_context,
                              .dtype = GAC_DTYPE_F32 };
}

void gac_engine_watch(gac_engine *engine, gac_progress *progress, uint64_t n_done,
                      bool counts_tokens)
{
    (void)engine;
    (void)progress;
    (void)n_done;
    (void)counts_tokens;
}

gac_status gac_engine_check_text(const gac_engine *engine, const int32_t *ids, size_t n_ids,
                                 gac_error *err)
{
    (void)engine;
    (void)ids;
    (void)n_ids;
    (void)err;
    return GAC_OK;
}

gac_status gac_engine_reserve(gac_engine *engine, int64_t batch, int64_t context, gac_error *err)
{
    if (batch < 1 || context < 1 || context > engine->f.max_context)
        return gac_error_set(err, GAC_USAGE, "fake: no room for %lld tokens", (long long)context);
    engine->f.room_batch = batch;
    engine->f.room_context = context;
    return GAC_OK;
}

static void wait_us(int64_t time_us)
{
    struct timespec time = { time_us / 1000000, time_us % 1000000 * 1000 };
    nanosleep(&time, NULL);
}

gac_status gac_engine_forward(gac_engine *engine, const int32_t *ids, int64_t batch, int64_t n_new,
                              int64_t n_past, float *logits, gac_error *err)
{
    fake_engine *f = &engine->f;
    if (n_past + n_new > (f->room_context ? f->room_context : f->max_context) ||
        (f->room_batch && batch > f->room_batch) || n_new > f->max_new || batch * n_new > ROOM)
        return gac_error_set(err, GAC_USAGE, "fake: %lld tokens after %lld", (long long)n_new,
                             (long long)n_past);
    if (n_past > f->n_cached)
        return gac_error_set(err, GAC_USAGE, "fake: a hole from %lld to %lld",
                             (long long)f->n_cached, (long long)n_past);
    for (int64_t i = 0; i < batch * n_new; i++)
        if (ids[i] < 0 || ids[i] >= f->vocab)
            return gac_error_set(err, GAC_USAGE, "token %d is outside the vocabulary", (int)ids[i]);
    memcpy(engine->ids, ids, (size_t)(batch * n_new) * sizeof *ids);
    engine->n_rows = batch * n_new;
    engine->n_new = n_new;
    engine->first_position = n_past;
    f->n_passes++;
    f->n_tokens += batch * n_new;
    f->n_cached = n_past + n_new;
    if (f->delay_us > 0)
        wait_us(f->delay_us);
    for (int64_t b = 0; b < batch && logits; b++)
        gac_engine_logits(engine, (b + 1) * n_new - 1, 1, logits + b * f->vocab, NULL);
    return GAC_OK;
}

gac_status gac_engine_logits(gac_engine *engine, int64_t first, int64_t n, float *out,
                             gac_error *err)
{
    int64_t vocab = engine->f.vocab;
    if (first < 0 || first + n > engine->n_rows)
        return gac_error_set(err, GAC_USAGE, "fake: no such rows");
    for (int64_t i = 0; i < n; i++) {
        int32_t next = fake_engine_next(vocab, engine->ids[first + i]);
        int64_t position = engine->first_position + (first + i) % engine->n_new;
        for (int64_t v = 0; v < vocab; v++)
            out[i * vocab + v] =
                position == engine->f.nan_at ? NAN : (float)-llabs(v - next) * 0.25F;
        if (engine->f.odd_at > 0 && position == engine->f.odd_at)
            out[i * vocab + 7] += 0.5F;
    }
    return GAC_OK;
}

gac_status gac_engine_losses(gac_engine *engine, const int32_t *ids, int64_t n_ids, double *losses,
                             gac_error *err)
{
    int64_t vocab = engine->f.vocab;
    float *logits = malloc((size_t)vocab * sizeof *logits);
    gac_status status = gac_engine_forward(engine, ids, 1, n_ids - 1, 0, NULL, err);
    for (int64_t i = 0; i < n_ids - 1 && status == GAC_OK; i++) {
        double sum = 0;
        status = gac_engine_logits(engine, i, 1, logits, err);
        for (int64_t v = 0; v < vocab; v++)
            sum += exp((double)logits[v]);
        losses[i] = log(sum) - (double)logits[ids[i + 1]];
    }
    free(logits);
    return status;
}
