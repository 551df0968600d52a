#include "cli.h"

#include <stdlib.h>

typedef struct report_options {
    const char *out, *figures, *title;
    bool force;
} report_options;

static const report_options initial = { .title = "GAC report" };

#define AT(member) .at = offsetof(report_options, member)
static const opt options[] = {
    { "output", 'o', "FILE", "the page to write", OPT_TEXT, AT(out) },
    { "figures", 0, "DIR", "also write every figure, as SVG, PNG and PDF", OPT_TEXT, AT(figures) },
    { "title", 0, "TEXT", "the heading of the page", OPT_TEXT, AT(title) },
    { "force", 0, NULL, "replace existing files", OPT_FLAG, AT(force) },
    { 0 }
};

static gac_status say(cli *c, const report_options *o, const gac_report *report)
{
    char q[512];
    gac_quote(q, sizeof q, o->out);
    if (!c->json) {
        printf("written    %s\n", q);
        return GAC_OK;
    }
    json_t *result = gac_json_result("gac.report/1", c->argc, c->argv);
    json_object_set_new(result, "page", json_string(q));
    json_object_set_new(result, "drawn", json_boolean(!gac_report_hint(report)));
    gac_status status = cli_print_result(c, result);
    if (status != GAC_OK)
        cli_report_failed(c, o->out, status);
    json_decref(result);
    return status;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    const report_options *o = filled;
    gac_report *report = NULL;
    gac_error why = GAC_ERROR_INIT;
    char q[256];
    if (!o->out)
        return gac_error_set(&c->error, GAC_USAGE, "report needs -o FILE; see gac report --help");
    gac_status status = cli_check_target(c, o->out, o->force);
    if (status == GAC_OK)
        status = gac_report_create(o->title, &report, &c->error);
    for (int i = 0; i < n && status == GAC_OK; i++)
        status = gac_report_add_file(report, arguments[i], &c->error);
    if (status == GAC_OK)
        status = cli_write_page(c, report, o->out, o->force);
    if (status == GAC_OK && o->figures) {
        status = gac_report_write_figures(report, o->figures, o->force, &why);
        if (status != GAC_OK)
            gac_error_set(&c->error, status, "%s is complete, its figures as files are not: %s",
                          gac_quote(q, sizeof q, o->out), why.text);
    }
    if (status == GAC_OK)
        status = say(c, o, report);
    gac_report_free(report);
    return status;
}

const command cmd_report = {
    .name = "report",
    .summary = "one page of figures and tables from results",
    .usage = "RESULT... -o page.html [--figures DIR]",
    .about = "Makes one HTML page from result files: what --json printed of inspect, plan, plan "
             "--pareto, repair, verify, compress and eval, contracts, and results of experiments, "
             "in any mix. The page needs no network and no other file. gnuplot draws the figures; "
             "without it the page has the tables.",
    .example = "inspect.json plan.json compress.json -o page.html\n"
               "results/*.json -o page.html --figures figures",
    COMMAND_RUNS(1, -1, "result files"),
};
