/* The interpreter of pickles: a stack, a memo and one step for each opcode.
 *
 * All memory is bounded: a value costs at least one byte of the pickle, the
 * memo has no holes beyond it, and everything counts against one limit. Steps
 * take constant time, or time for the items that they take off the stack. No
 * step calls itself, so nesting costs no stack of ours. */
#include <stdlib.h>
#include <string.h>

#include "checkpoint/pickle_machine.h"

enum { N_OPCODES_OF_PROTOCOL_0 = 9 };

/* Objects. */

/* Replaces the n values on top of the stack by a value with parts. */
static gac_status push_parts(pickle_machine *m, pickle_kind kind, size_t n, pickle_parts parts)
{
    pickle_value *value;
    gac_status status = gac_pickle_need(m, n);
    if (status != GAC_OK)
        return status;
    m->n_stack -= n;
    status = gac_pickle_push_new(m, kind, &value);
    if (status == GAC_OK)
        status = gac_pickle_allocate(m, sizeof parts, &value->parts);
    if (status == GAC_OK)
        *value->parts = parts;
    return status;
}

/* Takes text up to a newline, as a new value on the stack. */
static gac_status push_line(pickle_machine *m)
{
    pickle_value *value;
    const uint8_t *line, *start = m->bytes + m->position;
    const uint8_t *end = memchr(start, '\n', m->n_bytes - m->position);
    gac_status status = gac_pickle_take(
        m, end ? (uint64_t)(end - start) + 1 : (uint64_t)(m->n_bytes - m->position) + 1, &line);
    if (status == GAC_OK)
        status = gac_pickle_push_new(m, PICKLE_TEXT, &value);
    if (status == GAC_OK) {
        value->text = (const char *)line;
        value->n = (uint32_t)(end - start);
    }
    return status;
}

/* Makes a global of the two texts on top of the stack. */
static gac_status push_global(pickle_machine *m)
{
    gac_status status = gac_pickle_need(m, 2);
    if (status == GAC_OK &&
        (gac_pickle_top(m, 1)->kind != PICKLE_TEXT || gac_pickle_top(m, 2)->kind != PICKLE_TEXT))
        return gac_pickle_bad(m, "the name of a class is not a text");
    return status == GAC_OK
               ? push_parts(m, PICKLE_GLOBAL, 2,
                            (pickle_parts){ gac_pickle_top(m, 2), gac_pickle_top(m, 1), NULL })
               : status;
}

/* Makes an object of a callable and a tuple of arguments; n is 3 if a dict of
 * further arguments lies above them. */
static gac_status push_object(pickle_machine *m, size_t n)
{
    gac_status status = gac_pickle_need(m, n);
    if (status != GAC_OK)
        return status;
    pickle_value *callable = gac_pickle_top(m, n), *args = gac_pickle_top(m, n - 1);
    if (args->kind != PICKLE_TUPLE ||
        (callable->kind != PICKLE_GLOBAL && callable->kind != PICKLE_PERSISTENT &&
         callable->kind != PICKLE_OBJECT))
        return gac_pickle_bad(m, "a call of something that is no class or function");
    return push_parts(m, PICKLE_OBJECT, n, (pickle_parts){ callable, args, NULL });
}

/* OBJ: a class and its arguments above a mark. */
static gac_status push_marked_object(pickle_machine *m)
{
    size_t first;
    gac_status status = gac_pickle_pop_mark(m, &first);
    if (status == GAC_OK && first == m->n_stack)
        return gac_pickle_bad(m, "a call of nothing");
    if (status == GAC_OK)
        status = gac_pickle_gather(m, PICKLE_TUPLE, first + 1);
    return status == GAC_OK ? push_object(m, 2) : status;
}

static gac_status build(pickle_machine *m)
{
    gac_status status = gac_pickle_need(m, 2);
    if (status != GAC_OK)
        return status;
    pickle_value *state = gac_pickle_top(m, 1), *object = gac_pickle_top(m, 2);
    if (object->kind != PICKLE_OBJECT || object->parts->state)
        return gac_pickle_bad(m, "a state for a value that takes none");
    object->parts->state = state;
    m->n_stack--;
    return GAC_OK;
}

