/* Random numbers that are the same everywhere for the same seed: splitmix64. */
#ifndef GAC_BASE_SPLITMIX_H
#define GAC_BASE_SPLITMIX_H

#include <stdint.h>

/* The next of the sequence; *state starts as the seed. */
static inline uint64_t gac_splitmix64(uint64_t *state)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

#endif
