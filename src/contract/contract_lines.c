#include "contract/contract_lines.h"

#include <math.h>

#define MAX_MULTIPLE 4096
#define MAX_ROWS 1000000000
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

static bool read_rows(gac_reader *r, const json_t *value, gac_lines *out)
{
    json_t *list;
    if (!gac_reader_array(r, value, "m", GAC_LINES_MAX_ROWS, &list))
        return false;
    size_t at_list = gac_reader_enter(r, ".m");
    out->n_rows = (int)json_array_size(list);
    if (out->n_rows == 0)
        return gac_reader_fault(r, "must have an entry");
    int64_t before = 0;
    for (int i = 0; i < out->n_rows; i++) {
        int64_t m;
        size_t at_row = gac_reader_enter(r, "[%d]", i);
        if (!gac_reader_to_size(r, json_array_get(list, (size_t)i), MAX_ROWS, &m))
            return false;
        if (m <= before)
            return gac_reader_fault(r, "must be larger than the entry before");
        out->log_rows[i] = log((double)m);
        before = m;
        gac_reader_leave(r, at_row);
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
        if (!json_is_array(part) || (int)json_array_size(part) != out->n_rows)
            return gac_reader_fault(r, "must be a list with one entry for every m");
        for (int j = 0; j < out->n_rows; j++) {
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
           read_parts(r, value, out) && read_rows(r, value, out) && read_factors(r, value, out);
}

double gac_lines_factor(const gac_lines *lines, double m, int64_t k)
{
    int part = 0, at = 0;
    if (lines->multiple == 0 || k % lines->multiple == 0)
        return 1;
    while (part < lines->n_parts && k % lines->part[part] != 0)
        part++;
    if (part == lines->n_parts)
        return 1;
    const double *factors = lines->log_factor[part], *rows = lines->log_rows;
    double x = log(m);
    if (x <= rows[0] || lines->n_rows == 1)
        return exp(factors[0]);
    while (at + 2 < lines->n_rows && rows[at + 1] < x)
        at++;
    double into = fmin((x - rows[at]) / (rows[at + 1] - rows[at]), 1);
    return exp(factors[at] + into * (factors[at + 1] - factors[at]));
}
