/* Rotary embeddings. Each pair of numbers of a head has a frequency;
 * transformers defines the rule for each type. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_reader.h"
#include "engine/engine_internal.h"
#include <gac/model.h>

typedef struct rope {
    const char *type;
    const json_t *settings; /* or NULL */
    double base;
    double max_length; /* max_position_embeddings */
    double original;   /* the length before the context was stretched */
    int64_t size;
} rope;

static gac_status bad_rope(const net *of, gac_error *err, const char *what)
{
    char q[256];
    return gac_error_set(err, GAC_BAD_INPUT, "%s/config.json: %s",
                         gac_quote(q, sizeof q, gac_checkpoint_path(of->checkpoint)), what);
}

/* Returns the length before the context was stretched. Phi-3 states it outside the settings. */
static double original_length(const net *of, const rope *r)
{
    static const char key[] = "original_max_position_embeddings";
    double inside = gac_json_number_or(r->settings, key, r->max_length);
    if (of->varies.original_length > 0)
        inside = (double)of->varies.original_length;
    return gac_json_number_or(of->config, key, inside);
}

/* Returns the object with the settings, or NULL. Families with two rotations state each
 * under the type of its layers, or one of them and only the base of the other. */
static const json_t *find_settings(const net *of, bool local)
{
    const char *key = gac_rotary_key(of->config);
    const json_t *settings = key ? json_object_get(of->config, key) : NULL;
    const json_t *own = json_object_get(settings, local ? "sliding_attention" : "full_attention");
    if (!of->varies.two_ropes || json_is_object(own))
        return of->varies.two_ropes ? own : settings;
    return local ? NULL : settings;
}

/* Finds the object with the settings, or NULL, and its type. */
static gac_status read_type(const net *of, bool local, const json_t **settings, const char **type,
                            gac_error *err)
{
    static const char *const objects[] = { "rope_parameters", "rope_scaling" };
    static const char *const keys[] = { "rope_type", "type" };
    *settings = find_settings(of, local);
    *type = NULL;
    for (int i = 0; i < 2; i++) {
        const json_t *value = json_object_get(of->config, objects[i]);
        if (value && !json_is_null(value) && !json_is_object(value))
            return bad_rope(of, err, "the rotary settings are not an object");
    }
    for (int i = 0; i < 2 && !*type; i++) {
        const json_t *value = json_object_get(*settings, keys[i]);
        if (value && !json_is_null(value) && !json_is_string(value))
            return bad_rope(of, err, "the type of the rotary embedding is not a string");
        *type = json_string_value(value);
    }
    if (!*type)
        *type = "default";
    if (strcmp(*type, "su") == 0) /* an older name of longrope */
        *type = "longrope";
    return GAC_OK;
}

/* Returns the base of the frequencies. */
static double base_of(const net *of, bool local, const json_t *settings)
{
    double outer =
        local ? gac_json_number_or(of->config, "rope_local_base_freq", of->varies.local_rope_base)
              : gac_json_number_or(of->config, "rope_theta", of->varies.rope_base);
    return gac_json_number_or(settings, "rope_theta", outer);
}

/* Returns the part of a head that is rotated. */
static double rotated_part(const net *of)
{
    const json_t *settings = find_settings(of, false);
    return gac_json_number_or(
        settings, "partial_rotary_factor",
        gac_json_number_or(of->config, "partial_rotary_factor", of->varies.partial_default));
}

int64_t gac_rope_size(const net *of, int64_t head_size)
{
    double part = rotated_part(of);
    return of->varies.partial && part > 0 && part <= 1 ? (int64_t)((double)head_size * part)
                                                       : head_size;
}

static gac_status read_rope(const net *of, bool local, int64_t size, rope *out, gac_error *err)
{
    static const char *const known[] = { "default", "linear",   "dynamic", "llama3",
                                         "yarn",    "longrope", NULL };
    char q[80], text[160];
    const json_t *settings;
    const char *type;
    gac_status status = read_type(of, local, &settings, &type, err);
    if (status != GAC_OK)
        return status;
    if (!gac_rotary_check(of->config, settings, type, text, sizeof text))
        return bad_rope(of, err, text);
    *out = (rope){ .type = type, .settings = settings, .size = size };
    out->base = base_of(of, local, settings);
    out->max_length = gac_json_number_or(of->config, "max_position_embeddings", 2048);
    if (!(out->max_length > 0))
        return bad_rope(of, err, "max_position_embeddings is not a length");
    double part = rotated_part(of);
    if (!of->varies.partial && part != 1)
        return bad_rope(of, err, "a partial rotation is not supported");
    if (!(part > 0 && part <= 1))
        return bad_rope(of, err, "partial_rotary_factor is not a part of a head");
    out->original = original_length(of, out);
    if (!(out->original > 0))
        return bad_rope(of, err, "original_max_position_embeddings is not a length");
    for (int i = 0; known[i]; i++)
        if (strcmp(known[i], type) == 0 && (!of->varies.longrope_only || i == 0 || !known[i + 1]))
            return GAC_OK;
    snprintf(text, sizeof text, "rotary embedding of type \"%s\" is not known%s",
             gac_quote(q, sizeof q, type), of->varies.longrope_only ? " in this family" : "");
    return bad_rope(of, err, text);
}

