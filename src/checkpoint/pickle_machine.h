/* Shared by the files that read pickles. */
#ifndef GAC_CHECKPOINT_PICKLE_MACHINE_H
#define GAC_CHECKPOINT_PICKLE_MACHINE_H

#include "checkpoint/pickle.h"

typedef struct pickle_machine {
    pickle *out;
    const char *path;
    uint64_t base;
    const uint8_t *bytes;
    size_t n_bytes, position, at; /* at: offset of the current opcode */
    pickle_value **stack;
    size_t n_stack, stack_capacity;
    size_t *marks; /* heights of the stack */
    size_t n_marks, mark_capacity;
    pickle_value **memo;
    size_t n_memo, memo_capacity;
    bool stopped;
    gac_error *err;
} pickle_machine;

/* Sets the error "FILE: offset N: what is wrong", about the current opcode. */
gac_status gac_pickle_bad(const pickle_machine *m, const char *format, ...) GAC_PRINTF(2, 3);

/* Counts memory against the limit. */
gac_status gac_pickle_charge(pickle_machine *m, size_t n_bytes);
/* Sets the pointer at out to new memory of the pickle. */
gac_status gac_pickle_allocate(pickle_machine *m, size_t n_bytes, void *out);
/* Makes room for n elements in the malloc'ed array at array. New elements are
 * zero. */
gac_status gac_pickle_reserve(pickle_machine *m, void *array, size_t *capacity, size_t n,
                              size_t element);

/* Takes n bytes of the pickle, or a little-endian number of n bytes, at most 8. */
gac_status gac_pickle_take(pickle_machine *m, uint64_t n, const uint8_t **out);
gac_status gac_pickle_take_number(pickle_machine *m, size_t n, uint64_t *out);

gac_status gac_pickle_push(pickle_machine *m, pickle_value *value);
gac_status gac_pickle_push_new(pickle_machine *m, pickle_kind kind, pickle_value **out);
gac_status gac_pickle_push_integer(pickle_machine *m, pickle_kind kind, int64_t integer);
/* Checks that n values lie above the last mark. */
gac_status gac_pickle_need(const pickle_machine *m, size_t n);
/* Returns the n-th value from the top; 1 is the top. */
pickle_value *gac_pickle_top(const pickle_machine *m, size_t n);
/* Removes the last mark. *first is the height of the stack there. */
gac_status gac_pickle_pop_mark(pickle_machine *m, size_t *first);
/* Replaces the values from height first on by a container of them. */
gac_status gac_pickle_gather(pickle_machine *m, pickle_kind kind, size_t first);

/* Execute an opcode. *done is false if it is not one of theirs. */
gac_status gac_pickle_step_scalar(pickle_machine *m, uint8_t opcode, bool *done);
gac_status gac_pickle_step_container(pickle_machine *m, uint8_t opcode, bool *done);

#endif
