#include "device/plugin.h"

#include <dlfcn.h>
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
static char *plugin_path(const char *folder, const char *between, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/%slibgac_%s.so", folder, between, name) < 0 ? NULL : path;
}

static gac_status find_chosen(const char *name, const char *chosen, char **path, gac_error *err)
{
    char quoted[QUOTED_BYTES];
    char *found = is_folder(chosen) ? plugin_path(chosen, "", name) : strdup(chosen);
    if (!found)
        return gac_error_no_memory(err);
    if (!is_file(found)) {
        bool there = access(found, F_OK) == 0;
        gac_quote(quoted, sizeof quoted, found);
        free(found);
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "no GPU plug-in: %s, named by GAC_BACKEND_PATH, %s", quoted,
                             there ? "is not a file" : "does not exist");
    }
    *path = found;
    return GAC_OK;
}

gac_status gac_plugin_find(const char *name, const char *chosen, const char *folder, char **path,
                           gac_error *err)
{
    static const char *const places[] = { "", "../lib/gac/", "../lib/" };
    if (chosen && *chosen)
        return find_chosen(name, chosen, path, err);
    if (!folder)
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "no GPU plug-in: without /proc the program does not know where it "
                             "lies; set GAC_BACKEND_PATH");
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        char *found = plugin_path(folder, places[i], name);
        if (!found)
            return gac_error_no_memory(err);
        if (is_file(found)) {
            *path = found;
            return GAC_OK;
        }
        free(found);
    }
    return gac_error_set(err, GAC_NO_RESOURCE,
                         "no GPU plug-in: libgac_%s.so was not found beside the program; set "
                         "GAC_BACKEND_PATH or build with -DGAC_CUDA=ON",
                         name);
}

/* Checks a loaded library and sets *out to its backend. */
static gac_status take_backend(const char *name, const char *shown, void *library,
                               const gac_backend **out, gac_error *err)
{
    char quoted[64];
    gac_backend_entry_fn entry;
    void *symbol = dlsym(library, GAC_BACKEND_ENTRY);
    if (!symbol)
        return gac_error_set(err, GAC_NO_RESOURCE, "%s: not a GAC plug-in (no %s)", shown,
                             GAC_BACKEND_ENTRY);
    memcpy(&entry, &symbol,
           sizeof entry); /* ISO C has no cast from an object pointer to a function pointer */
    const gac_backend *backend = entry();
    if (!backend)
        return gac_error_set(err, GAC_NO_RESOURCE, "%s: the plug-in offers no backend", shown);
    if (backend->abi != GAC_BACKEND_ABI)
        return gac_error_set(err, GAC_NO_RESOURCE,
                             "%s: made for another version of gac (plug-in ABI %d, this program "
                             "%d)",
                             shown, backend->abi, GAC_BACKEND_ABI);
    if (!backend->name || strcmp(backend->name, name) != 0)
        return gac_error_set(err, GAC_NO_RESOURCE, "%s: a plug-in for %s, not for %s", shown,
                             gac_quote(quoted, sizeof quoted, backend->name ? backend->name : ""),
                             name);
    *out = backend;
    return GAC_OK;
}

gac_status gac_plugin_load(const char *name, const char *path, const gac_backend **out,
                           gac_error *err)
{
    char shown[QUOTED_BYTES], quoted[QUOTED_BYTES];
    /* dlopen searches the system folders for a name without a slash, so make the path
     * absolute. */
    char *real = realpath(path, NULL);
    void *library = dlopen(real ? real : path, RTLD_NOW | RTLD_LOCAL);
    free(real);
    if (!library) {
        const char *reason = dlerror();
        return gac_error_set(
            err, GAC_NO_RESOURCE, "the GPU plug-in does not load: %s",
            gac_quote(quoted, sizeof quoted, reason ? reason : "the loader gave no reason"));
    }
    gac_quote(shown, sizeof shown, path);
    gac_status status = take_backend(name, shown, library, out, err);
    if (status != GAC_OK)
        dlclose(library);
    return status;
}
