/* Every public function first refuses arguments that make no sense, with
 * GAC_USAGE and its own name. These macros return from the function that uses
 * them. */
#ifndef GAC_BASE_ARGUMENTS_H
#define GAC_BASE_ARGUMENTS_H

#include <gac/base.h>

/* Returns GAC_USAGE if one of n pointers is NULL, and names the first such one.
 * names lists all of them, separated by commas. */
gac_status gac_refuse_null(gac_error *err, const char *function, const char *names,
                           const void *const *pointers, size_t n);

/* GAC_REFUSE_NULL(err, model, out): none of the pointers may be NULL. */
#define GAC_REFUSE_NULL(err, ...) GAC_REFUSE_NULL_AS(err, #__VA_ARGS__, __VA_ARGS__)

/* GAC_REFUSE_NULL_AS(err, "writer, name", w, name): the same, if the header has
 * other names for the pointers. */
#define GAC_REFUSE_NULL_AS(err, names, ...) \
    do { \
        const void *const pointers_[] = { __VA_ARGS__ }; \
        gac_status refused_ = gac_refuse_null(err, __func__, names, pointers_, \
                                              sizeof pointers_ / sizeof *pointers_); \
        if (refused_ != GAC_OK) \
            return refused_; \
    } while (0)

/* GAC_REFUSE(err, n < 0, "n is negative") */
#define GAC_REFUSE(err, condition, why) \
    do { \
        if (condition) \
            return gac_error_set(err, GAC_USAGE, "%s: " why, __func__); \
    } while (0)

#endif
