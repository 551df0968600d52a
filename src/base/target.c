/* Checks where a result may be written. */
#include <errno.h>
#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "base/files.h"

/* Returns whether a is b or inside b. Both are resolved paths. */
static bool lies_in(const char *a, const char *b)
{
    size_t n = strlen(b);
    return strncmp(a, b, n) == 0 && (a[n] == 0 || a[n] == '/' || (n == 1 && *b == '/'));
}

/* Resolves the path of out, which may not exist yet. False if its parent does
 * not exist either. target has room for PATH_MAX and a name. */
static bool resolve_target(const char *out, char target[PATH_MAX + NAME_MAX + 2])
{
    if (realpath(out, target))
        return true;
    char *for_parent = strdup(out), *for_name = strdup(out);
    bool found = for_parent && for_name && realpath(dirname(for_parent), target);
    size_t n = found ? strlen(target) : 0;
    if (found)
        snprintf(target + n, NAME_MAX + 2, "/%s", basename(for_name));
    free(for_parent);
    free(for_name);
    return found;
}

gac_status gac_check_target(const char *from, const char *out, gac_error *err)
{
    char q[256], input[PATH_MAX], target[PATH_MAX + NAME_MAX + 2];
    if (!realpath(from, input))
        return gac_error_set(err, GAC_FAILED, "%s: %s", gac_quote(q, sizeof q, from),
                             strerror(errno));
    if (!resolve_target(out, target))
        return GAC_OK; /* creating it will report the error */
    if (!lies_in(target, input) && !lies_in(input, target))
        return GAC_OK;
    return gac_error_set(err, GAC_USAGE, "%s: the target must lie outside of the input",
                         gac_quote(q, sizeof q, out));
}
