/* Maps names to small numbers. An attacker may choose the names, so every map
 * has its own hash seed. */
#ifndef GAC_BASE_NAMEMAP_H
#define GAC_BASE_NAMEMAP_H

#include <gac/base.h>

typedef struct gac_namemap {
    struct gac_namemap_slot *slots;
    uint32_t n_slots; /* a power of two */
    uint32_t n_used;
    uint64_t seed[2];
} gac_namemap;

gac_status gac_namemap_init(gac_namemap *map, gac_error *err);
void gac_namemap_dispose(gac_namemap *map);

/* Adds name, which must outlive the map. If it is already present, *existing
 * gets its number and nothing changes. Otherwise *existing is -1. */
gac_status gac_namemap_add(gac_namemap *map, const char *name, int32_t number, int32_t *existing,
                           gac_error *err);
int32_t gac_namemap_find(const gac_namemap *map, const char *name); /* -1 if absent */
/* The same for a name of n bytes without a NUL. name may be NULL if n is 0. */
int32_t gac_namemap_find_n(const gac_namemap *map, const char *name, size_t n);

#endif
