/* What `gac contract show` prints of how a contract was measured. */
#ifndef GAC_CLI_CONTRACT_MEASURED_H
#define GAC_CLI_CONTRACT_MEASURED_H

#include <gac/contract.h>
#include <jansson.h>

/* Where time jumps from one aligned size to the next: GEMMs by the contract's own list in
 * whole, its file, and heads. */
void contract_print_steps(const gac_contract *contract, const json_t *whole, gac_dtype dtype);

/* The versions it holds for, and the noise of its samples. */
void contract_print_measured(const json_t *about);

#endif
