/* Reads a Python pickle as a tree of values. Nothing in a pickle is executed:
 * a class or function is only a name, and a call of it is an object that keeps
 * the name and the arguments. */
#ifndef GAC_CHECKPOINT_PICKLE_H
#define GAC_CHECKPOINT_PICKLE_H

#include <gac/base.h>

#include "base/arena.h"

#define GAC_MAX_PICKLE_BYTES (64u << 20)
/* Limit of the memory for values. Real models need about 1 KiB per tensor. */
#define GAC_MAX_PICKLE_MEMORY ((size_t)512 << 20)

typedef enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,
    PICKLE_INT, /* of at most 64 bits */
    PICKLE_BIG, /* an integer of more bits, little-endian, in text */
    PICKLE_FLOAT,
    PICKLE_TEXT,
    PICKLE_BYTES,
    PICKLE_TUPLE,
    PICKLE_LIST,
    PICKLE_SET,
    PICKLE_DICT,
    PICKLE_GLOBAL,    /* the name of a class or function */
    PICKLE_OBJECT,    /* what a call of one would have returned */
    PICKLE_PERSISTENT /* what the program that wrote the pickle keeps outside it */
} pickle_kind;

typedef struct pickle_value pickle_value;

/* Values that only objects and the like have. */
typedef struct pickle_parts {
    pickle_value *callable; /* object: what was called; global: its module */
    pickle_value *args;     /* object: a tuple; global: its name; persistent: its id */
    pickle_value *state;    /* object: what it was built from; or NULL */
} pickle_parts;

struct pickle_value {
    uint8_t kind;    /* pickle_kind */
    bool has_no_use; /* for the reader of the values: visited already, for nothing */
    uint32_t n; /* bytes of a text, or items. Dicts and objects have a key and a value in turn. */
    uint32_t capacity;
    uint32_t at; /* offset of the opcode that made it */
    union {
        int64_t integer; /* also of a bool */
        double number;
        const char *text; /* in the pickle's own bytes: no NUL at its end */
        pickle_value **items;
    };
    pickle_parts *parts;
};

/* Memory for the values of pickles. One limit holds for all that share it. */
typedef struct pickle_memory {
    gac_arena arena;
    size_t n_bytes;
} pickle_memory;

typedef struct pickle {
    pickle_memory *memory;
    pickle_value *root;
    pickle_value **persistent; /* all values of this kind, in order */
    int32_t n_persistent, persistent_capacity;
    size_t n_read;    /* bytes of the pickle */
    bool ended_early; /* reading failed because there were too few bytes */
} pickle;

/* Reads one pickle from the start of bytes. bytes and memory must outlive it.
 * path and base (the offset of bytes in the file) are for errors. Errors:
 * GAC_BAD_INPUT. The caller disposes of it in any case. */
gac_status gac_pickle_read(pickle *p, pickle_memory *memory, const char *path, uint64_t base,
                           const void *bytes, size_t n_bytes, gac_error *err);
void gac_pickle_dispose(pickle *p);

bool gac_pickle_text_is(const pickle_value *value, const char *text);
/* Returns whether value is the class or function of this name. */
bool gac_pickle_global_is(const pickle_value *value, const char *module, const char *name);

#endif
