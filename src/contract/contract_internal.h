/* Shared by the files of this room. */
#ifndef GAC_CONTRACT_INTERNAL_H
#define GAC_CONTRACT_INTERNAL_H

#include "base/json_reader.h"

#include <gac/contract.h>

#define GAC_MAX_CONTRACT_BYTES ((size_t)16 << 20)

/* The contracts compiled into the library, sorted by name.
 * tools/contract/bundle.c writes them. */
extern const gac_contract *const gac_bundled_contracts[];
extern const int gac_n_bundled_contracts;

/* Turns the tree of a gac.contract/1 file into that of a gac.contract/2 file. */
bool gac_contract_upgrade(gac_reader *r, json_t *root);

/* Checks the fields of a contract against each other. */
bool gac_contract_check(gac_reader *r, const gac_contract *contract);

/* Compare two points for qsort and bsearch. Their times are ignored. */
int gac_contract_point_order(const void *a, const void *b);
int gac_contract_sdpa_point_order(const void *a, const void *b);

/* Returns the first tier whose multiple divides size. There is one, because the
 * last multiple is 1. */
int gac_tiers_pick(const gac_contract_tier *tiers, int64_t size);
/* Returns the tiers of a dtype on an axis, best first. */
const gac_contract_tier *gac_contract_tiers(const gac_contract *contract, gac_dtype dtype,
                                            gac_op_axis axis, size_t *n_tiers);
/* Return the rules that apply to dtype, or NULL. */
const gac_contract_gemm *gac_contract_gemm_rules(const gac_contract *contract, gac_dtype dtype);
const gac_contract_sdpa *gac_contract_sdpa_rules(const gac_contract *contract, gac_dtype dtype);

/* Returns the measured point of exactly this GEMM, or NULL. */
const gac_contract_point *gac_contract_find_point(const gac_contract *contract, gac_dtype dtype,
                                                  int64_t m, int64_t n, int64_t k);
/* Returns the time of attention at the reference shape if this tier served
 * head; NaN without times. */
double gac_contract_head_us(const gac_contract_sdpa *sdpa, int tier, int64_t head);

#endif
