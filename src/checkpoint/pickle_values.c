/* Opcodes of pickles that make plain values and containers. */
#include <string.h>

#include "checkpoint/pickle_machine.h"

/* Numbers and texts. */

static int64_t sign_extended(uint64_t value, size_t n_bytes)
{
    if (n_bytes == 0 || n_bytes >= 8)
        return (int64_t)value;
    uint64_t sign = UINT64_C(1) << (8 * n_bytes - 1);
    return (int64_t)((value ^ sign) - sign);
}

/* Pushes a text or bytes that follow a length of n_length bytes. */
static gac_status push_text(pickle_machine *m, pickle_kind kind, size_t n_length)
{
    uint64_t n;
    const uint8_t *text;
    pickle_value *value;
    gac_status status = gac_pickle_take_number(m, n_length, &n);
    if (status == GAC_OK)
        status = gac_pickle_take(m, n, &text);
    if (status == GAC_OK)
        status = gac_pickle_push_new(m, kind, &value);
    if (status == GAC_OK) {
        value->text = (const char *)text;
        value->n = (uint32_t)n;
    }
    return status;
}

/* Pushes an integer whose number of bytes comes first. */
static gac_status push_long(pickle_machine *m, size_t n_length)
{
    size_t start = m->position;
    uint64_t n, integer;
    gac_status status = gac_pickle_take_number(m, n_length, &n);
    if (status != GAC_OK)
        return status;
    if (n <= 8) {
        status = gac_pickle_take_number(m, (size_t)n, &integer);
        return status == GAC_OK
                   ? gac_pickle_push_integer(m, PICKLE_INT, sign_extended(integer, (size_t)n))
                   : status;
    }
    m->position = start;
    return push_text(m, PICKLE_BIG, n_length);
}

static gac_status push_float(pickle_machine *m)
{
    const uint8_t *bytes;
    pickle_value *value;
    uint64_t bits = 0;
    gac_status status = gac_pickle_take(m, 8, &bytes);
    for (int i = 0; i < 8 && status == GAC_OK; i++)
        bits = bits << 8 | bytes[i];
    if (status == GAC_OK)
        status = gac_pickle_push_new(m, PICKLE_FLOAT, &value);
    if (status == GAC_OK)
        memcpy(&value->number, &bits, sizeof bits);
    return status;
}

static gac_status push_fixed(pickle_machine *m, size_t n_bytes, bool is_signed)
{
    uint64_t integer;
    gac_status status = gac_pickle_take_number(m, n_bytes, &integer);
    return status == GAC_OK
               ? gac_pickle_push_integer(
                     m, PICKLE_INT, is_signed ? sign_extended(integer, n_bytes) : (int64_t)integer)
               : status;
}

gac_status gac_pickle_step_scalar(pickle_machine *m, uint8_t opcode, bool *done)
{
    *done = true;
    switch (opcode) {
    case 'N':
        return gac_pickle_push_integer(m, PICKLE_NONE, 0);
    case 0x88: /* NEWTRUE */
        return gac_pickle_push_integer(m, PICKLE_BOOL, 1);
    case 0x89: /* NEWFALSE */
        return gac_pickle_push_integer(m, PICKLE_BOOL, 0);
    case 'J': /* BININT */
        return push_fixed(m, 4, true);
    case 'K': /* BININT1 */
        return push_fixed(m, 1, false);
    case 'M': /* BININT2 */
        return push_fixed(m, 2, false);
    case 0x8a: /* LONG1 */
        return push_long(m, 1);
    case 0x8b: /* LONG4 */
        return push_long(m, 4);
    case 'G': /* BINFLOAT */
        return push_float(m);
    case 'U':  /* SHORT_BINSTRING */
    case 0x8c: /* SHORT_BINUNICODE */
        return push_text(m, PICKLE_TEXT, 1);
    case 'T': /* BINSTRING */
    case 'X': /* BINUNICODE */
        return push_text(m, PICKLE_TEXT, 4);
    case 0x8d: /* BINUNICODE8 */
        return push_text(m, PICKLE_TEXT, 8);
    case 'C': /* SHORT_BINBYTES */
        return push_text(m, PICKLE_BYTES, 1);
    case 'B': /* BINBYTES */
        return push_text(m, PICKLE_BYTES, 4);
    case 0x8e: /* BINBYTES8 */
    case 0x96: /* BYTEARRAY8 */
        return push_text(m, PICKLE_BYTES, 8);
    default:
        *done = false;
        return GAC_OK;
    }
}

/* Containers. */

