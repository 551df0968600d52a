#include "contract/contract_lines.h"

#include <math.h>

#define MAX_MULTIPLE 4096
#define MAX_OUTPUTS ((int64_t)1 << 52)
#define MIN_FACTOR 0.25 /* of a file; what was measured is near 1 */
#define MAX_FACTOR 4

static bool read_parts(gac_reader *r, const json_t *value, gac_lines *out)
{
    json_t *list;
    if (!gac_reader_array(r, value, "parts", GAC_LINES_MAX_PARTS, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".parts");
    int64_t before = out->multiple;
    out->n_parts = (int)json_array_size(list);
    for (int i = 0; i < out->n_parts; i++) {
        size_t at_part = gac_reader_enter(r, "[%d]", i);
        int64_t *part = &out->part[i];
        if (!gac_reader_to_size(r, json_array_get(list, (size_t)i), MAX_MULTIPLE, part))
            return false;
        if (*part == before || before % *part != 0)
            return gac_reader_fault(r, "must be less than the entry before, and divide it");
        before = *part;
        gac_reader_leave(r, at_part);
    }
    gac_reader_leave(r, at_list);
    return true;
}

static bool read_outputs(gac_reader *r, const json_t *value, gac_lines *out)
{
    json_t *list;
    if (!gac_reader_array(r, value, "mn", GAC_LINES_MAX_OUTPUTS, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".mn");
    out->n_outputs = (int)json_array_size(list);
    if (out->n_outputs == 0)
        return gac_reader_fault(r, "must have an entry");
    int64_t before = 0;
    for (int i = 0; i < out->n_outputs; i++) {
        int64_t outputs;
        size_t at_entry = gac_reader_enter(r, "[%d]", i);
        if (!gac_reader_to_size(r, json_array_get(list, (size_t)i), MAX_OUTPUTS, &outputs))
            return false;
        if (outputs <= before)
            return gac_reader_fault(r, "must be larger than the entry before");
        out->log_outputs[i] = log((double)outputs);
        before = outputs;
        gac_reader_leave(r, at_entry);
    }
    gac_reader_leave(r, at_list);
    return true;
}

static bool read_factors(gac_reader *r, const json_t *value, gac_lines *out)
{
    json_t *list;
    if (!gac_reader_array(r, value, "factor", GAC_LINES_MAX_PARTS, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".factor");
    if ((int)json_array_size(list) != out->n_parts)
        return gac_reader_fault(r, "must have one entry for every part");
    for (int i = 0; i < out->n_parts; i++) {
        const json_t *part = json_array_get(list, (size_t)i);
        size_t at_part = gac_reader_enter(r, "[%d]", i);
        if (!json_is_array(part) || (int)json_array_size(part) != out->n_outputs)
            return gac_reader_fault(r, "must be a list with one entry for every mn");
        for (int j = 0; j < out->n_outputs; j++) {
            double factor;
            size_t before = gac_reader_enter(r, "[%d]", j);
            if (!gac_reader_to_number(r, json_array_get(part, (size_t)j), MIN_FACTOR, MAX_FACTOR,
                                      &factor))
                return false;
            out->log_factor[i][j] = log(factor);
            gac_reader_leave(r, before);
        }
        gac_reader_leave(r, at_part);
    }
    gac_reader_leave(r, at_list);
    return true;
}

bool gac_lines_read(gac_reader *r, const json_t *value, gac_lines *out)
{
    if (!json_is_object(value))
        return gac_reader_fault(r, "must be an object");
    return gac_reader_size(r, value, "multiple", MAX_MULTIPLE, &out->multiple) &&
           read_parts(r, value, out) && read_outputs(r, value, out) && read_factors(r, value, out);
}

int gac_lines_part(const gac_lines *lines, int64_t k)
{
    if (lines->multiple == 0 || k % lines->multiple == 0)
        return -1;
    for (int part = 0; part < lines->n_parts; part++)
        if (k % lines->part[part] == 0)
            return part;
    return -1;
}

double gac_lines_whole(const gac_lines *lines, int64_t k)
{
    int64_t whole;
    if (gac_lines_part(lines, k) < 0 || !gac_round_up_i64(k, lines->multiple, &whole))
        return (double)k;
    return (double)whole;
}

double gac_lines_factor(const gac_lines *lines, double outputs, int64_t k)
{
    int part = gac_lines_part(lines, k), at = 0;
    if (part < 0)
        return 1;
    const double *factors = lines->log_factor[part], *at_outputs = lines->log_outputs;
    double x = log(outputs);
    if (x <= at_outputs[0] || lines->n_outputs == 1)
        return exp(factors[0]);
    while (at + 2 < lines->n_outputs && at_outputs[at + 1] < x)
        at++;
    double into = fmin((x - at_outputs[at]) / (at_outputs[at + 1] - at_outputs[at]), 1);
    return exp(factors[at] + into * (factors[at + 1] - factors[at]));
}
