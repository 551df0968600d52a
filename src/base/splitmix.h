/* Random numbers (splitmix64). A seed gives the same numbers on every machine. */
#ifndef GAC_BASE_SPLITMIX_H
#define GAC_BASE_SPLITMIX_H

#include <stdint.h>

/* Returns the next number of the sequence. *state starts as the seed. */
static inline uint64_t gac_splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

/* Returns number index of the seed's sequence. */
static inline uint64_t gac_random_bits(uint64_t seed, uint64_t index)
{
    uint64_t z = seed * 0xD1342543DE82EF95U + (index + 1) * 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
}

/* Returns the scaled sum of four uniform numbers: mean 0, variance 1, within
 * 3.5. That is close enough to normal for operands, equal on every machine, and
 * bounded, so that no format overflows. */
static inline double gac_random_normal(uint64_t seed, uint64_t index)
{
    uint64_t bits = gac_random_bits(seed, index);
    double sum = 0;
    for (int i = 0; i < 4; i++)
        sum += ((double)(bits >> 16 * i & 0xFFFF) + 0.5) / 65536 - 0.5;
    return sum * 1.7320508075688772; /* the sum has variance 4/12 */
}

#endif
