#include <gac/plan.h>

#include <string.h>

#include "base/arguments.h"

static const char *const names[GAC_STRATEGY_COUNT] = {
    [GAC_STRATEGY_MINIMAL] = "minimal",
    [GAC_STRATEGY_MULTIPLE_16] = "multiple-16",
    [GAC_STRATEGY_PREDEFINED] = "predefined",
    [GAC_STRATEGY_TRADEOFF] = "tradeoff",
};

const char *gac_strategy_name(gac_strategy strategy)
{
    return (unsigned)strategy < GAC_STRATEGY_COUNT ? names[strategy] : "unknown";
}

bool gac_strategy_parse(const char *name, gac_strategy *out)
{
    if (strcmp(name, "optimal") == 0) /* its name in version 0.1 */
        name = names[GAC_STRATEGY_MULTIPLE_16];
    for (int i = 0; i < GAC_STRATEGY_COUNT; i++)
        if (strcmp(names[i], name) == 0) {
            *out = (gac_strategy)i;
            return true;
        }
    return false;
}

/* Rounds up to the next size for which attention kernels have a template. */
static bool predefined(int64_t size, int64_t *out)
{
    static const int64_t sizes[] = { 32, 64, 96, 112, 128, 160, 192, 224, 256 };
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i] >= size) {
            *out = sizes[i];
            return true;
        }
    return gac_round_up_i64(size, 16, out);
}

static bool tradeoff(int64_t size, double max_overhead_pct, int64_t *out)
{
    int64_t candidate;
    *out = size;
    for (int64_t unit = 8; unit <= 32; unit *= 2) {
        if (!gac_round_up_i64(size, unit, &candidate))
            return false;
        if (100.0 * (double)(candidate - size) / (double)size < max_overhead_pct) {
            *out = candidate;
            return true;
        }
    }
    return true;
}

gac_status gac_strategy_apply(gac_strategy strategy, int64_t size, double max_overhead_pct,
                              int64_t *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, out);
    GAC_REFUSE(err, (unsigned)strategy >= GAC_STRATEGY_COUNT, "there is no such strategy");
    if (size < 1)
        return gac_error_set(err, GAC_USAGE, "a size must be at least 1, not %lld",
                             (long long)size);
    bool fits = false;
    switch (strategy) {
    case GAC_STRATEGY_MINIMAL:
        fits = gac_round_up_i64(size, 8, out);
        break;
    case GAC_STRATEGY_MULTIPLE_16:
        fits = gac_round_up_i64(size, 16, out);
        break;
    case GAC_STRATEGY_PREDEFINED:
        fits = predefined(size, out);
        break;
    case GAC_STRATEGY_TRADEOFF:
        fits = tradeoff(size, max_overhead_pct, out);
        break;
    case GAC_STRATEGY_COUNT:
        break;
    }
    return fits ? GAC_OK
                : gac_error_set(err, GAC_USAGE, "size %lld cannot be rounded up without overflow",
                                (long long)size);
}
