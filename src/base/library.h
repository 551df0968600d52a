/* Plug-ins: shared libraries of ours that are loaded when they are needed. */
#ifndef GAC_BASE_LIBRARY_H
#define GAC_BASE_LIBRARY_H

#include <gac/base.h>

typedef struct gac_library_kind {
    const char *name;     /* cuda: the file is libgac_cuda.so */
    const char *what;     /* "GPU", for messages */
    const char *variable; /* of the environment that says where it lies */
    const char *remedy;   /* what to do where there is none */
    const char *entry;    /* the function that it offers */
} gac_library_kind;

/* Finds the file and sets *path, which the caller frees. chosen is the value of the variable:
 * a file or a folder. If chosen is NULL or "", the function searches folder,
 * folder/../lib/gac and folder/../lib. folder is the program's own folder, or NULL if unknown. */
gac_status gac_library_find(const gac_library_kind *kind, const char *chosen, const char *folder,
                            char **path, gac_error *err);
/* The same, with the value of the variable and the program's folder. */
gac_status gac_library_find_own(const gac_library_kind *kind, char **path, gac_error *err);

/* Loads the library at path and sets *entry, of a pointer's size, to its function. Close it
 * with dlclose where the function offers something else. */
gac_status gac_library_open(const gac_library_kind *kind, const char *path, void *entry,
                            void **library, gac_error *err);

#endif
