/* Decodes ggml's blocks to floats. Every product and sum is rounded by itself,
 * as in ggml's reference. Each has its own statement, so that no compiler may
 * fuse them. */
#include <string.h>

#include "base/floats.h"
#include "checkpoint/gguf_internal.h"

typedef void decoder(const uint8_t *block, float *out);

static float half_at(const uint8_t *bytes)
{
    return gac_f16_to_float((uint16_t)gguf_little(bytes, 2));
}

static void decode_f32(const uint8_t *block, float *out)
{
    uint32_t bits = (uint32_t)gguf_little(block, 4);
    memcpy(out, &bits, sizeof bits);
}

static void decode_f16(const uint8_t *block, float *out)
{
    *out = half_at(block);
}

static void decode_bf16(const uint8_t *block, float *out)
{
    *out = gac_bf16_to_float((uint16_t)gguf_little(block, 2));
}

/* Block: scale F16, 32 x I8. */
static void decode_q8_0(const uint8_t *block, float *out)
{
    float scale = half_at(block);
    for (int i = 0; i < 32; i++)
        out[i] = scale * (float)(int8_t)block[2 + i];
}

/* Block: scale F16, 16 bytes. Byte i has element i in its low half and element
 * i + 16 in its high half. */
static void decode_q4_0(const uint8_t *block, float *out)
{
    float scale = half_at(block);
    for (int i = 0; i < 16; i++) {
        out[i] = scale * (float)((block[2 + i] & 15) - 8);
        out[i + 16] = scale * (float)((block[2 + i] >> 4) - 8);
    }
}

/* Block: scale F16, minimum F16, 16 bytes as in Q4_0, unsigned. */
static void decode_q4_1(const uint8_t *block, float *out)
{
    float scale = half_at(block), least = half_at(block + 2);
    for (int i = 0; i < 16; i++) {
        float low = scale * (float)(block[4 + i] & 15);
        float high = scale * (float)(block[4 + i] >> 4);
        out[i] = low + least;
        out[i + 16] = high + least;
    }
}

/* Unpacks the scales and minimums of eight groups, six bits each, from 12
 * bytes. The first four scales are in the low bits of bytes 0 to 3, the first
 * four minimums in those of bytes 4 to 7. The others have their low four bits
 * in bytes 8 to 11, and their high two bits at the top of bytes 0 to 7. */
static void unpack_scales(const uint8_t packed[12], unsigned scales[8], unsigned leasts[8])
{
    for (int i = 0; i < 4; i++) {
        scales[i] = packed[i] & 63;
        leasts[i] = packed[i + 4] & 63;
        scales[i + 4] = (packed[i + 8] & 15) | (unsigned)(packed[i] >> 6) << 4;
        leasts[i + 4] = (unsigned)packed[i + 8] >> 4 | (unsigned)(packed[i + 4] >> 6) << 4;
    }
}

/* Block: scale F16, scale of the minimums F16, 12 bytes of both for 8 groups of
 * 32 elements, 128 bytes. Each 32 bytes hold an even group in their low halves
 * and the next group in their high halves. */
static void decode_q4_k(const uint8_t *block, float *out)
{
    float scale = half_at(block), least = half_at(block + 2);
    unsigned scales[8], leasts[8];
    unpack_scales(block + 4, scales, leasts);
    for (int group = 0; group < 8; group++) {
        const uint8_t *codes = block + 16 + 32 * (group / 2);
        float step = scale * (float)scales[group];
        float offset = least * (float)leasts[group];
        for (int i = 0; i < 32; i++) {
            float product = step * (float)(group % 2 ? codes[i] >> 4 : codes[i] & 15);
            out[32 * group + i] = product - offset;
        }
    }
}

/* Block: 128 bytes of low halves, 64 bytes of high pairs of bits, 16 x I8
 * scales of 16 elements each, scale F16. Each 128 elements are four rows of 32.
 * Rows 0 and 2 share 32 low bytes, rows 1 and 3 share the next 32, and all four
 * share 32 bytes of high bits. */
static void decode_q6_k(const uint8_t *block, float *out)
{
    float scale = half_at(block + 208);
    for (int row = 0; row < 8; row++) {
        int half = row / 4, quarter = row % 4;
        const uint8_t *low = block + 64 * half + 32 * (quarter % 2);
        const uint8_t *high = block + 128 + 32 * half;
        for (int i = 0; i < 32; i++) {
            int code = (quarter < 2 ? low[i] & 15 : low[i] >> 4) | (high[i] >> (2 * quarter) & 3)
                                                                       << 4;
            float step = scale * (float)(int8_t)block[192 + 2 * row + i / 16];
            out[32 * row + i] = step * (float)(code - 32);
        }
    }
}

