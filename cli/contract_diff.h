/* Compares two contracts. */
#ifndef GAC_CLI_CONTRACT_DIFF_H
#define GAC_CLI_CONTRACT_DIFF_H

#include <gac/contract.h>

#include <jansson.h>

/* Compares every dtype that both have. Returns {"a", "b", "stack": {"a", "b"},
 * "compared": [{"dtype", "tiers": [{"place", "a", "b"}], "noise_pct",
 * "n_shapes", "n_slower", "n_faster", "b_over_a", "worst": [{"shape", "a_us",
 * "b_us", "b_over_a"}]}]}, which docs/contract.md explains. The caller owns it.
 * NULL if memory is short. */
json_t *contract_diff(const gac_contract *a, const gac_contract *b);

#endif
