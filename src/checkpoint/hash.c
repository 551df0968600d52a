/* Hashes of tensors, made beside other work on the same data. */
#include <pthread.h>
#include <stdlib.h>
#include <xxhash.h>

#include "base/arguments.h"
#include "checkpoint/checkpoint_internal.h"

/* Tensors below THREAD_BYTES are not worth a thread. */
enum { BUFFER_BYTES = 1 << 20, THREAD_BYTES = 1 << 20 };

struct gac_tensor_hash {
    gac_file *file;
    uint64_t offset, n_bytes;
    uint64_t result;
    gac_status status;
    gac_error error;
    pthread_t thread;
    bool started;
};

static void *work(void *user)
{
    gac_tensor_hash *h = user;
    XXH3_state_t *state = XXH3_createState();
    char *buffer = malloc(BUFFER_BYTES);
    h->status = state && buffer ? GAC_OK : gac_error_no_memory(&h->error);
    if (state)
        XXH3_64bits_reset(state);
    for (uint64_t at = 0; at < h->n_bytes && h->status == GAC_OK;) {
        uint64_t left = h->n_bytes - at;
        size_t n = left < BUFFER_BYTES ? (size_t)left : BUFFER_BYTES;
        h->status = gac_file_read(h->file, h->offset + at, buffer, n, &h->error);
        if (h->status == GAC_OK)
            XXH3_64bits_update(state, buffer, n);
        at += n;
    }
    h->result = h->status == GAC_OK ? XXH3_64bits_digest(state) : 0;
    XXH3_freeState(state);
    free(buffer);
    return NULL;
}

gac_status gac_tensor_hash_start(gac_checkpoint *c, int32_t tensor, gac_tensor_hash **out,
                                 gac_error *err)
{
    GAC_REFUSE_NULL_AS(err, "checkpoint, out", c, out);
    GAC_REFUSE(err, tensor < 0 || tensor >= gac_checkpoint_n_tensors(c), "there is no such tensor");
    char nothing;
    const gac_tensor *t = &c->tensors[tensor];
    gac_tensor_hash *h = calloc(1, sizeof *h);
    if (!h)
        return gac_error_no_memory(err);
    h->file = c->files[t->file].file;
    h->offset = t->offset;
    h->n_bytes = t->size_bytes;
    /* Reading nothing makes this the open file, which it stays: two threads can
     * read an open file, but only one may open it. */
    gac_status status = gac_checkpoint_read(c, tensor, 0, &nothing, 0, err);
    if (status != GAC_OK) {
        free(h);
        return status;
    }
    h->started = h->n_bytes >= THREAD_BYTES && pthread_create(&h->thread, NULL, work, h) == 0;
    *out = h;
    return GAC_OK;
}

gac_status gac_tensor_hash_finish(gac_tensor_hash *h, uint64_t *out, gac_error *err)
{
    if (!h)
        return GAC_OK;
    if (h->started)
        pthread_join(h->thread, NULL);
    else
        work(h);
    gac_status status = h->status;
    if (status != GAC_OK)
        gac_error_set(err, status, "%s", h->error.text);
    *out = h->result;
    free(h);
    return status;
}

uint64_t gac_hash_bytes(const void *data, size_t n_bytes)
{
    return XXH3_64bits(data, n_bytes);
}
