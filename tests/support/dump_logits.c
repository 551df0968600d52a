/* Logits of a model over given tokens, for comparing with other programs.
 *
 *   dump_logits DIR DEVICE DTYPE PER_PASS IDS OUT [BATCH]
 *
 * IDS is a file of int32, OUT gets (tokens, vocab) float32. PER_PASS tokens go
 * through at a time: 0 is all, 1 uses the cache for every one. DTYPE counts on
 * GPUs only; "-" is the type of the model, and "no-pad" is the same without padding.
 * IDS are those of BATCH sequences of the same length, one after another. */
#include <gac/engine.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int fail(const gac_error *err)
{
    fprintf(stderr, "dump_logits: %s\n", err->text);
    return 1;
}

static int32_t *read_ids(const char *path, int64_t *n)
{
    FILE *file = fopen(path, "rb");
    int32_t *ids = calloc(1 << 20, sizeof *ids);
    if (!file || !ids)
        exit(2);
    *n = (int64_t)fread(ids, sizeof *ids, 1 << 20, file);
    fclose(file);
    return ids;
}

/* Runs batch sequences of n tokens side by side. */
static gac_status dump(gac_engine *engine, const int32_t *ids, int64_t batch, int64_t n,
                       int64_t per_pass, FILE *out, gac_error *err)
{
    gac_engine_info info;
    gac_status status = GAC_OK;
    gac_engine_describe(engine, &info);
    const size_t row = (size_t)info.vocab;
    float *logits = malloc((size_t)(batch * n) * row * sizeof *logits);
    int32_t *pass = malloc((size_t)(batch * per_pass) * sizeof *pass);
    if (!logits || !pass)
        status = gac_error_no_memory(err);
    for (int64_t done = 0; done < n && status == GAC_OK; done += per_pass) {
        int64_t some = n - done < per_pass ? n - done : per_pass;
        for (int64_t i = 0; i < batch * some; i++)
            pass[i] = ids[i / some * n + done + i % some];
        status = gac_engine_forward(engine, pass, batch, some, done, NULL, err);
        for (int64_t s = 0; s < batch && status == GAC_OK; s++)
            status = gac_engine_logits(engine, s * some, some,
                                       logits + (size_t)(s * n + done) * row, err);
    }
    if (status == GAC_OK)
        fwrite(logits, sizeof *logits, (size_t)(batch * n) * row, out);
    free(logits);
    free(pass);
    return status;
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    gac_engine *engine = NULL;
    gac_engine_options options = GAC_ENGINE_OPTIONS_INIT;
    int64_t n = 0;
    if (argc != 7 && argc != 8)
        return 2;
    int32_t *ids = read_ids(argv[5], &n);
    FILE *out = fopen(argv[6], "wb");
    const int64_t batch = argc == 8 ? atoll(argv[7]) : 1;
    if (batch < 1 || n % batch != 0)
        return 2;
    n /= batch;
    int64_t per_pass = atoll(argv[4]) > 0 ? atoll(argv[4]) : n;
    options.device = argv[2];
    options.max_context = n;
    options.max_new = per_pass;
    options.max_batch = batch;
    options.no_pad = strcmp(argv[3], "no-pad") == 0;
    if (!out || n < 1 ||
        (!options.no_pad && strcmp(argv[3], "-") != 0 && !gac_dtype_parse(argv[3], &options.dtype)))
        return 2;
    gac_status status = gac_checkpoint_open(argv[1], NULL, &checkpoint, &err);
    if (status == GAC_OK)
        status = gac_model_create(checkpoint, &model, &err);
    if (status == GAC_OK)
        status = gac_engine_open(model, &options, &engine, &err);
    if (status == GAC_OK)
        status = dump(engine, ids, batch, n, per_pass, out, &err);
    gac_engine_close(engine);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    free(ids);
    return fclose(out) != 0 || status != GAC_OK ? fail(&err) : 0;
}
