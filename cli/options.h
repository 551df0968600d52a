/* What a command takes, as one table. The parser, the help, the man page and the
 * completion of shells all come from it.
 *
 * How arguments are read: --name VALUE, --name=VALUE, -n VALUE and -nVALUE are the
 * same; letters without a value may stand together (-qv); options may stand before,
 * between and after other arguments; -- ends them. A name must be written in full,
 * because a shortened one can come to mean another option when options are added. Of an
 * option that is given twice the last value counts, unless the option collects values. */
#ifndef GAC_CLI_OPTIONS_H
#define GAC_CLI_OPTIONS_H

#include <gac/base.h>
#include <stddef.h>

enum { OPT_MAX_LIST = 256 };

typedef enum opt_kind {
    OPT_FLAG,   /* bool: becomes true */
    OPT_TEXT,   /* const char *: borrowed, never empty */
    OPT_LIST,   /* opt_list: the texts of an option that may be repeated */
    OPT_INT,    /* int64_t from least to most; most 0 is no limit */
    OPT_REAL,   /* double from min to max; max 0 is no limit */
    OPT_BYTES,  /* uint64_t, written as 5GB, 500MB or 1000000 */
    OPT_CHOICE, /* int or an enum: the value of the choice */
    OPT_CALL,   /* whatever take does */
    OPT_GROUP,  /* a table that several commands share */
} opt_kind;

typedef struct opt_list {
    const char *items[OPT_MAX_LIST];
    int n;
} opt_list;

typedef struct opt_choice {
    const char *name; /* NULL ends a list */
    int value;
    bool old; /* still understood, and not shown */
} opt_choice;

/* Reads text into the member. The parser puts the option's name before its message. */
typedef gac_status opt_take(void *member, const char *text, gac_error *err);

typedef struct opt {
    const char *name;     /* without dashes; NULL ends a table */
    char letter;          /* or 0 */
    const char *argument; /* what help calls its value; NULL if it takes none */
    const char *help;     /* the part before the first : ; or ( is also a short form */
    opt_kind kind;
    size_t at; /* of the member in the structure of options */
    int64_t least, most;
    double min, max;
    bool above; /* min itself is too small */
    const opt_choice *choices;
    opt_take *take;
    const struct opt *group;
    const char *old; /* a former name, which still works and is not shown */
    bool hidden;
    bool ends; /* nothing after it is read */
} opt;

/* A table and the structure that it fills. */
typedef struct opt_set {
    const opt *options;
    void *into;
} opt_set;

typedef struct opt_result {
    const char **arguments; /* those that are no options, in their order; borrowed texts */
    int n_arguments;
    const opt **given;
    int n_given;
} opt_result;

/* Reads argv[0 .. argc) by the tables. Errors are GAC_USAGE, one line each; see is what a
 * reader is told to look at. options_dispose() *out in any case. */
gac_status options_parse(const opt_set *sets, int n_sets, int argc, char **argv, const char *see,
                         opt_result *out, gac_error *err);
void options_dispose(opt_result *result);

/* Whether the option was given; whether any of a table was. */
bool options_given(const opt_result *result, const char *name);
bool options_given_of(const opt_result *result, const opt *table);

/* How many letters must be put in, removed, replaced or swapped with their neighbour to
 * make b of a. */
int options_distance(const char *a, const char *b);
/* Whether someone who wrote given may have meant name; closer than *distance, which becomes
 * how close. Start with INT_MAX. */
bool options_is_closer(const char *given, const char *name, int *distance);

#endif
