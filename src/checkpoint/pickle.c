/* The interpreter of pickles: a stack, a memo and one step for each opcode.
 *
 * All memory is bounded: a value costs at least one byte of the pickle, the
 * memo has no holes beyond it, and everything counts against one limit. Steps
 * take constant time, or time for the items that they take off the stack. No
 * step calls itself, so nesting costs no stack of ours. */
#include "checkpoint/pickle.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { N_OPCODES_OF_PROTOCOL_0 = 9 };

typedef struct machine {
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
} machine;

static gac_status bad(const machine *m, const char *format, ...) GAC_PRINTF(2, 3);

/* Sets the error "FILE: offset N: what is wrong". */
static gac_status bad(const machine *m, const char *format, ...)
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

/* ---- Memory -------------------------------------------------------------- */

/* Counts memory against the limit. */
static gac_status charge(machine *m, size_t n_bytes)
{
    if (n_bytes > GAC_MAX_PICKLE_MEMORY - m->out->n_memory)
        return bad(m, "the values of this pickle need more than %zu MiB of memory",
                   GAC_MAX_PICKLE_MEMORY >> 20);
    m->out->n_memory += n_bytes;
    return GAC_OK;
}

static gac_status allocate(machine *m, size_t n_bytes, void *out)
{
    gac_status status = charge(m, n_bytes);
    void *memory = status == GAC_OK ? gac_arena_alloc(&m->out->arena, n_bytes) : NULL;
    if (status == GAC_OK && !memory)
        return gac_error_no_memory(m->err);
    memcpy(out, &memory, sizeof memory);
    return status;
}