static gac_status push_persistent(pickle_machine *m)
{
    gac_status status = gac_pickle_need(m, 1);
    if (status == GAC_OK)
        status =
            push_parts(m, PICKLE_PERSISTENT, 1, (pickle_parts){ NULL, gac_pickle_top(m, 1), NULL });
    if (status == GAC_OK)
        status = gac_pickle_charge(m, sizeof(pickle_value *));
    if (status == GAC_OK && !gac_grow((void **)&m->out->persistent, m->out->n_persistent,
                                      &m->out->persistent_capacity, sizeof *m->out->persistent))
        status = gac_error_no_memory(m->err);
    if (status == GAC_OK)
        m->out->persistent[m->out->n_persistent++] = gac_pickle_top(m, 1);
    return status;
}

static gac_status step_object(pickle_machine *m, uint8_t opcode, bool *done)
{
    gac_status status;
    *done = true;
    switch (opcode) {
    case 'c': /* GLOBAL */
        status = push_line(m);
        if (status == GAC_OK)
            status = push_line(m);
        return status == GAC_OK ? push_global(m) : status;
    case 0x93: /* STACK_GLOBAL */
        return push_global(m);
    case 'R':  /* REDUCE */
    case 0x81: /* NEWOBJ */
        return push_object(m, 2);
    case 0x92: /* NEWOBJ_EX */
        return push_object(m, 3);
    case 'o': /* OBJ */
        return push_marked_object(m);
    case 'b': /* BUILD */
        return build(m);
    case 'Q': /* BINPERSID */
        return push_persistent(m);
    default:
        *done = false;
        return GAC_OK;
    }
}

/* The stack's own opcodes, and the memo. */

static gac_status mark(pickle_machine *m)
{
    gac_status status =
        gac_pickle_reserve(m, &m->marks, &m->mark_capacity, m->n_marks + 1, sizeof *m->marks);
    if (status == GAC_OK)
        m->marks[m->n_marks++] = m->n_stack;
    return status;
}

static gac_status pop(pickle_machine *m)
{
    if (m->n_marks && m->marks[m->n_marks - 1] == m->n_stack) {
        m->n_marks--;
        return GAC_OK;
    }
    gac_status status = gac_pickle_need(m, 1);
    m->n_stack -= status == GAC_OK;
    return status;
}

/* Remembers the top of the stack. Writers number the memo without holes, so a
 * number cannot be larger than the offset. */
static gac_status remember(pickle_machine *m, uint64_t number)
{
    gac_status status = gac_pickle_need(m, 1);
    if (status == GAC_OK && number > m->at)
        return gac_pickle_bad(m, "memo %llu in a pickle that has not so many",
                              (unsigned long long)number);
    if (status == GAC_OK)
        status =
            gac_pickle_reserve(m, &m->memo, &m->memo_capacity, (size_t)number + 1, sizeof *m->memo);
    if (status != GAC_OK)
        return status;
    m->memo[number] = gac_pickle_top(m, 1);
    m->n_memo = number >= m->n_memo ? (size_t)number + 1 : m->n_memo;
    return GAC_OK;
}

static gac_status recall(pickle_machine *m, uint64_t number)
{
    if (number >= m->n_memo || !m->memo[number])
        return gac_pickle_bad(m, "memo %llu is empty", (unsigned long long)number);
    return gac_pickle_push(m, m->memo[number]);
}

static gac_status step_memo(pickle_machine *m, uint8_t opcode, bool *done)
{
    uint64_t number;
    bool put = opcode == 'q' || opcode == 'r', is_long = opcode == 'r' || opcode == 'j';
    *done = put || opcode == 'h' || opcode == 'j' || opcode == 0x94;
    if (!*done)
        return GAC_OK;
    if (opcode == 0x94) /* MEMOIZE */
        return remember(m, m->n_memo);
    gac_status status = gac_pickle_take_number(m, is_long ? 4 : 1, &number);
    if (status != GAC_OK)
        return status;
    return put ? remember(m, number) : recall(m, number);
}

