/* The input is JSON text. jansson's own parser is the judge: both accept it with
 * equal values, or both refuse it. They differ by design in integers of more than
 * 64 bits, in how deep values may be nested, and in NUL: jansson passes over one
 * that follows a number, and we refuse every one. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_checks.h"

static bool differs_by_design(const json_error_t *e)
{
    return json_error_code(e) == json_error_numeric_overflow ||
           json_error_code(e) == json_error_stack_overflow;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    gac_error err = GAC_ERROR_INIT;
    json_error_t e;
    json_t *ours = NULL;
    /* A copy of just that length, so that reading beyond it is seen. */
    char *text = malloc(n_bytes ? n_bytes : 1);
    if (!text)
        return 0;
    if (n_bytes)
        memcpy(text, data, n_bytes);
    json_t *theirs = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &e);
    gac_status status = gac_json_parse(text, n_bytes, "fuzz.json", &ours, &err);
    if (status != GAC_OK)
        fuzz_check_refusal(status, &err);
    if (n_bytes && memchr(text, 0, n_bytes)) {
        if (ours)
            abort();
        goto done;
    }
    bool deep = status != GAC_OK && strstr(err.text, "depth");
    if (theirs ? !deep && !json_equal(ours, theirs) : ours && !differs_by_design(&e))
        abort();
done:
    json_decref(ours);
    json_decref(theirs);
    free(text);
    return 0;
}