/* Makes room for n elements in a malloc'ed array. New elements are zero. */
static gac_status reserve(machine *m, void *array, size_t *capacity, size_t n, size_t element)
{
    void *before, *after;
    if (n <= *capacity)
        return GAC_OK;
    size_t wanted = n < *capacity * 2 ? *capacity * 2 : n < 64 ? 64 : n;
    gac_status status = charge(m, (wanted - *capacity) * element);
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

/* ---- The stack ----------------------------------------------------------- */

static gac_status push(machine *m, pickle_value *value)
{
    gac_status status = reserve(m, &m->stack, &m->stack_capacity, m->n_stack + 1, sizeof *m->stack);
    if (status == GAC_OK)
        m->stack[m->n_stack++] = value;
    return status;
}

static gac_status push_new(machine *m, pickle_kind kind, pickle_value **out)
{
    pickle_value *value = NULL;
    gac_status status = allocate(m, sizeof *value, &value);
    if (status == GAC_OK) {
        value->kind = kind;
        value->at = (uint32_t)m->at;
        status = push(m, value);
    }
    *out = value;
    return status;
}

static gac_status push_integer(machine *m, pickle_kind kind, int64_t integer)
{
    pickle_value *value;
    gac_status status = push_new(m, kind, &value);
    if (status == GAC_OK)
        value->integer = integer;
    return status;
}

/* Checks that n values lie above the last mark. */
static gac_status need(const machine *m, size_t n)
{
    size_t floor = m->n_marks ? m->marks[m->n_marks - 1] : 0;
    return m->n_stack - floor >= n
               ? GAC_OK
               : bad(m, "opcode 0x%02x needs more values than the stack has", m->bytes[m->at]);
}

/* Returns the n-th value from the top; 1 is the top. */
static pickle_value *top(const machine *m, size_t n)
{
    return m->stack[m->n_stack - n];
}

static gac_status pop_mark(machine *m, size_t *first)
{
    *first = 0;
    if (m->n_marks == 0)
        return bad(m, "opcode 0x%02x needs a mark, and there is none", m->bytes[m->at]);
    *first = m->marks[--m->n_marks];
    return GAC_OK;
}

/* Takes n bytes of the pickle. */
static gac_status take(machine *m, uint64_t n, const uint8_t **out)
{
    *out = m->bytes + m->position;
    if (n > m->n_bytes - m->position) {
        m->out->ended_early = true;
        return bad(m, "opcode 0x%02x wants %llu bytes, and %zu are left", m->bytes[m->at],
                   (unsigned long long)n, m->n_bytes - m->position);
    }
    m->position += (size_t)n;
    return GAC_OK;
}

/* Takes a little-endian number of n bytes, at most 8. */
static gac_status take_number(machine *m, size_t n, uint64_t *out)
{
    const uint8_t *bytes;
    gac_status status = take(m, n, &bytes);
    *out = 0;
    for (size_t i = n; status == GAC_OK && i-- > 0;)
        *out = *out << 8 | bytes[i];
    return status;
}

/* ---- Numbers and texts --------------------------------------------------- */

static int64_t sign_extended(uint64_t value, size_t n_bytes)
{
    if (n_bytes == 0 || n_bytes >= 8)
        return (int64_t)value;
    uint64_t sign = UINT64_C(1) << (8 * n_bytes - 1);
    return (int64_t)((value ^ sign) - sign);
}

/* Pushes a text or bytes that follow a length of n_length bytes. */
static gac_status push_text(machine *m, pickle_kind kind, size_t n_length)
{
    uint64_t n;
    const uint8_t *text;
    pickle_value *value;
    gac_status status = take_number(m, n_length, &n);
    if (status == GAC_OK)
        status = take(m, n, &text);
    if (status == GAC_OK)
        status = push_new(m, kind, &value);
    if (status == GAC_OK) {
        value->text = (const char *)text;
        value->n = (uint32_t)n;
    }
    return status;
}

/* Pushes an integer whose number of bytes comes first. */
static gac_status push_long(machine *m, size_t n_length)
{
    size_t start = m->position;
    uint64_t n, integer;
    gac_status status = take_number(m, n_length, &n);
    if (status != GAC_OK)
        return status;
    if (n <= 8) {
        status = take_number(m, (size_t)n, &integer);
        return status == GAC_OK ? push_integer(m, PICKLE_INT, sign_extended(integer, (size_t)n))
                                : status;
    }
    m->position = start;
    return push_text(m, PICKLE_BIG, n_length);
}

static gac_status push_float(machine *m)
{
    const uint8_t *bytes;
    pickle_value *value;
    uint64_t bits = 0;
    gac_status status = take(m, 8, &bytes);
    for (int i = 0; i < 8 && status == GAC_OK; i++)
        bits = bits << 8 | bytes[i];
    if (status == GAC_OK)
        status = push_new(m, PICKLE_FLOAT, &value);
    if (status == GAC_OK)
        memcpy(&value->number, &bits, sizeof bits);
    return status;
}

static gac_status push_fixed(machine *m, size_t n_bytes, bool is_signed)
{
    uint64_t integer;
    gac_status status = take_number(m, n_bytes, &integer);
    return status == GAC_OK
               ? push_integer(m, PICKLE_INT,
                              is_signed ? sign_extended(integer, n_bytes) : (int64_t)integer)
               : status;
}

static gac_status step_scalar(machine *m, uint8_t opcode, bool *done)
{
    *done = true;
    switch (opcode) {
    case 'N':
        return push_integer(m, PICKLE_NONE, 0);
    case 0x88: /* NEWTRUE */
        return push_integer(m, PICKLE_BOOL, 1);
    case 0x89: /* NEWFALSE */
        return push_integer(m, PICKLE_BOOL, 0);
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

/* ---- Containers ---------------------------------------------------------- */

/* Appends n values to a container. */
static gac_status extend(machine *m, pickle_value *to, pickle_value *const *values, size_t n)
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
        gac_status status = allocate(m, capacity * sizeof *items, &items);
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
static gac_status gather(machine *m, pickle_kind kind, size_t first)
{
    pickle_value *made = NULL;
    gac_status status = allocate(m, sizeof *made, &made);
    if (status != GAC_OK)
        return status;
    made->kind = kind;
    made->at = (uint32_t)m->at;
    status = extend(m, made, m->stack + first, m->n_stack - first);
    m->n_stack = first;
    return status == GAC_OK ? push(m, made) : status;
}

static gac_status gather_marked(machine *m, pickle_kind kind)
{
    size_t first;
    gac_status status = pop_mark(m, &first);
    if (status == GAC_OK && kind == PICKLE_DICT && (m->n_stack - first) % 2)
        return bad(m, "a key without a value");
    return status == GAC_OK ? gather(m, kind, first) : status;
}

static gac_status gather_last(machine *m, size_t n)
{
    gac_status status = need(m, n);
    return status == GAC_OK ? gather(m, PICKLE_TUPLE, m->n_stack - n) : status;
}

/* Adds the values from height first on to the container below them. Items of
 * objects that are lists mean nothing to us, but their keys and values do. */
static gac_status add_items(machine *m, size_t first, bool pairs)
{
    size_t n = m->n_stack - first;
    pickle_value *to = m->stack[first - 1];
    bool fits =
        to->kind == PICKLE_OBJECT ||
        (pairs ? to->kind == PICKLE_DICT : to->kind == PICKLE_LIST || to->kind == PICKLE_SET);
    if (!fits || (pairs && n % 2))
        return bad(m, fits ? "a key without a value" : "items for a value that takes none");
    m->n_stack = first;
    return pairs || to->kind != PICKLE_OBJECT ? extend(m, to, m->stack + first, n) : GAC_OK;
}

static gac_status add_last(machine *m, size_t n)
{
    gac_status status = need(m, n + 1);
    return status == GAC_OK ? add_items(m, m->n_stack - n, n == 2) : status;
}

static gac_status add_marked(machine *m, bool pairs)
{
    size_t first;
    gac_status status = pop_mark(m, &first);
    size_t floor = m->n_marks ? m->marks[m->n_marks - 1] : 0;
    if (status == GAC_OK && first <= floor)
        return bad(m, "items for no container");
    return status == GAC_OK ? add_items(m, first, pairs) : status;
}

static gac_status step_container(machine *m, uint8_t opcode, bool *done)
{
    *done = true;
    switch (opcode) {
    case ')': /* EMPTY_TUPLE */
        return gather(m, PICKLE_TUPLE, m->n_stack);
    case ']': /* EMPTY_LIST */
        return gather(m, PICKLE_LIST, m->n_stack);
    case '}': /* EMPTY_DICT */
        return gather(m, PICKLE_DICT, m->n_stack);
    case 0x8f: /* EMPTY_SET */
        return gather(m, PICKLE_SET, m->n_stack);
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

/* ---- Objects ------------------------------------------------------------- */

/* Replaces the n values on top of the stack by a value with parts. */
static gac_status push_parts(machine *m, pickle_kind kind, size_t n, pickle_parts parts)
{
    pickle_value *value;
    gac_status status = need(m, n);
    if (status != GAC_OK)
        return status;
    m->n_stack -= n;
    status = push_new(m, kind, &value);
    if (status == GAC_OK)
        status = allocate(m, sizeof parts, &value->parts);
    if (status == GAC_OK)
        *value->parts = parts;
    return status;
}

/* Takes text up to a newline, as a new value on the stack. */
static gac_status push_line(machine *m)
{
    pickle_value *value;
    const uint8_t *line, *start = m->bytes + m->position;
    const uint8_t *end = memchr(start, '\n', m->n_bytes - m->position);
    gac_status status = take(
        m, end ? (uint64_t)(end - start) + 1 : (uint64_t)(m->n_bytes - m->position) + 1, &line);
    if (status == GAC_OK)
        status = push_new(m, PICKLE_TEXT, &value);
    if (status == GAC_OK) {
        value->text = (const char *)line;
        value->n = (uint32_t)(end - start);
    }
    return status;
}

/* Makes a global of the two texts on top of the stack. */
static gac_status push_global(machine *m)
{
    gac_status status = need(m, 2);
    if (status == GAC_OK && (top(m, 1)->kind != PICKLE_TEXT || top(m, 2)->kind != PICKLE_TEXT))
        return bad(m, "the name of a class is not a text");
    return status == GAC_OK
               ? push_parts(m, PICKLE_GLOBAL, 2, (pickle_parts){ top(m, 2), top(m, 1), NULL })
               : status;
}

/* Makes an object of a callable and a tuple of arguments; n is 3 if a dict of
 * further arguments lies above them. */
static gac_status push_object(machine *m, size_t n)
{
    gac_status status = need(m, n);
    if (status != GAC_OK)
        return status;
    pickle_value *callable = top(m, n), *args = top(m, n - 1);
    if (args->kind != PICKLE_TUPLE ||
        (callable->kind != PICKLE_GLOBAL && callable->kind != PICKLE_PERSISTENT &&
         callable->kind != PICKLE_OBJECT))
        return bad(m, "a call of something that is no class or function");
    return push_parts(m, PICKLE_OBJECT, n, (pickle_parts){ callable, args, NULL });
}

/* OBJ: a class and its arguments above a mark. */
static gac_status push_marked_object(machine *m)
{
    size_t first;
    gac_status status = pop_mark(m, &first);
    if (status == GAC_OK && first == m->n_stack)
        return bad(m, "a call of nothing");
    if (status == GAC_OK)
        status = gather(m, PICKLE_TUPLE, first + 1);
    return status == GAC_OK ? push_object(m, 2) : status;
}

static gac_status build(machine *m)
{
    gac_status status = need(m, 2);
    if (status != GAC_OK)
        return status;
    pickle_value *state = top(m, 1), *object = top(m, 2);
    if (object->kind != PICKLE_OBJECT || object->parts->state)
        return bad(m, "a state for a value that takes none");
    object->parts->state = state;
    m->n_stack--;
    return GAC_OK;
}

static gac_status push_persistent(machine *m)
{
    gac_status status = need(m, 1);
    if (status == GAC_OK)
        status = push_parts(m, PICKLE_PERSISTENT, 1, (pickle_parts){ NULL, top(m, 1), NULL });
    if (status == GAC_OK)
        status = charge(m, sizeof(pickle_value *));
    if (status == GAC_OK && !gac_grow((void **)&m->out->persistent, m->out->n_persistent,
                                      &m->out->persistent_capacity, sizeof *m->out->persistent))
        status = gac_error_no_memory(m->err);
    if (status == GAC_OK)
        m->out->persistent[m->out->n_persistent++] = top(m, 1);
    return status;
}

static gac_status step_object(machine *m, uint8_t opcode, bool *done)
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

/* ---- The stack's own opcodes, and the memo -------------------------------- */

static gac_status mark(machine *m)
{
    gac_status status = reserve(m, &m->marks, &m->mark_capacity, m->n_marks + 1, sizeof *m->marks);
    if (status == GAC_OK)
        m->marks[m->n_marks++] = m->n_stack;
    return status;
}

static gac_status pop(machine *m)
{
    if (m->n_marks && m->marks[m->n_marks - 1] == m->n_stack) {
        m->n_marks--;
        return GAC_OK;
    }
    gac_status status = need(m, 1);
    m->n_stack -= status == GAC_OK;
    return status;
}

/* Remembers the top of the stack. Writers number the memo without holes, so a
 * number cannot be larger than the offset. */
static gac_status remember(machine *m, uint64_t number)
{
    gac_status status = need(m, 1);
    if (status == GAC_OK && number > m->at)
        return bad(m, "memo %llu in a pickle that has not so many", (unsigned long long)number);
    if (status == GAC_OK)
        status = reserve(m, &m->memo, &m->memo_capacity, (size_t)number + 1, sizeof *m->memo);
    if (status != GAC_OK)
        return status;
    m->memo[number] = top(m, 1);
    m->n_memo = number >= m->n_memo ? (size_t)number + 1 : m->n_memo;
    return GAC_OK;
}

static gac_status recall(machine *m, uint64_t number)
{
    if (number >= m->n_memo || !m->memo[number])
        return bad(m, "memo %llu is empty", (unsigned long long)number);
    return push(m, m->memo[number]);
}

static gac_status step_memo(machine *m, uint8_t opcode, bool *done)
{
    uint64_t number;
    bool put = opcode == 'q' || opcode == 'r', is_long = opcode == 'r' || opcode == 'j';
    *done = put || opcode == 'h' || opcode == 'j' || opcode == 0x94;
    if (!*done)
        return GAC_OK;
    if (opcode == 0x94) /* MEMOIZE */
        return remember(m, m->n_memo);
    gac_status status = take_number(m, is_long ? 4 : 1, &number);
    if (status != GAC_OK)
        return status;
    return put ? remember(m, number) : recall(m, number);
}

static gac_status step_stack(machine *m, uint8_t opcode, bool *done)
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
        status = pop_mark(m, &first);
        if (status == GAC_OK)
            m->n_stack = first;
        return status;
    case '2': /* DUP */
        status = need(m, 1);
        return status == GAC_OK ? push(m, top(m, 1)) : status;
    case 0x80: /* PROTO */
        status = take_number(m, 1, &number);
        return status == GAC_OK && number > 5
                   ? bad(m, "protocol %llu of pickle", (unsigned long long)number)
                   : status;
    case 0x95: /* FRAME: only tells readers how much to load */
        return take_number(m, 8, &number);
    case '.':
        status = need(m, 1);
        m->stopped = true;
        return status == GAC_OK && (m->n_stack != 1 || m->n_marks)
                   ? bad(m, "the pickle ends with %zu values on its stack", m->n_stack)
                   : status;
    default:
        return step_memo(m, opcode, done);
    }
}

/* ---- All together -------------------------------------------------------- */

/* Says why an opcode is refused. */
static gac_status unknown(const machine *m, uint8_t opcode)
{
    static const char texts[N_OPCODES_OF_PROTOCOL_0 + 1] = "FILSVgpiP";
    if (memchr(texts, opcode, N_OPCODES_OF_PROTOCOL_0))
        return bad(m, "opcode 0x%02x of protocol 0, which torch.save does not write", opcode);
    return bad(m, "opcode 0x%02x is not one that torch.save writes", opcode);
}

static gac_status step(machine *m)
{
    static gac_status (*const steps[])(
        machine *, uint8_t, bool *) = { step_scalar, step_stack, step_container, step_object };
    const uint8_t *opcode;
    bool done = false;
    m->at = m->position;
    if (m->position == m->n_bytes) {
        m->out->ended_early = true;
        return bad(m, "the pickle ends without a STOP");
    }
    gac_status status = take(m, 1, &opcode);
    for (size_t i = 0; i < sizeof steps / sizeof *steps && status == GAC_OK && !done; i++)
        status = steps[i](m, *opcode, &done);
    return status == GAC_OK && !done ? unknown(m, *opcode) : status;
}

gac_status gac_pickle_read(pickle *p, const char *path, uint64_t base, const void *bytes,
                           size_t n_bytes, gac_error *err)
{
    machine m = {
        .out = p, .path = path, .base = base, .bytes = bytes, .n_bytes = n_bytes, .err = err
    };
    gac_status status = GAC_OK;
    *p = (pickle){ .root = NULL };
    if (n_bytes > GAC_MAX_PICKLE_BYTES)
        return bad(&m, "a pickle of %zu bytes, more than the %u allowed", n_bytes,
                   GAC_MAX_PICKLE_BYTES);
    while (status == GAC_OK && !m.stopped)
        status = step(&m);
    if (status == GAC_OK)
        p->root = top(&m, 1);
    p->n_read = m.position;
    free(m.stack);
    free(m.marks);
    free(m.memo);
    return status;
}

void gac_pickle_dispose(pickle *p)
{
    free(p->persistent);
    gac_arena_free(&p->arena);
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
