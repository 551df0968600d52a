#include "cli.h"

#include <stdlib.h>

gac_status cli_write_page(cli *c, gac_report *report, const char *path, bool force)
{
    gac_error why = GAC_ERROR_INIT;
    char *text = NULL;
    size_t n_bytes = 0;
    if (gac_report_draw(report, &why) != GAC_OK)
        gac_log_write(&c->log, 0, "the page has no pictures: %s", why.text);
    gac_status status = gac_report_html(report, &text, &n_bytes, &c->error);
    if (status == GAC_OK)
        status = cli_write_file(c, path, force, text);
    free(text);
    return status;
}
