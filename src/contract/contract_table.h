/* Times measured over a grid of three sizes, and what they say of the sizes
 * between: linear in the logarithms of sizes and time, because kernels are a
 * power of each size over long stretches. */
#ifndef GAC_CONTRACT_TABLE_H
#define GAC_CONTRACT_TABLE_H

#include <gac/contract.h>

/* How time grows where nothing was measured. */
typedef struct gac_table_kind {
    int extend_axis;  /* a missing time follows from the one before it along this axis; -1: none */
    double power[3];  /* time grows by the ratio of sizes to this power, so too past the end */
    bool is_straight; /* along the last axis time itself is a line, else its logarithm */
} gac_table_kind;

extern const gac_table_kind gac_grid_kind, gac_every_n_kind, gac_prefill_kind, gac_decode_kind;

bool gac_table_has(const gac_contract_table *table, int axis, int64_t size);

/* Time at sizes. Below the first size of an axis it is that of the first: what
 * is left then is launching. NaN where a time is missing and nothing extends it. */
double gac_table_us(const gac_contract_table *table, const gac_table_kind *kind,
                    const double sizes[3]);

#endif
