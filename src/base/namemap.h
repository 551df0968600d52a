/* From names to small numbers, built for names an attacker may have chosen:
 * the hash is seeded anew for every map. */
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

/* Adds name, which must outlive the map. When it is there already, *existing
 * gets its number and nothing changes; otherwise *existing is -1. */
gac_status gac_namemap_add(gac_namemap *map, const char *name, int32_t number, int32_t *existing,
                           gac_error *err);
int32_t gac_namemap_find(const gac_namemap *map, const char *name); /* or -1 */
/* Likewise for a name of n bytes that does not end in NUL; NULL where n is 0. */
int32_t gac_namemap_find_n(const gac_namemap *map, const char *name, size_t n);

#endif
