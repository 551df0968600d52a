#include "model/rotary.h"

#include <math.h>
#include <string.h>

#include "base/json_reader.h"

/* Long waves are stretched by factor, short ones stay, those between are mixed. */
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
    double f = pow(base, -2.0 * (double)i / (double)size);
    if (strcmp(type, "linear") == 0)
        return f / gac_json_number_or(settings, "factor", 1);
    return strcmp(type, "llama3") == 0 ? llama3_frequency(settings, f) : f;
}
