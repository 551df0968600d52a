/* An arena hands out memory that is freed all at once. */
#ifndef GAC_BASE_ARENA_H
#define GAC_BASE_ARENA_H

#include <gac/base.h>

typedef struct gac_arena {
    struct gac_arena_block *last;
} gac_arena;

/* Returns zeroed memory, aligned for any type, or NULL without memory. */
void *gac_arena_alloc(gac_arena *arena, size_t n_bytes);
char *gac_arena_strdup(gac_arena *arena, const char *text);
char *gac_arena_printf(gac_arena *arena, const char *format, ...) GAC_PRINTF(2, 3);
void gac_arena_free(gac_arena *arena);

/* Makes room for one more element in a malloc'ed array. False without memory. */
bool gac_grow(void **array, int32_t n, int32_t *capacity, size_t element_bytes);

#endif
