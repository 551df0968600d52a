/* Finding and loading a plug-in, apart from opening devices with it. */
#ifndef GAC_DEVICE_PLUGIN_H
#define GAC_DEVICE_PLUGIN_H

#include <gac/device.h>

/* Where libgac_NAME.so is. chosen is what GAC_BACKEND_PATH says: a file, a
 * folder, or NULL or "" for neither; then folder, the program's, is looked in,
 * and ../lib/gac and ../lib from there. folder is NULL where it is not known.
 * *path is malloc'ed. */
gac_status gac_plugin_find(const char *name, const char *chosen, const char *folder, char **path,
                           gac_error *err);

/* Loads the plug-in at path and checks that it is one of this version and of
 * that name. It stays loaded for good: GPU runtimes leave threads and exit
 * handlers behind that must not be unmapped. */
gac_status gac_plugin_load(const char *name, const char *path, const gac_backend **out,
                           gac_error *err);

/* The built-in reference. */
const gac_backend *gac_cpu_backend(void);

#endif
