/* The options of a command, as one table. Parser, help, man page and shell
 * completion all use it.
 *
 * --name VALUE, --name=VALUE, -n VALUE and -nVALUE are the same. Letters
 * without a value may be combined (-qv). Options may come before, between and
 * after other arguments; -- ends them. Names must be written in full, because
 * new options could change the meaning of a shortened name. If an option is
 * given twice, the last value counts, unless the option collects values. */
#ifndef GAC_CLI_OPTIONS_H
#define GAC_CLI_OPTIONS_H

#include <gac/base.h>
#include <stddef.h>

enum { OPT_MAX_LIST = 256 };

typedef enum opt_kind {
    OPT_FLAG,   /* bool: becomes true */
    OPT_TEXT,   /* const char *: borrowed, never empty */
    OPT_LIST,   /* opt_list: the texts of an option that may be repeated */
    OPT_INT,    /* int64_t from least to most; most 0: no limit */
    OPT_REAL,   /* double from min to max; max 0: no limit */
    OPT_BYTES,  /* uint64_t, written as 5GB, 500MB or 1000000 */
    OPT_CHOICE, /* int or an enum: the value of the choice */
    OPT_CALL,   /* any type; take reads it */
    OPT_GROUP,  /* a table that several commands share */
} opt_kind;

typedef struct opt_list {
    const char *items[OPT_MAX_LIST];
    int n;
} opt_list;

typedef struct opt_choice {
    const char *name; /* NULL ends a list */
    int value;
    bool old; /* still accepted, but not shown */
} opt_choice;

/* Reads text into the member. The parser adds the option's name to its message. */
typedef gac_status opt_take(void *member, const char *text, gac_error *err);

typedef struct opt {
    const char *name;     /* without dashes; NULL ends a table */
    char letter;          /* or 0 */
    const char *argument; /* name of its value in help; NULL if it takes none */
    const char *help;     /* the part before the first : ; or ( is its short form */
    opt_kind kind;
    size_t at; /* offset of the member in the structure of options */
    int64_t least, most;
    double min, max;
    bool above; /* min itself is not allowed */
    const opt_choice *choices;
    opt_take *take;
    const struct opt *group;
    const char *old; /* a former name, still accepted but not shown */
    bool hidden;
    bool ends; /* the parser stops after it */
} opt;

/* A table and the structure that it fills. */
typedef struct opt_set {
    const opt *options;
    void *into;
} opt_set;

typedef struct opt_result {
    const char **arguments; /* the other arguments, in their order; borrowed texts */
    int n_arguments;
    const opt **given;
    int n_given;
} opt_result;

/* Reads argv[0 .. argc) by the tables. Errors are GAC_USAGE with one line; see
 * is the help that they refer to. The caller always calls
 * options_dispose(out). */
gac_status options_parse(const opt_set *sets, int n_sets, int argc, char **argv, const char *see,
                         opt_result *out, gac_error *err);
void options_dispose(opt_result *result);

/* Return whether an option was given, and whether any option of a table was. */
bool options_given(const opt_result *result, const char *name);
bool options_given_of(const opt_result *result, const opt *table);

/* Returns how many letters must be inserted, removed, replaced or swapped with
 * their neighbour to turn a into b. */
int options_distance(const char *a, const char *b);
/* Returns whether given may be a misspelling of name, and closer than
 * *distance, which is then updated. Start with INT_MAX. */
bool options_is_closer(const char *given, const char *name, int *distance);

#endif
