/* Which sizes may be chosen. */
#include "compress/compress_internal.h"

#include <stdlib.h>

/* A candidate every so many numbers: fine where sizes are small, and never so many that
 * neighbours hardly differ. */
static int64_t step_at(int64_t size)
{
    return size < 1024 ? 32 : size < 4096 ? 64 : 128;
}

bool compress_is_aligned(const compression *c, int64_t size)
{
    static const gac_op_axis axes[] = { GAC_OP_GEMM_N, GAC_OP_GEMM_K };
    if (c->dtype == GAC_DTYPE_COUNT)
        return true;
    for (int i = 0; i < 2; i++) {
        gac_judgement judgement;
        if (gac_contract_judge(c->options->contract, axes[i], c->dtype, size, 1024, 4096,
                               &judgement, NULL) != GAC_OK ||
            !judgement.aligned)
            return false;
    }
    return true;
}

static bool may_choose(const compression *c, int64_t size)
{
    switch (c->options->align) {
    case GAC_ALIGN_NONE:
        return true;
    case GAC_ALIGN_ROUND:
        return size % c->options->multiple == 0;
    case GAC_ALIGN_CONTRACT:
        return size % step_at(size) == 0 && compress_is_aligned(c, size);
    }
    return false;
}

int64_t *compress_candidates(const compression *c, int64_t largest, int64_t n_any, size_t *n)
{
    int64_t *sizes = calloc((size_t)(largest > 0 ? largest : 0) + 1, sizeof *sizes);
    const bool all = c->options->align != GAC_ALIGN_NONE || largest <= n_any;
    *n = 0;
    for (int64_t size = 1; sizes && size <= largest; size++)
        if (may_choose(c, size) && (all || size * n_any / largest != (size - 1) * n_any / largest))
            sizes[(*n)++] = size;
    return sizes;
}

int64_t compress_smallest(const compression *c)
{
    int64_t size = 1;
    while (!may_choose(c, size))
        size++;
    return size;
}

int64_t compress_round_down(const compression *c, int64_t size)
{
    while (size > 0 && !may_choose(c, size))
        size--;
    return size;
}
