/* Proves by the record's checksums that undo wrote the original. */
#include <stdlib.h>
#include <string.h>

#include "repair/repair_internal.h"

static gac_status differs(const char *what, const char *name, gac_error *err)
{
    char q[160];
    return gac_error_set(err, GAC_BAD_INPUT,
                         "%s \"%s\": undoing does not give the original back: its checksum differs",
                         what, gac_quote(q, sizeof q, name));
}

static gac_status prove_tensors(gac_checkpoint *c, const json_t *record, gac_progress *progress,
                                gac_error *err)
{
    int32_t *ranks = NULL;
    uint64_t n_done = 0;
    gac_status status = gac_tensor_ranks(c, &ranks, err);
    gac_progress_start(progress, "checking", "bytes", gac_checkpoint_size_bytes(c));
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c) && status == GAC_OK; i++) {
        uint64_t hash = 0;
        gac_tensor_hash *job = NULL;
        status = gac_tensor_hash_start(c, i, &job, err);
        if (status == GAC_OK)
            status = gac_tensor_hash_finish(job, &hash, err);
        if (status == GAC_OK && !gac_record_hash_is(record, ranks[i], hash))
            status = differs("tensor", gac_checkpoint_tensor(c, i)->name, err);
        n_done += gac_checkpoint_tensor(c, i)->size_bytes;
        gac_progress_step(progress, n_done);
    }
    gac_progress_finish(progress);
    free(ranks);
    return status;
}

static gac_status prove_config(const gac_checkpoint *c, const json_t *record, gac_error *err)
{
    char sum[17] = "";
    char *text = NULL;
    size_t n_bytes;
    gac_file *file = NULL;
    const char *stated = json_string_value(json_object_get(record, "config_xxh3"));
    gac_status status = GAC_OK;
    if (gac_checkpoint_config(c)) {
        status = gac_checkpoint_open_file(c, gac_checkpoint_config_name(c), &file, err);
        if (status == GAC_OK)
            status = gac_file_slurp(file, GAC_MAX_CONFIG_BYTES, &text, &n_bytes, err);
        if (status == GAC_OK)
            snprintf(sum, sizeof sum, "%016llx", (unsigned long long)gac_hash_bytes(text, n_bytes));
        gac_file_close(file);
        free(text);
    }
    if (status == GAC_OK && (!stated || strcmp(stated, sum) != 0))
        status = differs("file", gac_checkpoint_config_name(c), err);
    return status;
}

gac_status gac_prove_original(const char *path, const json_t *record, gac_progress *progress,
                              bool *proved, gac_error *err)
{
    gac_checkpoint *c = NULL;
    *proved = gac_record_has_checksums(record);
    if (!*proved)
        return GAC_OK;
    gac_status status = gac_checkpoint_open(path, NULL, &c, err);
    if (status == GAC_OK && !gac_record_counts(record, gac_checkpoint_n_tensors(c)))
        status = gac_error_set(err, GAC_BAD_INPUT,
                               "%s: the record has checksums of another number of tensors", path);
    if (status == GAC_OK)
        status = prove_config(c, record, err);
    if (status == GAC_OK)
        status = prove_tensors(c, record, progress, err);
    gac_checkpoint_close(c);
    return status;
}
