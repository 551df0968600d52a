/* Makes the text of the repaired model's config, and its modelling code. */
#include <stdlib.h>

#include "repair/repair_internal.h"

/* Reads a text again. *same: it has the values of the config. */
static gac_status read_again(const char *text, size_t n_bytes, const json_t *config, bool *same,
                             gac_error *err)
{
    json_t *again = NULL, *rounded = gac_json_rounded(config), *found = NULL;
    gac_status status = gac_json_parse_exact(text, n_bytes, "config.json", &again, err);
    if (status == GAC_OK && (!rounded || !(found = gac_json_rounded(again))))
        status = gac_error_no_memory(err);
    *same = status == GAC_OK && json_equal(found, rounded);
    json_decref(again);
    json_decref(rounded);
    json_decref(found);
    return status;
}

/* Writes a config as text. New numbers are the shortest that read back as the
 * same values. The caller frees it. */
static gac_status config_text(const json_t *config, char **out, gac_error *err)
{
    for (int digits = 6;; digits++) {
        char *text = NULL;
        size_t n_bytes;
        bool same = false;
        gac_status status = gac_json_text(
            config, JSON_INDENT(2) | (size_t)JSON_REAL_PRECISION(digits), &text, &n_bytes, err);
        if (status == GAC_OK)
            status = read_again(text, n_bytes, config, &same, err);
        if (same || digits == 17) {
            if (status == GAC_OK && asprintf(out, "%s\n", text) < 0) {
                *out = NULL;
                status = gac_error_no_memory(err);
            }
            free(text);
            return status;
        }
        free(text);
        if (status != GAC_OK)
            return status;
    }
}

gac_status gac_may_write_code(const gac_model *model, int32_t n_changed, bool *out, gac_error *err)
{
    gac_file *there = NULL;
    gac_error why = GAC_ERROR_INIT;
    gac_status status =
        gac_checkpoint_open_file(gac_model_checkpoint(model), GAC_MODELING_FILE, &there, &why);
    *out = (n_changed > 0 || gac_model_config_is_stale(model)) && !there;
    gac_file_close(there);
    return status == GAC_OK || status == GAC_BAD_INPUT ? GAC_OK
                                                       : gac_error_set(err, status, "%s", why.text);
}

gac_status gac_new_config(const gac_model *model, const int64_t *sizes, gac_widths widths,
                          bool with_code, char **text, char **code, gac_error *err)
{
    json_t *config = NULL;
    *text = NULL;
    gac_status status = gac_repair_config(model, sizes, widths, with_code, &config, code, err);
    if (status == GAC_OK && config &&
        !json_equal(config, gac_checkpoint_config_exact(gac_model_checkpoint(model))))
        status = config_text(config, text, err);
    json_decref(config);
    return status;
}
