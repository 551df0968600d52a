#include <gac/model.h>

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json_reader.h"

const char *gac_rotary_key(const json_t *config)
{
    if (json_object_size(json_object_get(config, "rope_scaling")) > 0)
        return "rope_scaling";
    return json_is_object(json_object_get(config, "rope_parameters")) ? "rope_parameters" : NULL;
}

const char *gac_rotary_type(const json_t *config)
{
    const char *key = gac_rotary_key(config);
    const json_t *settings = key ? json_object_get(config, key) : NULL;
    const char *type = json_string_value(json_object_get(settings, "rope_type"));
    if (!type)
        type = json_string_value(json_object_get(settings, "type"));
    return type ? type : "default";
}

bool gac_rotary_can_restate(const char *type)
{
    return strcmp(type, "default") == 0 || strcmp(type, "linear") == 0 ||
           strcmp(type, "llama3") == 0;
}

bool gac_rotary_check(const json_t *config, const json_t *settings, const char *type, char *text,
                      size_t size)
{
    static const struct {
        const char *key, *needed; /* the rotary types that need the key */
    } numbers[] = { { "factor", " linear dynamic llama3 yarn " },
                    { "low_freq_factor", " llama3 " },
                    { "high_freq_factor", " llama3 " },
                    { "original_max_position_embeddings", " llama3 " },
                    { "beta_fast", "" },
                    { "beta_slow", "" },
                    { "mscale", "" },
                    { "mscale_all_dim", "" },
                    { "attention_factor", "" },
                    { "rope_theta", "" },
                    { "partial_rotary_factor", "" },
                    { "max_position_embeddings", "" } };
    char spaced[32];
    snprintf(spaced, sizeof spaced, " %s ", type);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        const char *key = numbers[i].key;
        const json_t *inner = json_object_get(settings, key);
        const json_t *outer = json_object_get(config, key);
        bool lacks = (!inner || json_is_null(inner)) && strstr(numbers[i].needed, spaced);
        if (!lacks && (!inner || json_is_null(inner) || json_is_number(inner)) &&
            (!outer || json_is_null(outer) || json_is_number(outer)))
            continue;
        if (lacks)
            snprintf(text, size, "rotary embedding of type %s needs \"%s\"", type, key);
        else
            snprintf(text, size, "\"%s\" is not a number", key);
        return false;
    }
    return true;
}

/* Stretches long wavelengths by factor, keeps short ones, and interpolates
 * between. */
static double llama3_frequency(const json_t *settings, double f)
{
    double factor = gac_json_number_or(settings, "factor", 8);
    double low = gac_json_number_or(settings, "low_freq_factor", 1);
    double high = gac_json_number_or(settings, "high_freq_factor", 4);
    double length = gac_json_number_or(settings, "original_max_position_embeddings", 8192);
    double wave = 2 * acos(-1) / f;
    if (wave < length / high)
        return f;
    if (wave > length / low)
        return f / factor;
    double smooth = (length / wave - low) / (high - low);
    return (1 - smooth) * f / factor + smooth * f;
}

double gac_rotary_frequency(const char *type, const json_t *settings, double base, int64_t i,
                            int64_t size)
{
    /* Each step in F32, as in transformers: at position 1000, the last bit is 1e-4 of an angle. */
    const float part = (float)(2 * i) / (float)size;
    double f = (double)(1 / (float)pow(base, (double)part));
    if (strcmp(type, "linear") == 0)
        return f / gac_json_number_or(settings, "factor", 1);
    return strcmp(type, "llama3") == 0 ? llama3_frequency(settings, f) : f;
}
