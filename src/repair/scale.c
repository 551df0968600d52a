/* Multiplies stored elements and rounds to the nearest value of the dtype. */
#include "base/floats.h"
#include "repair/repair_internal.h"

bool gac_scale_elements(void *data, uint64_t n, gac_dtype dtype, double factor)
{
    uint16_t *half = data;
    float *single = data;
    double *wide = data;
    switch (dtype) {
    case GAC_DTYPE_F16:
        for (uint64_t i = 0; i < n; i++)
            half[i] = gac_f16_from_float((float)(gac_f16_to_float(half[i]) * factor));
        return true;
    case GAC_DTYPE_BF16:
        for (uint64_t i = 0; i < n; i++)
            half[i] = gac_bf16_from_float((float)(gac_bf16_to_float(half[i]) * factor));
        return true;
    case GAC_DTYPE_F32:
        for (uint64_t i = 0; i < n; i++)
            single[i] = (float)(single[i] * factor);
        return true;
    case GAC_DTYPE_F64:
        for (uint64_t i = 0; i < n; i++)
            wide[i] *= factor;
        return true;
    default:
        return false;
    }
}
