/* gac.contract/2: what a GPU asks of sizes. Its tables of times stay in the file. */
#include <string.h>

#include "report/report_internal.h"

enum { MAX_TIERS = 64, MAX_DTYPES = 16 };

static bool read_tiers(rep_reader *in, const json_t *tiers, const char *dtype, const char *seen_as,
                       rep_table *table)
{
    gac_report *report = in->report;
    for (size_t i = 0; i < json_array_size(tiers); i++) {
        const char *family, *decode, *basis;
        double multiple, penalty;
        bool aligned;
        const json_t *tier = rep_entry(in, tiers, i, seen_as);
        if (!tier || !rep_need_number(in, tier, "multiple", &multiple) ||
            !rep_take_text(in, tier, "family", &family) ||
            !rep_take_text(in, tier, "decode_family", &decode) ||
            !rep_take_text(in, tier, "basis", &basis) ||
            !rep_take_number(in, tier, "worst_penalty", &penalty) ||
            !rep_take_flag(in, tier, "aligned", &aligned))
            return false;
        REP_ROW(report, table, dtype, seen_as, rep_printf(report, "%.0f", multiple),
                aligned ? "yes" : "no", rep_or(family, "-"), rep_or(decode, "-"),
                rep_number(report, penalty), rep_or(basis, "-"));
    }
    return true;
}

/* Attention time against head size, from the points of the contract. */
static bool read_points(rep_reader *in, const json_t *sdpa, const json_t *tiers, const char *dtype)
{
    const json_t *points;
    double multiple = 0;
    gac_report *report = in->report;
    if (!rep_take_array(in, sdpa, "points", 4096, &points))
        return false;
    if (json_array_size(points) == 0)
        return true;
    for (size_t i = 0; i < json_array_size(tiers); i++)
        if (json_is_true(json_object_get(json_array_get(tiers, i), "aligned")))
            multiple = gac_json_number_or(json_array_get(tiers, i), "multiple", 0);
    rep_figure *figure = rep_figure_add(
        report, in->section,
        &(rep_figure){ .name = rep_printf(report, "attention-%s", dtype),
                       .title = rep_printf(report, "Attention time against head size, %s", dtype),
                       .caption = "One call at the contract's reference shape. Triangles are "
                                  "head sizes that the fast kernel does not take.",
                       .x_title = "head size",
                       .y_title = "time, µs" });
    for (size_t i = 0; i < json_array_size(points); i++) {
        const json_t *pair = json_array_get(points, i);
        double head = json_number_value(json_array_get(pair, 0));
        double us = json_number_value(json_array_get(pair, 1));
        if (json_array_size(pair) != 2 || !(head > 0 && head < 1e9 && us > 0 && us < 1e15))
            return gac_reader_fault_at(&in->r, "sdpa.points",
                                       "must be pairs of head size and time");
        bool aligned = multiple > 0 && fmod(head, multiple) == 0;
        rep_series *series = rep_series_get(report, figure, aligned ? "aligned" : "misaligned",
                                            aligned ? REP_BLUE : REP_VERMILLION, REP_DOTS);
        if (series)
            series->mark = !aligned; /* a triangle */
        rep_point_add(report, figure, series, head, us, NULL);
    }
    return true;
}

static bool read_dtype(rep_reader *in, const json_t *gemm, const json_t *sdpa, const char *dtype,
                       rep_table *table)
{
    const json_t *by, *tiers;
    static const char *const axes[] = { "n", "k" };
    if (!rep_take_object(in, gemm, dtype, &by))
        return false;
    for (int i = 0; i < 2; i++)
        if (!rep_take_array(in, by, axes[i], MAX_TIERS, &tiers) ||
            !read_tiers(in, tiers, dtype, i == 0 ? "gemm_n" : "gemm_k", table))
            return false;
    return rep_take_object(in, sdpa, dtype, &by) &&
           rep_take_array(in, by, "tiers", MAX_TIERS, &tiers) &&
           read_tiers(in, tiers, dtype, "sdpa_head", table) && read_points(in, by, tiers, dtype);
}

/* The first date in the sources, with a dot before it. */
static const char *find_date(rep_reader *in, const json_t *sources)
{
    static const char form[] = "dddd-dd-dd";
    for (size_t i = 0; i < json_array_size(sources); i++) {
        const char *text = json_string_value(json_array_get(sources, i));
        for (; text && *text; text++) {
            int n = 0;
            while (form[n] && (form[n] == 'd' ? text[n] >= '0' && text[n] <= '9' : text[n] == '-'))
                n++;
            if (!form[n])
                return rep_printf(in->report, " · %.*s", n, text);
        }
    }
    return "";
}

bool rep_read_contract(rep_reader *in)
{
    const char *name, *gpu, *arch;
    const json_t *gemm, *sdpa, *dtypes, *stack, *sources;
    const char *driver, *cublas, *cudnn, *version;
    gac_report *report = in->report;
    rep_section *section = in->section;
    if (!rep_need_text(in, in->root, "name", &name) || !rep_take_text(in, in->root, "gpu", &gpu) ||
        !rep_take_text(in, in->root, "arch", &arch) ||
        !rep_take_object(in, in->root, "stack", &stack) ||
        !rep_take_text(in, stack, "driver", &driver) ||
        !rep_take_text(in, stack, "cublas", &cublas) ||
        !rep_take_text(in, stack, "cudnn", &cudnn) || !rep_take_text(in, stack, "gac", &version) ||
        !rep_take_object(in, in->root, "gemm", &gemm) ||
        !rep_take_object(in, in->root, "sdpa", &sdpa) ||
        !rep_take_array(in, in->root, "sources", 50, &sources) ||
        !rep_need_array(in, in->root, "dtypes", MAX_DTYPES, &dtypes))
        return false;
    section->title =
        rep_printf(report, "Contract %s: what %s asks of sizes", name, rep_or(gpu, "a GPU"));
    section->stamp = rep_printf(
        report, "%s%s%s%s%s%s%s%s%s%s", rep_or(gpu, name), driver ? ", driver " : "",
        rep_or(driver, ""), cublas ? ", cuBLAS " : "", rep_or(cublas, ""), cudnn ? ", cuDNN " : "",
        rep_or(cudnn, ""), version ? " · gac " : "", rep_or(version, ""), find_date(in, sources));
    rep_fact_add(report, section, "architecture", arch);
    for (size_t i = 0; i < json_array_size(sources); i++) {
        char q[400];
        const char *source = json_string_value(json_array_get(sources, i));
        if (source)
            rep_note_add(report, section, rep_printf(report, "%s", gac_quote(q, sizeof q, source)));
    }
    rep_table *table = rep_table_add(
        report, section, "Tiers of sizes",
        "dtype|seen as|#multiples of|!aligned|prefill kernel|decode kernel|#worst, times|basis");
    for (size_t i = 0; i < json_array_size(dtypes); i++) {
        char q[40];
        const char *dtype = json_string_value(json_array_get(dtypes, i));
        if (!dtype)
            return gac_reader_fault_at(&in->r, "dtypes", "must be texts");
        if (!read_dtype(in, gemm, sdpa, rep_printf(report, "%s", gac_quote(q, sizeof q, dtype)),
                        table))
            return false;
    }
    return true;
}
