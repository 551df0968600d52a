/* Loads a plug-in, a shared library that implements gac_backend. */
#ifndef GAC_DEVICE_PLUGIN_H
#define GAC_DEVICE_PLUGIN_H

#include "base/library.h"

#include <gac/device.h>

/* libgac_cuda.so, where GAC_BACKEND_PATH says. */
extern const gac_library_kind gac_cuda_library;

/* Loads the plug-in at path and checks its ABI version and name. The plug-in is never
 * unloaded, because GPU runtimes leave threads and exit handlers that must stay mapped. */
gac_status gac_plugin_load(const gac_library_kind *kind, const char *path, const gac_backend **out,
                           gac_error *err);

/* The built-in CPU backend. */
const gac_backend *gac_cpu_backend(void);

#endif
