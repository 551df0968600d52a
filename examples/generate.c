/* Continues a text on the CPU, always with the likeliest token.
 *
 *     cc generate.c -o generate $(pkg-config --cflags --libs gac)
 *     ./generate DIR "Once upon a time" 40 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <gac/gac.h>

/* Shows text as it is made; a reader that has gone away ends it. */
static bool show(void *context, int32_t id, const char *text, size_t n_bytes)
{
    (void)context, (void)id;
    fwrite(text, 1, n_bytes, stdout);
    return fflush(stdout) == 0;
}

/* Sizes an engine for the prompt and the answer, and lets it speak. */
static gac_status speak(const gac_model *model, gac_tokenizer *tokenizer, const int32_t *prompt,
                        size_t n_prompt, int64_t max_tokens, gac_error *err)
{
    gac_engine *engine = NULL;
    gac_engine_work work = GAC_ENGINE_WORK_INIT;
    gac_engine_options room = GAC_ENGINE_OPTIONS_INIT;
    gac_generate_options options = GAC_GENERATE_OPTIONS_INIT;
    gac_generation made = { .ids = NULL };
    int32_t eos = gac_tokenizer_eos(tokenizer);
    work.n_prompt = (int64_t)n_prompt;
    work.max_tokens = options.max_tokens = max_tokens;
    options.eos = &eos;
    options.n_eos = eos >= 0;
    options.show = show;
    gac_status status = gac_engine_size(model, &work, &room, err);
    if (status == GAC_OK)
        status = gac_engine_open(model, &room, &engine, err);
    if (status == GAC_OK)
        status = gac_engine_check_text(engine, prompt, n_prompt, err);
    if (status == GAC_OK)
        status = gac_engine_generate(engine, tokenizer, prompt, n_prompt, &options, &made, err);
    gac_generation_dispose(&made);
    gac_engine_close(engine);
    return status;
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    gac_tokenizer *tokenizer = NULL;
    int32_t *prompt = NULL;
    size_t n_prompt = 0;
    if (argc != 4) {
        fprintf(stderr, "usage: generate DIR PROMPT TOKENS\n");
        return GAC_USAGE;
    }
    gac_status status = gac_checkpoint_open(argv[1], NULL, &checkpoint, &err);
    if (status == GAC_OK)
        status = gac_model_create(checkpoint, &model, &err);
    if (status == GAC_OK)
        status = gac_tokenizer_open(argv[1], &tokenizer, &err);
    if (status == GAC_OK)
        status = gac_tokenizer_encode(tokenizer, argv[2], strlen(argv[2]), true, &prompt, &n_prompt,
                                      &err);
    if (status == GAC_OK)
        status = speak(model, tokenizer, prompt, n_prompt, atoll(argv[3]), &err);
    putchar('\n');
    if (status != GAC_OK)
        fprintf(stderr, "generate: %s\n", err.text);
    free(prompt);
    gac_tokenizer_close(tokenizer);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    return (int)status;
}
