/* The input is a tokenizer.json and, after its last NUL, a text. A tokenizer
 * that is taken must give ids and bytes for any text, or refuse in one line. */
#include <stdlib.h>
#include <string.h>

#include <gac/engine.h>

#include "fuzz_checks.h"
#include "fuzz_folder.h"

static void use(gac_tokenizer *t, const char *text, size_t n)
{
    gac_error err = GAC_ERROR_INIT;
    int32_t *ids = NULL;
    char *bytes = NULL;
    size_t n_ids, n_bytes;
    gac_status status = gac_tokenizer_encode(t, text, n, true, &ids, &n_ids, &err);
    if (status != GAC_OK) {
        fuzz_check_refusal(status, &err);
        return;
    }
    for (size_t i = 0; i < n_ids; i++)
        FUZZ_CHECK(ids[i] >= 0 && ids[i] < GAC_MAX_TOKENS);
    status = gac_tokenizer_decode(t, ids, n_ids, false, &bytes, &n_bytes, &err);
    if (status != GAC_OK)
        fuzz_check_refusal(status, &err);
    free(ids);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    gac_error err = GAC_ERROR_INIT;
    gac_tokenizer *t = NULL;
    const uint8_t *nul = n_bytes ? memrchr(data, 0, n_bytes) : NULL;
    size_t n_json = nul ? (size_t)(nul - data) : n_bytes;
    fuzz_put("tokenizer.json", data, n_json);
    gac_status status = gac_tokenizer_open(fuzz_folder(), &t, &err);
    if (status != GAC_OK) {
        fuzz_check_refusal(status, &err);
        return 0;
    }
    if (nul)
        use(t, (const char *)nul + 1, n_bytes - n_json - 1);
    use(t, "a\xcc\x81 \xff<s> don't 12\n", 18);
    gac_tokenizer_close(t);
    return 0;
}
