/* Translates the rotary settings of a GGUF file to those of Hugging Face. */
#include <math.h>
#include <string.h>

#include "checkpoint/convert_internal.h"

enum { MAX_HALF = 4096 };

/* Returns the length of the context before it was extended. */
static int64_t original_context(const convert_model *m, const char *architecture)
{
    int64_t original;
    int32_t key = gac_convert_key(m, architecture, "rope.scaling.original_context_length");
    return gac_gguf_integer(m->gguf, key, &original) && original > 0 ? original : m->context;
}

/* Returns the divisor of frequency i in Llama 3.1 and later. All of them use
 * the ratios 1 and 4. */
static double llama3_factor(double theta, int64_t i, int64_t half, double factor, double original)
{
    double wavelength = 6.283185307179586 * pow(theta, (double)i / (double)half);
    double low = original / 1.0, high = original / 4.0;
    if (wavelength < high)
        return 1;
    if (wavelength > low)
        return factor;
    double smooth = (original / wavelength - 1.0) / (4.0 - 1.0);
    return 1 / ((1 - smooth) / factor + smooth);
}

static bool is_llama3(const convert_model *m, const float *factors, int64_t half, double original)
{
    for (int64_t i = 0; i < half; i++) {
        double expected =
            llama3_factor(m->rope_theta, i, half, (double)factors[half - 1], original);
        if (!(fabs((double)factors[i] - expected) <= 1e-4 * expected))
            return false;
    }
    return true;
}

/* Reads the tensor in which llama.cpp keeps the divisors of the frequencies.
 * Divisors of Llama 3 become the type llama3. Any others become longrope, which
 * lists them. */
static gac_status take_factors(convert_model *m, int32_t index, gac_error *err)
{
    static const double originals[] = { 8192, 4096, 2048, 16384, 32768 };
    const gac_gguf_tensor *t = gac_gguf_tensor_at(m->gguf, index);
    int64_t half = m->head_dim / 2;
    float factors[MAX_HALF];
    if (t->n_elements != half || half > MAX_HALF)
        return gac_convert_bad(m, err, "tensor \"rope_freqs.weight\" has %lld elements, not %lld",
                               (long long)t->n_elements, (long long)half);
    gac_status status = gac_gguf_read(m->gguf, index, 0, half, factors, err);
    if (status != GAC_OK)
        return status;
    for (int64_t i = 0; i < half; i++)
        if (!(factors[i] > 0 && isfinite(factors[i])))
            return gac_convert_bad(m, err,
                                   "factor %lld of tensor \"rope_freqs.weight\" is not "
                                   "a positive number",
                                   (long long)i);
    for (size_t i = 0; i < sizeof originals / sizeof *originals && !m->rope_scaling; i++)
        if (is_llama3(m, factors, half, originals[i]))
            m->rope_scaling =
                json_pack("{s:s, s:f, s:f, s:f, s:I}", "rope_type", "llama3", "factor",
                          gac_convert_decimal((double)factors[half - 1]), "low_freq_factor", 1.0,
                          "high_freq_factor", 4.0, "original_max_position_embeddings",
                          (json_int_t)originals[i]);
    if (m->rope_scaling)
        return GAC_OK;
    json_t *list = json_array();
    for (int64_t i = 0; i < half; i++)
        json_array_append_new(list, json_real(gac_convert_decimal((double)factors[i])));
    m->rope_scaling =
        json_pack("{s:s, s:O, s:o, s:f, s:f, s:I}", "rope_type", "longrope", "short_factor", list,
                  "long_factor", list, "factor", 1.0, "attention_factor", 1.0,
                  "original_max_position_embeddings", (json_int_t)m->context);
    return m->rope_scaling ? GAC_OK : gac_error_no_memory(err);
}

static gac_status take_scaling(convert_model *m, const char *architecture, gac_error *err)
{
    const char *type = "none";
    size_t n_type = 4;
    double factor = 1;
    int32_t key = gac_convert_key(m, architecture, "rope.scaling.type");
    if (key >= 0 && !gac_gguf_string(m->gguf, key, &type, &n_type))
        return gac_convert_bad(m, err, "%s.rope.scaling.type is not a string", architecture);
    int32_t old = gac_convert_key(m, architecture, "rope.scale_linear");
    int32_t now = gac_convert_key(m, architecture, "rope.scaling.factor");
    if (key < 0 && old >= 0) {
        type = "linear";
        n_type = 6;
    }
    if (n_type == 4 && memcmp(type, "none", 4) == 0)
        return GAC_OK;
    bool yarn = n_type == 4 && memcmp(type, "yarn", 4) == 0;
    if (!yarn && (n_type != 6 || memcmp(type, "linear", 6) != 0))
        return gac_convert_bad(m, err,
                               "%s.rope.scaling.type is not converted; none, linear and yarn are",
                               architecture);
    if (!gac_gguf_number(m->gguf, now >= 0 ? now : old, &factor) ||
        !(factor >= 1 && isfinite(factor)))
        return gac_convert_bad(m, err, "no key %s.rope.scaling.factor of at least 1", architecture);
    if (factor == 1)
        return GAC_OK;
    m->rope_scaling = json_pack("{s:s, s:f}", "rope_type", yarn ? "yarn" : "linear", "factor",
                                gac_convert_decimal(factor));
    if (m->rope_scaling && yarn)
        json_object_set_new(m->rope_scaling, "original_max_position_embeddings",
                            json_integer(original_context(m, architecture)));
    return m->rope_scaling ? GAC_OK : gac_error_no_memory(err);
}

gac_status gac_convert_gguf_rope(convert_model *m, const char *architecture, gac_error *err)
{
    int64_t n_rotated = m->head_dim;
    int32_t theta = gac_convert_key(m, architecture, "rope.freq_base");
    int32_t rotated = gac_convert_key(m, architecture, "rope.dimension_count");
    m->rope_theta = 10000;
    if (theta >= 0 && (!gac_gguf_number(m->gguf, theta, &m->rope_theta) ||
                       !(m->rope_theta > 1 && isfinite(m->rope_theta))))
        return gac_convert_bad(m, err, "%s.rope.freq_base is not a number above 1", architecture);
    if (rotated >= 0 &&
        (!gac_gguf_integer(m->gguf, rotated, &n_rotated) || n_rotated != m->head_dim))
        return gac_convert_bad(m, err,
                               "%s.rope.dimension_count is not the head size %lld: partial "
                               "rotation is not converted",
                               architecture, (long long)m->head_dim);
    int32_t factors = gac_gguf_find_tensor(m->gguf, "rope_freqs.weight");
    gac_status status = take_scaling(m, architecture, err);
    if (status == GAC_OK && factors >= 0 && m->rope_scaling)
        return gac_convert_bad(m, err, "%s.rope.scaling beside tensor \"rope_freqs.weight\"",
                               architecture);
    return status == GAC_OK && factors >= 0 ? take_factors(m, factors, err) : status;
}
