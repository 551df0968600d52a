/* Properties of Unicode characters, and the alphabet of byte-level BPE. */
#include "tokenizer/tokenizer_internal.h"

#include <stdlib.h>
#include <string.h>
#include <unictype.h>

bool gac_char_is_space(uint32_t c)
{
    return uc_is_property_white_space(c);
}

bool gac_char_is_word(uint32_t c)
{
    return uc_is_property_alphabetic(c) || uc_is_property_join_control(c) ||
           uc_is_general_category_withtable(c, UC_CATEGORY_MASK_M | UC_CATEGORY_MASK_Nd |
                                                   UC_CATEGORY_MASK_Pc);
}

bool gac_char_is_numeric(uint32_t c)
{
    if (c < 0x80)
        return c >= '0' && c <= '9';
    return uc_is_general_category_withtable(c, UC_CATEGORY_MASK_N);
}

/* The printable bytes of Latin-1 stand for themselves. The other bytes are
 * characters from U+0100 on. */
static bool stands_for_itself(unsigned int byte)
{
    return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

static unsigned int number_of(unsigned int byte)
{
    if (byte <= 0x20)
        return 256 + byte;
    return byte == 0xad ? 256 + 67 : 256 + 33 + byte - 0x7f;
}

size_t gac_byte_char(unsigned char byte, char out[2])
{
    unsigned int c = stands_for_itself(byte) ? byte : number_of(byte);
    if (c < 0x80) {
        out[0] = (char)c;
        return 1;
    }
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

int gac_char_byte(uint32_t c)
{
    if (c < 256)
        return stands_for_itself(c) ? (int)c : -1;
    if (c <= 256 + 32)
        return (int)c - 256;
    if (c < 256 + 67)
        return (int)c - 256 - 33 + 0x7f;
    return c == 256 + 67 ? 0xad : -1;
}
