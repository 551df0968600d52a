#include "base/arena.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

enum { BLOCK_BYTES = 64 << 10, ALIGN = 16 };

struct gac_arena_block {
    struct gac_arena_block *previous;
    size_t used, size;
    _Alignas(ALIGN) char bytes[];
};

void *gac_arena_alloc(gac_arena *arena, size_t n_bytes)
{
    if (n_bytes > SIZE_MAX / 2)
        return NULL;
    n_bytes = (n_bytes + ALIGN - 1) & ~(size_t)(ALIGN - 1);
    struct gac_arena_block *block = arena->last;
    if (!block || block->size - block->used < n_bytes) {
        size_t size = n_bytes > BLOCK_BYTES ? n_bytes : BLOCK_BYTES;
        block = calloc(1, sizeof *block + size);
        if (!block)
            return NULL;
        block->size = size;
        block->previous = arena->last;
        arena->last = block;
    }
    void *memory = block->bytes + block->used;
    block->used += n_bytes;
    return memory;
}

char *gac_arena_strdup(gac_arena *arena, const char *text)
{
    size_t n = strlen(text) + 1;
    char *copy = gac_arena_alloc(arena, n);
    if (copy)
        memcpy(copy, text, n);
    return copy;
}

char *gac_arena_printf(gac_arena *arena, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    int n = vsnprintf(NULL, 0, format, args);
    va_end(args);
    char *text = n < 0 ? NULL : gac_arena_alloc(arena, (size_t)n + 1);
    if (!text)
        return NULL;
    va_start(args, format);
    vsnprintf(text, (size_t)n + 1, format, args);
    va_end(args);
    return text;
}

void gac_arena_free(gac_arena *arena)
{
    while (arena->last) {
        struct gac_arena_block *previous = arena->last->previous;
        free(arena->last);
        arena->last = previous;
    }
}

bool gac_grow(void **array, int32_t n, int32_t *capacity, size_t element_bytes)
{
    if (n < *capacity)
        return true;
    if (*capacity > INT32_MAX / 2)
        return false;
    int32_t wanted = *capacity ? *capacity * 2 : 16;
    void *bigger = reallocarray(*array, (size_t)wanted, element_bytes);
    if (!bigger)
        return false;
    *array = bigger;
    *capacity = wanted;
    return true;
}
