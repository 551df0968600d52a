#include "base/namemap.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct gac_namemap_slot {
    const char *name;
    uint32_t hash;
    int32_t number;
};

static uint64_t mix(uint64_t a, uint64_t b)
{
    __extension__ typedef unsigned __int128 wide;
    wide product = (wide)a * b;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

/* Hashes eight bytes per step, each mixed with the secret seed. */
static uint32_t hash_name(const gac_namemap *map, const char *name, size_t n)
{
    uint64_t h = map->seed[0] ^ n;
    for (; n >= 8; n -= 8, name += 8) {
        uint64_t word;
        memcpy(&word, name, 8);
        h = mix(h ^ word, map->seed[1]);
    }
    uint64_t word = 0;
    if (n > 0)
        memcpy(&word, name, n);
    h = mix(h ^ word, map->seed[1]);
    return (uint32_t)(h ^ (h >> 32));
}

gac_status gac_namemap_init(gac_namemap *map, gac_error *err)
{
    memset(map, 0, sizeof *map);
    if (getrandom(map->seed, sizeof map->seed, 0) != (ssize_t)sizeof map->seed)
        return gac_error_set(err, GAC_FAILED, "the system provides no random numbers");
    map->seed[1] |= 1;
    map->n_slots = 64;
    map->slots = calloc(map->n_slots, sizeof *map->slots);
    return map->slots ? GAC_OK : gac_error_no_memory(err);
}

void gac_namemap_dispose(gac_namemap *map)
{
    free(map->slots);
    map->slots = NULL;
}

/* Returns the slot that holds name, or the free slot where it belongs. */
static struct gac_namemap_slot *probe(const gac_namemap *map, const char *name, size_t n,
                                      uint32_t hash)
{
    uint32_t i = hash & (map->n_slots - 1);
    while (map->slots[i].name && (map->slots[i].hash != hash || strlen(map->slots[i].name) != n ||
                                  (n > 0 && memcmp(map->slots[i].name, name, n) != 0)))
        i = (i + 1) & (map->n_slots - 1);
    return &map->slots[i];
}

static bool double_slots(gac_namemap *map)
{
    gac_namemap bigger = *map;
    if (map->n_slots > UINT32_MAX / 2)
        return false;
    bigger.n_slots = map->n_slots * 2;
    bigger.slots = calloc(bigger.n_slots, sizeof *bigger.slots);
    if (!bigger.slots)
        return false;
    for (uint32_t i = 0; i < map->n_slots; i++)
        if (map->slots[i].name)
            *probe(&bigger, map->slots[i].name, strlen(map->slots[i].name), map->slots[i].hash) =
                map->slots[i];
    free(map->slots);
    *map = bigger;
    return true;
}

gac_status gac_namemap_add(gac_namemap *map, const char *name, int32_t number, int32_t *existing,
                           gac_error *err)
{
    if (map->n_used >= map->n_slots / 4 * 3 && !double_slots(map))
        return gac_error_no_memory(err);
    size_t n = strlen(name);
    uint32_t hash = hash_name(map, name, n);
    struct gac_namemap_slot *slot = probe(map, name, n, hash);
    *existing = slot->name ? slot->number : -1;
    if (!slot->name) {
        *slot = (struct gac_namemap_slot){ name, hash, number };
        map->n_used++;
    }
    return GAC_OK;
}

int32_t gac_namemap_find(const gac_namemap *map, const char *name)
{
    return gac_namemap_find_n(map, name, strlen(name));
}

int32_t gac_namemap_find_n(const gac_namemap *map, const char *name, size_t n)
{
    const struct gac_namemap_slot *slot = probe(map, name, n, hash_name(map, name, n));
    return slot->name ? slot->number : -1;
}
