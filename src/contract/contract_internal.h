/* What the files of the contract share. */
#ifndef GAC_CONTRACT_INTERNAL_H
#define GAC_CONTRACT_INTERNAL_H

#include "base/json_reader.h"

#include <gac/contract.h>

#define GAC_MAX_CONTRACT_BYTES ((size_t)16 << 20)

/* The contracts compiled into the library, by name; tools/contract/bundle.c writes them. */
extern const gac_contract *const gac_bundled_contracts[];
extern const int gac_n_bundled_contracts;

/* Turns the tree of a gac.contract/1 file into that of a gac.contract/2 file. */
bool gac_contract_upgrade(gac_reader *r, json_t *root);

/* Checks what fields say of each other. */
bool gac_contract_check(gac_reader *r, const gac_contract *contract);

/* Orders of points, for qsort and bsearch; the time is no part. */
int gac_contract_point_order(const void *a, const void *b);
int gac_contract_sdpa_point_order(const void *a, const void *b);

/* The first tier whose multiple divides size; n is at least 1, the last multiple is 1. */
int gac_tiers_pick(const gac_contract_tier *tiers, int64_t size);
/* The tiers of a dtype at an axis, best first. */
const gac_contract_tier *gac_contract_tiers(const gac_contract *contract, gac_dtype dtype,
                                            gac_op_axis seen, size_t *n_tiers);
/* The rules that serve dtype, or NULL. */
const gac_contract_gemm *gac_contract_gemm_rules(const gac_contract *contract, gac_dtype dtype);
const gac_contract_sdpa *gac_contract_sdpa_rules(const gac_contract *contract, gac_dtype dtype);

/* The exact point of a GEMM, or NULL. */
const gac_contract_point *gac_contract_find_point(const gac_contract *contract, gac_dtype dtype,
                                                  int64_t m, int64_t n, int64_t k);
/* Time of attention at the reference shape if this tier served head; NaN without times. */
double gac_contract_head_us(const gac_contract_sdpa *sdpa, int tier, int64_t head);

#endif