/* Returns the (fractional) pair that turns n_turns times over the original length. */
static double yarn_pair(const rope *r, double n_turns)
{
    double n = (double)r->size;
    return n * log(r->original / (n_turns * 2 * acos(-1))) / (2 * log(r->base));
}

static double yarn_frequency(const rope *r, int64_t i, double f)
{
    double low = yarn_pair(r, gac_json_number_or(r->settings, "beta_fast", 32));
    double high = yarn_pair(r, gac_json_number_or(r->settings, "beta_slow", 1));
    if (!json_is_false(json_object_get(r->settings, "truncate"))) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, (double)r->size - 1);
    if (low == high)
        high += 0.001;
    double ramp = fmin(fmax(((double)i - low) / (high - low), 0), 1);
    return f / gac_json_number_or(r->settings, "factor", 1) * ramp + f * (1 - ramp);
}

/* Returns yarn's scale of the softmax for one of its two mscale settings. */
static double yarn_stretch(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

/* Returns the factor on all cosines and sines. */
static double attention_factor(const rope *r)
{
    double stated = gac_json_number_or(r->settings, "attention_factor", 0);
    if (strcmp(r->type, "yarn") == 0 && stated == 0) {
        double factor = gac_json_number_or(r->settings, "factor", 1);
        double mscale = gac_json_number_or(r->settings, "mscale", 0);
        double all = gac_json_number_or(r->settings, "mscale_all_dim", 0);
        return mscale != 0 && all != 0 ? yarn_stretch(factor, mscale) / yarn_stretch(factor, all)
                                       : yarn_stretch(factor, 1);
    }
    if (strcmp(r->type, "longrope") == 0 && stated == 0) {
        double factor = gac_json_number_or(r->settings, "factor", r->max_length / r->original);
        return factor <= 1 ? 1 : sqrt(1 + log(factor) / log(r->original));
    }
    return stated != 0 && (strcmp(r->type, "yarn") == 0 || strcmp(r->type, "longrope") == 0)
               ? stated
               : 1;
}

static double frequency(const rope *r, const json_t *factors, int64_t i)
{
    double f = gac_rotary_frequency(r->type, r->settings, r->base, i, r->size);
    if (strcmp(r->type, "yarn") == 0)
        return yarn_frequency(r, i, f);
    if (strcmp(r->type, "longrope") == 0)
        return f / json_number_value(json_array_get(factors, (size_t)i));
    return f;
}

/* Returns how many positions one table of these settings serves. */
static double limit_of(const rope *r)
{
    bool one_table = json_equal(json_object_get(r->settings, "short_factor"),
                                json_object_get(r->settings, "long_factor"));
    return strcmp(r->type, "longrope") == 0 && !one_table ? fmin(r->max_length, r->original)
                                                          : r->max_length;
}

gac_status gac_rope_limit(const net *of, int64_t *n_positions, gac_error *err)
{
    rope r = { 0 }, local = { 0 };
    gac_status status = read_rope(of, false, 2, &r, err);
    if (status == GAC_OK && of->varies.two_ropes)
        status = read_rope(of, true, 2, &local, err);
    if (status != GAC_OK)
        return status;
    double limit = limit_of(&r);
    if (of->varies.two_ropes)
        limit = fmin(limit, limit_of(&local));
    if (!(limit >= 1 && limit < INT32_MAX))
        return bad_rope(of, err, "max_position_embeddings is not a length");
    *n_positions = (int64_t)limit;
    return GAC_OK;
}

/* Computes the frequencies (size / 2), rounded to F32 as in transformers. */
static gac_status frequencies(const net *of, const rope *r, float *out, gac_error *err)
{
    const json_t *factors = json_object_get(r->settings, "short_factor");
    int64_t n = r->size / 2;
    if (strcmp(r->type, "longrope") == 0 && json_array_size(factors) != (size_t)n)
        return bad_rope(of, err, "longrope's short_factor must have one number per pair of a head");
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)frequency(r, factors, i);
        if (!isfinite(out[i]) || out[i] < 0)
            return bad_rope(of, err, "the rotary settings give no finite frequencies");
    }
    return GAC_OK;
}

gac_status gac_rope_tables(const net *of, bool local, int64_t size, int64_t n_positions,
                           float **cosines, float **sines, gac_error *err)
{
    rope r;
    int64_t half = size / 2, n_bytes;
    gac_status status = read_rope(of, local, size, &r, err);
    if (status != GAC_OK)
        return status;
    if (!gac_mul_i64(half * (int64_t)sizeof(float), n_positions, &n_bytes))
        return gac_error_no_memory(err);
    float *f = malloc((size_t)half * sizeof *f + 1);
    float *c = malloc((size_t)n_bytes + 1), *s = malloc((size_t)n_bytes + 1);
    status = f && c && s ? frequencies(of, &r, f, err) : gac_error_no_memory(err);
    double factor = attention_factor(&r);
    if (status == GAC_OK && !(factor > 0 && factor < FLT_MAX))
        status = bad_rope(of, err, "the rotary settings give no finite attention factor");
    for (int64_t p = 0; p < n_positions && status == GAC_OK; p++)
        for (int64_t i = 0; i < half; i++) {
            float angle = (float)p * f[i];
            c[p * half + i] = (float)(cos(angle) * factor);
            s[p * half + i] = (float)(sin(angle) * factor);
        }
    free(f);
    if (status != GAC_OK) {
        free(c);
        free(s);
        return status;
    }
    *cosines = c;
    *sines = s;
    return GAC_OK;
}
