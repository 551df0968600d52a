/* The input is a result. One that is taken becomes a page, on which no text of it is a tag. */
#include <stdlib.h>
#include <string.h>

#include <gac/report.h>
#include <jansson.h>

#include "fuzz_checks.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    gac_error err = GAC_ERROR_INIT;
    gac_report *report = NULL;
    json_t *json = NULL;
    char *page = NULL;
    size_t n_page = 0;
    if (gac_json_parse((const char *)data, n_bytes, "input", &json, &err) != GAC_OK)
        return 0; /* fuzz_json's matter */
    FUZZ_CHECK(gac_report_create("fuzz", &report, &err) == GAC_OK);
    gac_status status = gac_report_add(report, json, "input", &err);
    json_decref(json);
    if (status != GAC_OK) {
        fuzz_check_refusal(status, &err);
    } else {
        FUZZ_CHECK(gac_report_html(report, &page, &n_page, &err) == GAC_OK);
        FUZZ_CHECK(strlen(page) == n_page && !strstr(page, "<script"));
        FUZZ_CHECK(gac_is_utf8(page, n_page));
    }
    free(page);
    gac_report_free(report);
    return 0;
}
