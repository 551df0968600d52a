#include "base/library.h"

#include <dlfcn.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define QUOTED_BYTES 384

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

/* Accepts regular files only: the loader would block on a FIFO. */
static bool is_file(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISREG(info.st_mode);
}

/* Returns FOLDER/BETWEENlibgac_NAME.so, malloc'ed, or NULL if out of memory. */
static char *library_path(const char *folder, const char *between, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%slibgac_%s.so", folder, between, name) < 0 ? NULL : path;
}

static gac_status find_chosen(const gac_library_kind *kind, const char *chosen, char **path,
                              gac_error *err)
{
    char quoted[QUOTED_BYTES];
    char *found = is_folder(chosen) ? library_path(chosen, "", kind->name) : strdup(chosen);
    if (!found)
        return gac_error_no_memory(err);
    if (!is_file(found)) {
        bool there = access(found, F_OK) == 0;
        gac_quote(quoted, sizeof quoted, found);
        free(found);
        return gac_error_set(err, GAC_NO_RESOURCE, "no %s plug-in: %s, named by %s, %s", kind->what,
                             quoted, kind->variable, there ? "is not a file" : "does not exist");
    }
    *path = found;
    return GAC_OK;
}

gac_status gac_library_find(const gac_library_kind *kind, const char *chosen, const char *folder,
                            char **path, gac_error *err)
{
    static const char *const places[] = { "", "../lib/gac/", "../lib/" };
    if (chosen && *chosen)
        return find_chosen(kind, chosen, path, err);
    if (!folder)
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "no %s plug-in: without /proc the program does not know where it "
                             "lies; set %s",
                             kind->what, kind->variable);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *found = library_path(folder, places[i], kind->name);
        if (!found)
            return gac_error_no_memory(err);
        if (is_file(found)) {
            *path = found;
            return GAC_OK;
        }
        free(found);
    }
    return gac_error_set(err, GAC_NO_RESOURCE,
                         "no %s plug-in: libgac_%s.so was not found beside the program; set %s or "
                         "%s",
                         kind->what, kind->name, kind->variable, kind->remedy);
}

/* Gets the folder of the running program. Returns false if /proc does not tell. */
static bool own_folder(char *folder, size_t size)
{
    ssize_t n = readlink("/proc/self/exe", folder, size);
    if (n <= 0 || (size_t)n >= size)
        return false;
    folder[n] = '\0';
    char *slash = strrchr(folder, '/');
    if (slash)
        *slash = '\0';
    return slash != NULL;
}

gac_status gac_library_find_own(const gac_library_kind *kind, char **path, gac_error *err)
{
    char folder[PATH_MAX];
    bool known = own_folder(folder, sizeof folder);
    return gac_library_find(kind, getenv(kind->variable), known ? folder : NULL, path, err);
}

gac_status gac_library_open(const gac_library_kind *kind, const char *path, void *entry,
                            void **library, gac_error *err)
{
    char quoted[QUOTED_BYTES];
    /* dlopen searches the system folders for a name without a slash, so make the path
     * absolute. */
    char *real = realpath(path, NULL);
    *library = dlopen(real ? real : path, RTLD_NOW | RTLD_LOCAL);
    free(real);
    if (!*library) {
        const char *reason = dlerror();
        return gac_error_set(
            err, GAC_NO_RESOURCE, "the %s plug-in does not load: %s", kind->what,
            gac_quote(quoted, sizeof quoted, reason ? reason : "the loader gave no reason"));
    }
    void *symbol = dlsym(*library, kind->entry);
    if (!symbol) {
        dlclose(*library);
        return gac_error_set(err, GAC_NO_RESOURCE, "%s: not a GAC plug-in (no %s)",
                             gac_quote(quoted, sizeof quoted, path), kind->entry);
    }
    memcpy(entry, &symbol,
           sizeof symbol); /* ISO C has no cast from an object pointer to a function pointer */
    return GAC_OK;
}