static const struct {
    uint32_t number;
    const char *name;
    int64_t n_elements;
    uint64_t n_bytes;
    decoder *decode;
} types[] = {
    { GAC_GGML_F32, "F32", 1, 4, decode_f32 },
    { GAC_GGML_F16, "F16", 1, 2, decode_f16 },
    { GAC_GGML_BF16, "BF16", 1, 2, decode_bf16 },
    { GAC_GGML_Q8_0, "Q8_0", 32, 34, decode_q8_0 },
    { GAC_GGML_Q4_0, "Q4_0", 32, 18, decode_q4_0 },
    { GAC_GGML_Q4_1, "Q4_1", 32, 20, decode_q4_1 },
    { GAC_GGML_Q4_K, "Q4_K", 256, 144, decode_q4_k },
    { GAC_GGML_Q6_K, "Q6_K", 256, 210, decode_q6_k },
};

enum { N_TYPES = sizeof types / sizeof *types };

static int place_of(uint32_t number)
{
    for (int i = 0; i < N_TYPES; i++)
        if (types[i].number == number)
            return i;
    return -1;
}

bool gac_ggml_type_known(uint32_t number)
{
    return place_of(number) >= 0;
}

const char *gac_ggml_foreign_name(uint32_t number)
{
    static const char *const names[] = {
        [6] = "Q5_0",   [7] = "Q5_1",    [9] = "Q8_1",     [10] = "Q2_K",   [11] = "Q3_K",
        [13] = "Q5_K",  [15] = "Q8_K",   [16] = "IQ2_XXS", [17] = "IQ2_XS", [18] = "IQ3_XXS",
        [19] = "IQ1_S", [20] = "IQ4_NL", [21] = "IQ3_S",   [22] = "IQ2_S",  [23] = "IQ4_XS",
        [24] = "I8",    [25] = "I16",    [26] = "I32",     [27] = "I64",    [28] = "F64",
        [29] = "IQ1_M", [34] = "TQ1_0",  [35] = "TQ2_0",   [39] = "MXFP4",
    };
    return number < sizeof names / sizeof *names ? names[number] : NULL;
}

const char *gac_ggml_type_name(gac_ggml_type type)
{
    return types[place_of((uint32_t)type)].name;
}

int64_t gac_ggml_block_elements(gac_ggml_type type)
{
    return types[place_of((uint32_t)type)].n_elements;
}

uint64_t gac_ggml_block_bytes(gac_ggml_type type)
{
    return types[place_of((uint32_t)type)].n_bytes;
}

void gac_ggml_decode(gac_ggml_type type, const uint8_t *blocks, int64_t n_blocks, float *out)
{
    int place = place_of((uint32_t)type);
    for (int64_t i = 0; i < n_blocks; i++)
        types[place].decode(blocks + (uint64_t)i * types[place].n_bytes,
                            out + i * types[place].n_elements);
}

gac_status gac_gguf_read(gac_gguf *gguf, int32_t tensor, int64_t first, int64_t n, float *out,
                         gac_error *err)
{
    char q[160];
    const gac_gguf_tensor *t = &gguf->tensors[tensor];
    int64_t in_block = gac_ggml_block_elements(t->type);
    uint64_t block_bytes = gac_ggml_block_bytes(t->type);
    if (first < 0 || n < 0 || first > t->n_elements || n > t->n_elements - first ||
        first % in_block != 0 || n % in_block != 0)
        return gac_error_set(err, GAC_USAGE, "tensor \"%s\": %lld elements at %lld are not its",
                             gac_quote(q, sizeof q, t->name), (long long)n, (long long)first);
    uint64_t offset = t->offset + (uint64_t)(first / in_block) * block_bytes;
    int64_t left = n / in_block, at_once = (int64_t)(GGUF_CHUNK_BYTES / block_bytes);
    while (left > 0) {
        int64_t n_blocks = left < at_once ? left : at_once;
        size_t n_bytes = (size_t)((uint64_t)n_blocks * block_bytes);
        gac_status status = gac_file_read(gguf->file, offset, gguf->blocks, n_bytes, err);
        if (status != GAC_OK)
            return status;
        gac_ggml_decode(t->type, gguf->blocks, n_blocks, out);
        out += n_blocks * in_block;
        offset += n_bytes;
        left -= n_blocks;
    }
    return GAC_OK;
}
