/* Whether folders lie in each other. */
#include "base/files.h"

#include <libgen.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum { ROOM = PATH_MAX + NAME_MAX + 2 };

/* Returns whether a is b or inside b. Both are resolved paths. */
static bool lies_in(const char *a, const char *b)
{
    size_t n = strlen(b);
    return strncmp(a, b, n) == 0 && (a[n] == 0 || a[n] == '/' || (n == 1 && *b == '/'));
}

/* Resolves a path, which may not exist yet. False if its parent does not exist either. */
static bool resolve(const char *path, char out[ROOM])
{
    if (realpath(path, out))
        return true;
    char *for_parent = strdup(path), *for_name = strdup(path);
    bool found = for_parent && for_name && realpath(dirname(for_parent), out);
    size_t n = found ? strlen(out) : 0;
    if (found)
        snprintf(out + n, NAME_MAX + 2, "/%s", basename(for_name));
    free(for_parent);
    free(for_name);
    return found;
}

gac_status gac_check_apart(const char *path, const char *other, gac_error *err)
{
    char q[256], q_other[256], resolved[ROOM], resolved_other[ROOM];
    if (!resolve(path, resolved) || !resolve(other, resolved_other))
        return GAC_OK; /* creating it will report the error */
    if (!lies_in(resolved, resolved_other) && !lies_in(resolved_other, resolved))
        return GAC_OK;
    return gac_error_set(err, GAC_USAGE, "%s: must lie outside of %s", gac_quote(q, sizeof q, path),
                         gac_quote(q_other, sizeof q_other, other));
}