static gac_status step_stack(pickle_machine *m, uint8_t opcode, bool *done)
{
    size_t first = 0;
    uint64_t number;
    gac_status status;
    *done = true;
    switch (opcode) {
    case '(':
        return mark(m);
    case '0':
        return pop(m);
    case '1': /* POP_MARK */
        status = gac_pickle_pop_mark(m, &first);
        if (status == GAC_OK)
            m->n_stack = first;
        return status;
    case '2': /* DUP */
        status = gac_pickle_need(m, 1);
        return status == GAC_OK ? gac_pickle_push(m, gac_pickle_top(m, 1)) : status;
    case 0x80: /* PROTO */
        status = gac_pickle_take_number(m, 1, &number);
        return status == GAC_OK && number > 5
                   ? gac_pickle_bad(m, "protocol %llu of pickle", (unsigned long long)number)
                   : status;
    case 0x95: /* FRAME: only tells readers how much to load */
        return gac_pickle_take_number(m, 8, &number);
    case '.':
        status = gac_pickle_need(m, 1);
        m->stopped = true;
        return status == GAC_OK && (m->n_stack != 1 || m->n_marks)
                   ? gac_pickle_bad(m, "the pickle ends with %zu values on its stack", m->n_stack)
                   : status;
    default:
        return step_memo(m, opcode, done);
    }
}

/* All together. */

/* Says why an opcode is refused. */
static gac_status unknown(const pickle_machine *m, uint8_t opcode)
{
    static const char texts[N_OPCODES_OF_PROTOCOL_0 + 1] = "FILSVgpiP";
    if (memchr(texts, opcode, N_OPCODES_OF_PROTOCOL_0))
        return gac_pickle_bad(m, "opcode 0x%02x of protocol 0, which torch.save does not write",
                              opcode);
    return gac_pickle_bad(m, "opcode 0x%02x is not one that torch.save writes", opcode);
}

static gac_status step(pickle_machine *m)
{
    static gac_status (*const steps[])(pickle_machine *, uint8_t,
                                       bool *) = { gac_pickle_step_scalar, step_stack,
                                                   gac_pickle_step_container, step_object };
    const uint8_t *opcode;
    bool done = false;
    m->at = m->position;
    if (m->position == m->n_bytes) {
        m->out->ended_early = true;
        return gac_pickle_bad(m, "the pickle ends without a STOP");
    }
    gac_status status = gac_pickle_take(m, 1, &opcode);
    for (size_t i = 0; i < sizeof steps / sizeof *steps && status == GAC_OK && !done; i++)
        status = steps[i](m, *opcode, &done);
    return status == GAC_OK && !done ? unknown(m, *opcode) : status;
}

gac_status gac_pickle_read(pickle *p, pickle_memory *memory, const char *path, uint64_t base,
                           const void *bytes, size_t n_bytes, gac_error *err)
{
    pickle_machine m = {
        .out = p, .path = path, .base = base, .bytes = bytes, .n_bytes = n_bytes, .err = err
    };
    gac_status status = GAC_OK;
    *p = (pickle){ .memory = memory };
    if (n_bytes > GAC_MAX_PICKLE_BYTES)
        return gac_pickle_bad(&m, "a pickle of %zu bytes, more than the %u allowed", n_bytes,
                              GAC_MAX_PICKLE_BYTES);
    while (status == GAC_OK && !m.stopped)
        status = step(&m);
    if (status == GAC_OK)
        p->root = gac_pickle_top(&m, 1);
    p->n_read = m.position;
    free(m.stack);
    free(m.marks);
    free(m.memo);
    return status;
}

void gac_pickle_dispose(pickle *p)
{
    free(p->persistent);
    *p = (pickle){ .root = NULL };
}

bool gac_pickle_text_is(const pickle_value *value, const char *text)
{
    size_t n = strlen(text);
    return value && value->kind == PICKLE_TEXT && value->n == n &&
           memcmp(value->text, text, n) == 0;
}

bool gac_pickle_global_is(const pickle_value *value, const char *module, const char *name)
{
    return value && value->kind == PICKLE_GLOBAL &&
           gac_pickle_text_is(value->parts->callable, module) &&
           gac_pickle_text_is(value->parts->args, name);
}
