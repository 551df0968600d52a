#include <gac/op.h>

#include <string.h>

static const struct {
    const char *name;
    int bits;
} dtypes[GAC_DTYPE_COUNT] = {
    [GAC_DTYPE_BOOL] = { "BOOL", 8 },
    [GAC_DTYPE_F4] = { "F4", 4 },
    [GAC_DTYPE_F6_E2M3] = { "F6_E2M3", 6 },
    [GAC_DTYPE_F6_E3M2] = { "F6_E3M2", 6 },
    [GAC_DTYPE_U8] = { "U8", 8 },
    [GAC_DTYPE_I8] = { "I8", 8 },
    [GAC_DTYPE_F8_E5M2] = { "F8_E5M2", 8 },
    [GAC_DTYPE_F8_E4M3] = { "F8_E4M3", 8 },
    [GAC_DTYPE_F8_E8M0] = { "F8_E8M0", 8 },
    [GAC_DTYPE_F8_E4M3FNUZ] = { "F8_E4M3FNUZ", 8 },
    [GAC_DTYPE_F8_E5M2FNUZ] = { "F8_E5M2FNUZ", 8 },
    [GAC_DTYPE_I16] = { "I16", 16 },
    [GAC_DTYPE_U16] = { "U16", 16 },
    [GAC_DTYPE_F16] = { "F16", 16 },
    [GAC_DTYPE_BF16] = { "BF16", 16 },
    [GAC_DTYPE_I32] = { "I32", 32 },
    [GAC_DTYPE_U32] = { "U32", 32 },
    [GAC_DTYPE_F32] = { "F32", 32 },
    [GAC_DTYPE_C64] = { "C64", 64 },
    [GAC_DTYPE_F64] = { "F64", 64 },
    [GAC_DTYPE_I64] = { "I64", 64 },
    [GAC_DTYPE_U64] = { "U64", 64 },
};

const char *gac_dtype_name(gac_dtype dtype)
{
    return (unsigned)dtype < GAC_DTYPE_COUNT ? dtypes[dtype].name : "unknown";
}

int gac_dtype_bits(gac_dtype dtype)
{
    return (unsigned)dtype < GAC_DTYPE_COUNT ? dtypes[dtype].bits : 0;
}

bool gac_dtype_parse(const char *name, gac_dtype *out)
{
    for (int i = 0; name && i < GAC_DTYPE_COUNT; i++)
        if (strcmp(dtypes[i].name, name) == 0) {
            *out = (gac_dtype)i;
            return true;
        }
    return false;
}

const char *gac_op_axis_name(gac_op_axis axis)
{
    switch (axis) {
    case GAC_OP_GEMM_N:
        return "gemm_n";
    case GAC_OP_GEMM_K:
        return "gemm_k";
    case GAC_OP_SDPA_HEAD:
        return "sdpa_head";
    case GAC_OP_AXIS_COUNT:
        break;
    }
    return "unknown";
}
