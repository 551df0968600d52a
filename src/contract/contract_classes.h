/* Two contracts that are compared, and the classes of sizes that both treat alike. */
#ifndef GAC_CONTRACT_CLASSES_H
#define GAC_CONTRACT_CLASSES_H

#include "contract/contract_rules.h"

enum { GAC_MAX_CLASSES = GAC_MAX_TIERS * 4 };

/* One of the two that are compared. */
typedef struct gac_side {
    const gac_contract *contract;
    gac_dtype dtype, served; /* asked for, and whose rules serve it */
    const gac_dtype_rules *rules;
} gac_side;

/* Where a side puts a size: its own tier and, where that is not served, the tier
 * of the dtype that runs instead. */
typedef struct gac_slot {
    const gac_tiers *instead; /* NULL where served */
    int tier, instead_tier;
} gac_slot;

/* Sizes that fall into one slot of each side. */
typedef struct gac_size_class {
    gac_slot in_a, in_b;
    int64_t example;
    char text[96]; /* "multiples of 8 but not of 16" */
} gac_size_class;

const gac_tiers *gac_side_tiers(const gac_side *s, gac_op_axis seen);
bool gac_side_aligns(const gac_side *s, gac_op_axis seen, int64_t size);

/* The classes there are, each with an example near a size that is common; returns how many. */
int gac_find_classes(const gac_side *a, const gac_side *b, gac_op_axis seen,
                     gac_size_class out[GAC_MAX_CLASSES]);
/* Which of n classes size is in; -1 for none of them. */
int gac_class_of(const gac_side *a, const gac_side *b, gac_op_axis seen, int64_t size,
                 const gac_size_class *classes, int n);

#endif
