/* Describes the file of a contract once. contract_read.c, contract_write.c and
 * the program that compiles contracts into the library
 * (tools/contract/bundle.c) walk these tables. */
#ifndef GAC_CONTRACT_SCHEMA_H
#define GAC_CONTRACT_SCHEMA_H

#include <gac/contract.h>

#define GAC_CONTRACT_SCHEMA "gac.contract/2"
#define GAC_CONTRACT_MAX_SIZE 1000000000
#define GAC_CONTRACT_MIN_TIME_US 1e-6
#define GAC_CONTRACT_MAX_TIME_US 1e12
enum { GAC_MAX_TIERS = 16 };

typedef enum gac_field_kind {
    GAC_FIELD_TEXT,     /* const char * */
    GAC_FIELD_BASIS,    /* const char *: measured, published or assumed */
    GAC_FIELD_BOOL,     /* bool; a missing one is min */
    GAC_FIELD_INTEGER,  /* int64_t from min to max; a missing one is 0 */
    GAC_FIELD_NUMBER,   /* double from min to max; a missing one is NaN */
    GAC_FIELD_DTYPE,    /* gac_dtype; a missing one is GAC_DTYPE_COUNT */
    GAC_FIELD_OBJECT,   /* const struct of * */
    GAC_FIELD_BY_DTYPE, /* const struct of *[GAC_DTYPE_COUNT] */
    GAC_FIELD_LIST,     /* const struct of *, with a count of at most max */
    GAC_FIELD_MAP,      /* const gac_contract_text *, with a count */
    GAC_FIELD_TEXTS,    /* const char *const *, with a count */
    GAC_FIELD_DTYPES,   /* const gac_dtype *, with a count */
    GAC_FIELD_SIZES,    /* const int64_t *, with a count: rising */
    GAC_FIELD_TIMES     /* const double *, with a count; null is NaN */
} gac_field_kind;

typedef struct gac_struct gac_struct;

typedef struct gac_field {
    const char *key;    /* in the file */
    const char *member; /* in the structure */
    size_t offset;
    gac_field_kind kind;
    bool optional;
    double min, max;
    const gac_struct *of;
    const char *n_member; /* the count of a list */
    size_t n_offset;
} gac_field;

struct gac_struct {
    const char *type;
    size_t n_bytes;
    bool is_row;  /* the file has an array of the fields, without keys */
    bool is_line; /* written on one line of the file */
    int n_fields;
    const gac_field *fields;
};

extern const gac_struct gac_contract_struct, gac_runtime_struct;

/* Return the address of a field, and of the length of a list, in a structure. */
static inline void *gac_field_at(const gac_field *field, void *structure)
{
    return (char *)structure + field->offset;
}

static inline const void *gac_field_in(const gac_field *field, const void *structure)
{
    return (const char *)structure + field->offset;
}

static inline size_t gac_field_count(const gac_field *field, const void *structure)
{
    return *(const size_t *)(const void *)((const char *)structure + field->n_offset);
}

/* Returns whether an optional field has the value that means missing. */
bool gac_field_is_missing(const gac_field *field, const void *structure);

#endif
