/* Growing buffers of bytes, and UTF-8. */
#ifndef GAC_BASE_UTF8_H
#define GAC_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct byte_buffer {
    char *data;
    size_t n, capacity;
} byte_buffer;

bool gac_bytes_append(byte_buffer *to, const char *data, size_t n);
void gac_bytes_dispose(byte_buffer *buffer);

/* Returns the length of the valid UTF-8 character at text, or 0. Then *bad gets
 * the number of bytes that one U+FFFD replaces. */
size_t gac_utf8_check(const char *text, size_t n, size_t *bad);
/* Replaces broken bytes by U+FFFD. *text then points to valid UTF-8, in room
 * unless the text was valid already. */
bool gac_utf8_repair(const char **text, size_t *n, byte_buffer *room);
/* Returns the character at text, which is valid UTF-8, and its length. */
uint32_t gac_utf8_get(const char *text, size_t *length);
/* Returns where the character that ends at text + n begins. */
size_t gac_utf8_before(const char *text, size_t n);

#endif
