/* README.md of a compressed model: what it is, above the original's own text. */
#include "compress/compress_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_CARD_BYTES ((size_t)1 << 20)

/* Reads the original's README.md; *out is empty where there is none. The caller frees it. */
static gac_status read_card(const compression *c, char **out, size_t *n_bytes)
{
    gac_file *file = NULL;
    if (gac_checkpoint_open_file(c->checkpoint, "README.md", &file, NULL) != GAC_OK) {
        *n_bytes = 0;
        *out = calloc(1, 1);
        return *out ? GAC_OK : gac_error_no_memory(c->err);
    }
    gac_status status = gac_file_slurp(file, MAX_CARD_BYTES, out, n_bytes, c->err);
    gac_file_close(file);
    return status;
}

/* Returns the length of the settings at the top of a card, which are between two lines of
 * dashes; 0 where there are none. Hubs read them. */
static size_t settings_length(const char *card, size_t n_bytes)
{
    if (n_bytes < 4 || strncmp(card, "---\n", 4) != 0)
        return 0;
    const char *end = memmem(card + 4, n_bytes - 4, "\n---\n", 5);
    return end ? (size_t)(end - card) + 5 : 0;
}

static void print_aligned(FILE *to, double aligned_pct, const char *gpu)
{
    if (aligned_pct >= 100)
        fprintf(to, "- All sizes are aligned for %s.\n", gpu);
    else
        fprintf(to,
                "- %.1f %% of the sizes are aligned for %s. The others are the original's;\n"
                "  `gac repair` aligns them without changing what the model computes.\n",
                aligned_pct, gpu);
}

static void print_summary(FILE *to, const compression *c, const gac_compress_result *r)
{
    int n[GAC_CHOICE_HEADS + 1] = { 0 };
    for (int32_t i = 0; i < r->n_modules; i++)
        n[r->modules[i].choice]++;
    fprintf(to,
            "\n# A compressed model\n\n"
            "Compressed by gac %s (GPU-Aligned Compression), method %s. `gac.json` has all choices "
            "and\nwhat is needed to repeat them.\n\n"
            "| | before | after | removed |\n| --- | --- | --- | --- |\n"
            "| parameters of the blocks' linear layers | %lld | %lld | %.1f %% |\n"
            "| parameters of the whole model | %lld | %lld | %.1f %% |\n\n",
            GAC_VERSION, gac_compress_method_name(c->options->method), (long long)r->params_before,
            (long long)r->params_after,
            100 * (1 - (double)r->params_after / (double)r->params_before),
            (long long)r->total_before, (long long)r->total_after,
            100 * (1 - (double)r->total_after / (double)r->total_before));
    fprintf(to,
            "- %d matrices are dense, %d are two factors of a lower rank. %d MLPs are narrower, %d "
            "attention\n  blocks have fewer heads.\n"
            "- Calibrated with %lld tokens of text, in windows of %lld.\n",
            n[GAC_CHOICE_DENSE], n[GAC_CHOICE_RANK], n[GAC_CHOICE_WIDTH], n[GAC_CHOICE_HEADS],
            (long long)r->n_tokens, (long long)r->window);
    if (r->n_gradient_tokens > 0)
        fprintf(to, "- Outputs were weighed by gradients over %lld of these tokens.\n",
                (long long)r->n_gradient_tokens);
    if (compress_tries_cuts(c))
        fprintf(to, "- Expected divergence of the output from the original's: %.4g nats.\n",
                r->objective);
    const gac_compress_row *written = &r->rows[GAC_COMPRESS_ROW_RESULT];
    if (c->options->align == GAC_ALIGN_CONTRACT && written->n_params)
        print_aligned(to, written->aligned_pct, gac_contract_gpu(c->options->contract));
    fprintf(to, "\nLoad it with `AutoModelForCausalLM.from_pretrained(DIR%s)`.\n",
            r->needs_code ? ", trust_remote_code=True" : "");
}

gac_status compress_card(const compression *c, const gac_compress_result *result, char **out,
                         size_t *n_bytes)
{
    char *card = NULL;
    size_t n_card = 0;
    *out = NULL;
    gac_status status = read_card(c, &card, &n_card);
    FILE *to = status == GAC_OK ? open_memstream(out, n_bytes) : NULL;
    if (status == GAC_OK && !to)
        status = gac_error_no_memory(c->err);
    if (status == GAC_OK) {
        const size_t n_settings = settings_length(card, n_card);
        fwrite(card, 1, n_settings, to);
        print_summary(to, c, result);
        if (n_card > n_settings)
            fputs("\n# The original's own text\n\n", to);
        fwrite(card + n_settings, 1, n_card - n_settings, to);
    }
    if (to && ((ferror(to) | fclose(to)) != 0 || !*out) && status == GAC_OK)
        status = gac_error_no_memory(c->err); /* closing may fail by setting no text only */
    free(card);
    return status;
}
