#include "contract_measured.h"

#include <gac/base.h>

#include <math.h>
#include <stdio.h>

#define JUMP 1.1        /* of a head's time over the one before */
enum { MAX_SHOWN = 8 }; /* of a line's steps */

static long long size_at(const json_t *object, const char *key)
{
    return (long long)json_integer_value(json_object_get(object, key));
}

static void print_list(const json_t *at, const json_t *pct)
{
    size_t n = json_array_size(at);
    for (size_t i = 0; i < n && i < MAX_SHOWN; i++)
        printf("%s %lld +%.3g %%", i ? "," : "",
               (long long)json_integer_value(json_array_get(at, i)),
               json_number_value(json_array_get(pct, i)));
    if (n > MAX_SHOWN)
        printf(" and %zu more", n - MAX_SHOWN);
    printf("\n");
}

static void print_head_steps(const gac_contract *contract, gac_dtype dtype, const char *label)
{
    enum { MAX_HEAD = 256 };
    int64_t unit = gac_contract_multiple(contract, GAC_OP_SDPA_HEAD, dtype);
    json_t *at = json_array(), *pct = json_array();
    double before_us = NAN;
    for (int64_t head = unit; unit > 0 && head <= MAX_HEAD; head += unit) {
        const gac_sdpa_shape shape = { 4, 32, 32, 2048, 2048, head, head, false };
        double us = gac_contract_sdpa_us(contract, dtype, &shape);
        if (us > before_us * JUMP) {
            json_array_append_new(at, json_integer(head));
            json_array_append_new(pct, json_real(100 * (us / before_us - 1)));
        }
        before_us = us;
    }
    if (json_array_size(at) > 0) {
        printf("  %-22s head, 2048 tokens:", label);
        print_list(at, pct);
    }
    json_decref(at);
    json_decref(pct);
}

void contract_print_steps(const gac_contract *contract, const json_t *whole, gac_dtype dtype)
{
    const char *label = "jumps at aligned";
    const json_t *gemm = json_object_get(json_object_get(whole, "gemm"), gac_dtype_name(dtype));
    size_t i;
    json_t *line;
    json_array_foreach(json_object_get(gemm, "steps"), i, line) {
        const char *place = json_string_value(json_object_get(line, "place"));
        const json_t *at = json_object_get(line, "at");
        if (!place || json_array_size(at) == 0)
            continue;
        if (place[0] == 'm')
            printf("  %-22s rows, n %lld, k %lld:", label, size_at(line, "n"), size_at(line, "k"));
        else
            printf("  %-22s n, %lld tokens, k %lld:", label, size_at(line, "m"),
                   size_at(line, "other"));
        print_list(at, json_object_get(line, "pct"));
        label = "";
    }
    print_head_steps(contract, dtype, label);
}

void contract_print_measured(const json_t *about)
{
    char q[80], r[80];
    const char *name, *sep = "\nholds for ";
    json_t *version;
    const json_t *noise = json_object_get(about, "noise");
    json_object_foreach(json_object_get(about, "stack"), name, version) {
        const char *text = json_string_value(version);
        if (text) {
            printf("%s%s %s", sep, gac_quote(q, sizeof q, name), gac_quote(r, sizeof r, text));
            sep = ", ";
        }
    }
    if (sep[0] == ',')
        printf("\n");
    if (json_is_number(json_object_get(noise, "median_pct")))
        printf("noise of %lld points: median %.2g %%, 95th percentile %.2g %%; %lld samples "
               "discarded; clock %lld to %lld MHz\n",
               size_at(noise, "n_points"), json_number_value(json_object_get(noise, "median_pct")),
               json_number_value(json_object_get(noise, "p95_pct")), size_at(noise, "n_discarded"),
               size_at(noise, "clock_mhz_min"), size_at(noise, "clock_mhz_max"));
}
