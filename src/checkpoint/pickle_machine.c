/* The stack of the interpreter of pickles, its memory and its input. */
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/pickle_machine.h"

/* Sets the error "FILE: offset N: what is wrong". */
gac_status gac_pickle_bad(const pickle_machine *m, const char *format, ...)
{
    char q[256], what[200];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return gac_error_set(m->err, GAC_BAD_INPUT, "%s: offset %llu: %s",
                         gac_quote(q, sizeof q, m->path), (unsigned long long)(m->base + m->at),
                         what);
}

/* Memory. */

/* Counts memory against the limit. */
gac_status gac_pickle_charge(pickle_machine *m, size_t n_bytes)
{
    if (n_bytes > GAC_MAX_PICKLE_MEMORY - m->out->memory->n_bytes)
        return gac_pickle_bad(m, "the values of this pickle need more than %zu MiB of memory",
                              GAC_MAX_PICKLE_MEMORY >> 20);
    m->out->memory->n_bytes += n_bytes;
    return GAC_OK;
}

gac_status gac_pickle_allocate(pickle_machine *m, size_t n_bytes, void *out)
{
    gac_status status = gac_pickle_charge(m, n_bytes);
    void *memory = status == GAC_OK ? gac_arena_alloc(&m->out->memory->arena, n_bytes) : NULL;
    if (status == GAC_OK && !memory)
        return gac_error_no_memory(m->err);
    memcpy(out, &memory, sizeof memory);
    return status;
}

/* Makes room for n elements in a malloc'ed array. New elements are zero. */
gac_status gac_pickle_reserve(pickle_machine *m, void *array, size_t *capacity, size_t n,
                              size_t element)
{
    void *before, *after;
    if (n <= *capacity)
        return GAC_OK;
    size_t wanted = n < *capacity * 2 ? *capacity * 2 : n < 64 ? 64 : n;
    gac_status status = gac_pickle_charge(m, (wanted - *capacity) * element);
    if (status != GAC_OK)
        return status;
    memcpy(&before, array, sizeof before);
    after = reallocarray(before, wanted, element);
    if (!after)
        return gac_error_no_memory(m->err);
    memset((char *)after + *capacity * element, 0, (wanted - *capacity) * element);
    memcpy(array, &after, sizeof after);
    *capacity = wanted;
    return GAC_OK;
}

/* The stack. */

gac_status gac_pickle_push(pickle_machine *m, pickle_value *value)
{
    gac_status status =
        gac_pickle_reserve(m, &m->stack, &m->stack_capacity, m->n_stack + 1, sizeof *m->stack);
    if (status == GAC_OK)
        m->stack[m->n_stack++] = value;
    return status;
}

gac_status gac_pickle_push_new(pickle_machine *m, pickle_kind kind, pickle_value **out)
{
    pickle_value *value = NULL;
    gac_status status = gac_pickle_allocate(m, sizeof *value, &value);
    if (status == GAC_OK) {
        value->kind = (uint8_t)kind;
        value->at = (uint32_t)m->at;
        status = gac_pickle_push(m, value);
    }
    *out = value;
    return status;
}

gac_status gac_pickle_push_integer(pickle_machine *m, pickle_kind kind, int64_t integer)
{
    pickle_value *value;
    gac_status status = gac_pickle_push_new(m, kind, &value);
    if (status == GAC_OK)
        value->integer = integer;
    return status;
}

/* Checks that n values lie above the last mark. */
gac_status gac_pickle_need(const pickle_machine *m, size_t n)
{
    size_t floor = m->n_marks ? m->marks[m->n_marks - 1] : 0;
    return m->n_stack - floor >= n
               ? GAC_OK
               : gac_pickle_bad(m, "opcode 0x%02x needs more values than the stack has",
                                m->bytes[m->at]);
}

/* Returns the n-th value from the top; 1 is the top. */
pickle_value *gac_pickle_top(const pickle_machine *m, size_t n)
{
    return m->stack[m->n_stack - n];
}

gac_status gac_pickle_pop_mark(pickle_machine *m, size_t *first)
{
    *first = 0;
    if (m->n_marks == 0)
        return gac_pickle_bad(m, "opcode 0x%02x needs a mark, and there is none", m->bytes[m->at]);
    *first = m->marks[--m->n_marks];
    return GAC_OK;
}

/* Takes n bytes of the pickle. */
gac_status gac_pickle_take(pickle_machine *m, uint64_t n, const uint8_t **out)
{
    *out = m->bytes + m->position;
    if (n > m->n_bytes - m->position) {
        m->out->ended_early = true;
        return gac_pickle_bad(m, "opcode 0x%02x wants %llu bytes, and %zu are left",
                              m->bytes[m->at], (unsigned long long)n, m->n_bytes - m->position);
    }
    m->position += (size_t)n;
    return GAC_OK;
}

/* Takes a little-endian number of n bytes, at most 8. */
gac_status gac_pickle_take_number(pickle_machine *m, size_t n, uint64_t *out)
{
    const uint8_t *bytes;
    gac_status status = gac_pickle_take(m, n, &bytes);
    *out = 0;
    for (size_t i = n; status == GAC_OK && i-- > 0;)
        *out = *out << 8 | bytes[i];
    return status;
}
