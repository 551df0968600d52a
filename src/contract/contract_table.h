/* Times measured on a grid of three sizes, and interpolation between them.
 * Interpolation is linear in the logarithms of sizes and time, because over
 * long ranges the time of a kernel is a power of each size. */
#ifndef GAC_CONTRACT_TABLE_H
#define GAC_CONTRACT_TABLE_H

#include <gac/contract.h>

/* How time grows outside the measured sizes. */
typedef struct gac_table_kind {
    int extend_axis; /* extends a missing time from the one before it along this axis; -1: none */
    double power[3]; /* time grows by the ratio of sizes to this power, also beyond the last size */
    bool is_straight; /* along the last axis, time is linear in the size; otherwise in logarithms */
} gac_table_kind;

extern const gac_table_kind gac_grid_kind, gac_every_n_kind, gac_prefill_kind, gac_decode_kind;

bool gac_table_has(const gac_contract_table *table, int axis, int64_t size);

/* Returns the time at sizes. Below the first size of an axis, it returns the
 * time of the first size, which is mostly that of launching. NaN if a time is
 * missing and nothing extends it. */
double gac_table_us(const gac_contract_table *table, const gac_table_kind *kind,
                    const double sizes[3]);

#endif