/* Appends n values to a container. */
static gac_status extend(pickle_machine *m, pickle_value *to, pickle_value *const *values, size_t n)
{
    size_t wanted = to->n + n;
    if (n == 0)
        return GAC_OK;
    if (wanted > to->capacity) {
        pickle_value **items = NULL;
        /* A tuple stays as it is. */
        size_t capacity = to->capacity               ? to->capacity * (size_t)2
                          : to->kind == PICKLE_TUPLE ? n
                                                     : 4;
        capacity = wanted > capacity ? wanted : capacity;
        gac_status status = gac_pickle_allocate(m, capacity * sizeof *items, &items);
        if (status != GAC_OK)
            return status;
        if (to->n)
            memcpy(items, to->items, to->n * sizeof *items);
        to->items = items;
        to->capacity = (uint32_t)capacity;
    }
    memcpy(to->items + to->n, values, n * sizeof *values);
    to->n = (uint32_t)wanted;
    return GAC_OK;
}

/* Replaces the values from height first on by a container of them. */
gac_status gac_pickle_gather(pickle_machine *m, pickle_kind kind, size_t first)
{
    pickle_value *made = NULL;
    gac_status status = gac_pickle_allocate(m, sizeof *made, &made);
    if (status != GAC_OK)
        return status;
    made->kind = (uint8_t)kind;
    made->at = (uint32_t)m->at;
    if (m->n_stack > first)
        status = extend(m, made, m->stack + first, m->n_stack - first);
    m->n_stack = first;
    return status == GAC_OK ? gac_pickle_push(m, made) : status;
}

static gac_status gather_marked(pickle_machine *m, pickle_kind kind)
{
    size_t first;
    gac_status status = gac_pickle_pop_mark(m, &first);
    if (status == GAC_OK && kind == PICKLE_DICT && (m->n_stack - first) % 2)
        return gac_pickle_bad(m, "a key without a value");
    return status == GAC_OK ? gac_pickle_gather(m, kind, first) : status;
}

static gac_status gather_last(pickle_machine *m, size_t n)
{
    gac_status status = gac_pickle_need(m, n);
    return status == GAC_OK ? gac_pickle_gather(m, PICKLE_TUPLE, m->n_stack - n) : status;
}

/* Adds the values from height first on to the container below them. Items of
 * objects that are lists mean nothing to us, but their keys and values do. */
static gac_status add_items(pickle_machine *m, size_t first, bool pairs)
{
    size_t n = m->n_stack - first;
    pickle_value *to = m->stack[first - 1];
    bool fits =
        to->kind == PICKLE_OBJECT ||
        (pairs ? to->kind == PICKLE_DICT : to->kind == PICKLE_LIST || to->kind == PICKLE_SET);
    if (!fits || (pairs && n % 2))
        return gac_pickle_bad(m,
                              fits ? "a key without a value" : "items for a value that takes none");
    m->n_stack = first;
    return pairs || to->kind != PICKLE_OBJECT ? extend(m, to, m->stack + first, n) : GAC_OK;
}

static gac_status add_last(pickle_machine *m, size_t n)
{
    gac_status status = gac_pickle_need(m, n + 1);
    return status == GAC_OK ? add_items(m, m->n_stack - n, n == 2) : status;
}

static gac_status add_marked(pickle_machine *m, bool pairs)
{
    size_t first;
    gac_status status = gac_pickle_pop_mark(m, &first);
    size_t floor = m->n_marks ? m->marks[m->n_marks - 1] : 0;
    if (status == GAC_OK && first <= floor)
        return gac_pickle_bad(m, "items for no container");
    return status == GAC_OK ? add_items(m, first, pairs) : status;
}

gac_status gac_pickle_step_container(pickle_machine *m, uint8_t opcode, bool *done)
{
    *done = true;
    switch (opcode) {
    case ')': /* EMPTY_TUPLE */
        return gac_pickle_gather(m, PICKLE_TUPLE, m->n_stack);
    case ']': /* EMPTY_LIST */
        return gac_pickle_gather(m, PICKLE_LIST, m->n_stack);
    case '}': /* EMPTY_DICT */
        return gac_pickle_gather(m, PICKLE_DICT, m->n_stack);
    case 0x8f: /* EMPTY_SET */
        return gac_pickle_gather(m, PICKLE_SET, m->n_stack);
    case 't':
        return gather_marked(m, PICKLE_TUPLE);
    case 'l':
        return gather_marked(m, PICKLE_LIST);
    case 'd':
        return gather_marked(m, PICKLE_DICT);
    case 0x91: /* FROZENSET */
        return gather_marked(m, PICKLE_SET);
    case 0x85: /* TUPLE1, TUPLE2, TUPLE3 */
    case 0x86:
    case 0x87:
        return gather_last(m, opcode - 0x84u);
    case 'a': /* APPEND */
        return add_last(m, 1);
    case 's': /* SETITEM */
        return add_last(m, 2);
    case 'e':  /* APPENDS */
    case 0x90: /* ADDITEMS */
        return add_marked(m, false);
    case 'u': /* SETITEMS */
        return add_marked(m, true);
    default:
        *done = false;
        return GAC_OK;
    }
}
