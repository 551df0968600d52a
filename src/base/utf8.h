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

/* Length of the valid UTF-8 character at text, or 0; *bad gets the length of
 * what would become one U+FFFD. */
size_t gac_utf8_check(const char *text, size_t n, size_t *bad);
/* Copies text, valid from here on; *out may be text itself. */
bool gac_utf8_repair(const char **text, size_t *n, byte_buffer *room);
/* The character at text, which is valid UTF-8, and its length. */
uint32_t gac_utf8_get(const char *text, size_t *length);
/* Where the character that ends at text + n begins. */
size_t gac_utf8_before(const char *text, size_t n);

#endif
