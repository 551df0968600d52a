/* What must hold of anything that opened, whatever the input was. A broken
 * promise traps, which the fuzzer reports as a finding. */
#ifndef GAC_FUZZ_CHECKS_H
#define GAC_FUZZ_CHECKS_H

#include <gac/checkpoint.h>
#include <gac/model.h>

#define FUZZ_CHECK(condition) \
    do { \
        if (!(condition)) \
            __builtin_trap(); \
    } while (0)

/* A refusal has a status of its own and one printable line. */
void fuzz_check_refusal(gac_status status, const gac_error *err);

/* Tensors lie inside their files, do not overlap, are found by their names,
 * and their first and last bytes can be read. */
void fuzz_check_checkpoint(gac_checkpoint *checkpoint);

/* Dimensions name places that exist and fit, operators name dimensions. */
void fuzz_check_model(const gac_model *model);
/* The engine takes the model, or refuses it in one line. */
void fuzz_check_engine(const gac_model *model);

#endif
