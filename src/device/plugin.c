#include "device/plugin.h"

#include <dlfcn.h>
#include <string.h>

#define QUOTED_BYTES 384

const gac_library_kind gac_cuda_library = { "cuda", "GPU", "GAC_BACKEND_PATH",
                                            "build with -DGAC_CUDA=ON", GAC_BACKEND_ENTRY };

static gac_status check_backend(const char *name, const char *shown, const gac_backend *backend,
                                gac_error *err)
{
    char quoted[64];
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
    return GAC_OK;
}

gac_status gac_plugin_load(const gac_library_kind *kind, const char *path, const gac_backend **out,
                           gac_error *err)
{
    char shown[QUOTED_BYTES];
    void *library = NULL;
    gac_backend_entry_fn entry = NULL;
    gac_status status = gac_library_open(kind, path, &entry, &library, err);
    if (status != GAC_OK)
        return status;
    const gac_backend *backend = entry();
    status = check_backend(kind->name, gac_quote(shown, sizeof shown, path), backend, err);
    if (status == GAC_OK)
        *out = backend;
    else
        dlclose(library);
    return status;
}
