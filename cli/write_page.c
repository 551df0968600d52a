#include "cli.h"

#include <stdlib.h>

gac_status cli_write_page(cli *c, gac_report *report, const char *path, bool force)
{
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = gac_report_draw(report, &c->error);
    if (status == GAC_OK)
        status = gac_report_html(report, &text, &n_bytes, &c->error);
    if (status == GAC_OK)
        status = cli_write_file(c, path, force, text);
    free(text);
    if (status == GAC_OK && gac_report_hint(report))
        gac_log_write(&c->log, 0, "the page has no pictures: %s", gac_report_hint(report));
    return status;
}

gac_status cli_leave_page(cli *c, const json_t *result, const char *title, const char *path,
                          bool force)
{
    gac_report *report = NULL;
    gac_status status = gac_memory_check(&c->error);
    if (status == GAC_OK)
        status = gac_report_create(title, &report, &c->error);
    for (size_t i = 0; i < json_array_size(result) && status == GAC_OK; i++)
        status = gac_report_add(report, json_array_get(result, i), title, &c->error);
    if (status == GAC_OK && json_is_object(result))
        status = gac_report_add(report, result, title, &c->error);
    if (status == GAC_OK)
        status = cli_write_page(c, report, path, force);
    gac_report_free(report);
    return status;
}
