/* Hashes tensors from bytes that other code already has in memory. */
#include <stdlib.h>
#include <string.h>
#ifdef GAC_XXH_DISPATCH
#include <xxh_x86dispatch.h> /* chooses the processor's widest vectors at run time */
#else
#include <xxhash.h>
#endif

#include "base/arguments.h"
#include "checkpoint/checkpoint_internal.h"

/* The buffer fits into a core's own cache. */
enum { BUFFER_BYTES = 256 << 10 };

struct gac_tensor_hash {
    gac_checkpoint *checkpoint;
    int32_t tensor;
    uint64_t n_fed;
    XXH3_state_t *state;
};

/* Hashes dtype, shape and name first, so that equal bytes of another kind of
 * tensor have another hash. */
static void hash_description(XXH3_state_t *state, const gac_tensor *t)
{
    char text[32];
    int n = snprintf(text, sizeof text, "%s ", gac_dtype_name(t->dtype));
    XXH3_64bits_update(state, text, (size_t)n);
    for (int32_t a = 0; a < t->n_axes; a++) {
        n = snprintf(text, sizeof text, "%s%lld", a ? "," : "", (long long)t->shape[a]);
        XXH3_64bits_update(state, text, (size_t)n);
    }
    XXH3_64bits_update(state, " ", 1);
    XXH3_64bits_update(state, t->name, strlen(t->name) + 1);
}

gac_status gac_tensor_hash_start(gac_checkpoint *c, int32_t tensor, gac_tensor_hash **out,
                                 gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "checkpoint, out", c, out);
    GAC_REFUSE(err, tensor < 0 || tensor >= gac_checkpoint_n_tensors(c), "there is no such tensor");
    *out = NULL;
#ifdef GAC_NO_HASH /* only for measuring the cost of hashing (bench/bench_hash.py) */
    return GAC_OK;
#endif
    gac_tensor_hash *h = calloc(1, sizeof *h);
    XXH3_state_t *state = XXH3_createState();
    if (!h || !state) {
        free(h);
        XXH3_freeState(state);
        return gac_error_no_memory(err);
    }
    XXH3_64bits_reset(state);
    hash_description(state, &c->tensors[tensor]);
    *h = (gac_tensor_hash){ .checkpoint = c, .tensor = tensor, .state = state };
    *out = h;
    return GAC_OK;
}

void gac_tensor_hash_feed(gac_tensor_hash *h, uint64_t offset, const void *data, size_t n_bytes)
{
    if (!h || offset != h->n_fed)
        return;
    XXH3_64bits_update(h->state, data, n_bytes);
    h->n_fed += n_bytes;
}

/* Reads and hashes the bytes that were not fed. */
static gac_status read_rest(gac_tensor_hash *h, gac_error *err)
{
    uint64_t size = h->checkpoint->tensors[h->tensor].size_bytes;
    if (h->n_fed == size)
        return GAC_OK;
    char *buffer = malloc(BUFFER_BYTES);
    gac_status status = buffer ? GAC_OK : gac_error_no_memory(err);
    while (h->n_fed < size && status == GAC_OK) {
        uint64_t left = size - h->n_fed;
        size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
        status = gac_checkpoint_read(h->checkpoint, h->tensor, h->n_fed, buffer, n, err);
        if (status == GAC_OK)
            gac_tensor_hash_feed(h, h->n_fed, buffer, n);
    }
    free(buffer);
    return status;
}

gac_status gac_tensor_hash_finish(gac_tensor_hash *h, uint64_t *out, gac_error *err)
{
    if (!h)
        return GAC_OK;
    gac_status status = read_rest(h, err);
    if (status == GAC_OK)
        *out = XXH3_64bits_digest(h->state);
    XXH3_freeState(h->state);
    free(h);
    return status;
}

uint64_t gac_hash_bytes(const void *data, size_t n_bytes)
{
    return XXH3_64bits(data, n_bytes);
}
