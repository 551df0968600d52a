/* Finds and loads a plug-in, a shared library that implements gac_backend. */
#ifndef GAC_DEVICE_PLUGIN_H
#define GAC_DEVICE_PLUGIN_H

#include <gac/device.h>

/* Finds libgac_NAME.so and sets *path, which the caller frees. chosen is the value of
 * GAC_BACKEND_PATH: a file or a folder. If chosen is NULL or "", the function searches
 * folder, folder/../lib/gac and folder/../lib. folder is the program's own folder, or
 * NULL if unknown. */
gac_status gac_plugin_find(const char *name, const char *chosen, const char *folder, char **path,
                           gac_error *err);

/* Loads the plug-in at path and checks its ABI version and name. The plug-in is never
 * unloaded, because GPU runtimes leave threads and exit handlers that must stay mapped. */
gac_status gac_plugin_load(const char *name, const char *path, const gac_backend **out,
                           gac_error *err);

/* The built-in CPU backend. */
const gac_backend *gac_cpu_backend(void);

#endif
