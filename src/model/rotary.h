/* The rules by which a config states the frequencies of rotary embeddings that
 * both running a model and repairing one go by. */
#ifndef GAC_MODEL_ROTARY_H
#define GAC_MODEL_ROTARY_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The key of the settings that count: rope_scaling where there are any in it, as
 * in transformers, else rope_parameters. NULL where a config has neither. */
const char *gac_rotary_key(const json_t *config);

/* The type of rotary embedding that a config states: default where it states none.
 * Borrowed. */
const char *gac_rotary_type(const json_t *config);

/* Whether a repair can state the frequencies of that type for another head size. */
bool gac_rotary_can_restate(const char *type);

/* What a config or its rotary settings, which may be NULL, state has to be a
 * number, and what the type needs has to be stated: a default in its place would
 * be wrong. False with the fault in text. */
bool gac_rotary_check(const json_t *config, const json_t *settings, const char *type, char *text,
                      size_t size);

/* Frequency of pair i of a head of size numbers, by the rule of type linear or
 * llama3 with its settings, which may be NULL; of any other type the plain one,
 * base to the power of -2 i / size. */
double gac_rotary_frequency(const char *type, const json_t *settings, double base, int64_t i,
                            int64_t size);

#endif
