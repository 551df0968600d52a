#include <gac/base.h>

bool gac_mul_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool gac_add_i64(int64_t a, int64_t b, int64_t *out)
{
    int64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool gac_mul_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_mul_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool gac_add_u64(uint64_t a, uint64_t b, uint64_t *out)
{
    uint64_t r;
    if (__builtin_add_overflow(a, b, &r))
        return false;
    *out = r;
    return true;
}

bool gac_round_up_u64(uint64_t value, uint64_t unit, uint64_t *out)
{
    if (unit == 0)
        return false;
    uint64_t rest = value % unit;
    return gac_add_u64(value, rest ? unit - rest : 0, out);
}

bool gac_round_up_i64(int64_t value, int64_t unit, int64_t *out)
{
    if (unit < 1 || value < 0)
        return false;
    int64_t rest = value % unit;
    return gac_add_i64(value, rest ? unit - rest : 0, out);
}

bool gac_lcm_i64(int64_t a, int64_t b, int64_t *out)
{
    if (a < 1 || b < 1)
        return false;
    int64_t x = a, y = b;
    while (y) {
        int64_t rest = x % y;
        x = y;
        y = rest;
    }
    return gac_mul_i64(a / x, b, out);
}
