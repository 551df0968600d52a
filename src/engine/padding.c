/* How far the engine has a GPU pad sizes. */
#include "engine/engine_internal.h"

static int64_t up_to(int64_t size, int64_t unit)
{
    return (size + unit - 1) / unit * unit;
}

int64_t gac_engine_padding(gac_size_kind kind, int64_t size)
{
    if (size < 1)
        return size;
    if (kind != GAC_SIZE_WIDTH)
        return up_to(size, 8);
    int64_t tile = up_to(size, 64);
    return tile - size <= size / 64 ? tile : up_to(size, 16);
}
