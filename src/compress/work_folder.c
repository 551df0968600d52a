/* Finished layers on disk. Their bases and Gram matrices are needed again when the model is
 * written, and all layers together would not fit in memory. Gram matrices are kept in F32, which
 * halves them. A layer is one folder with a safetensors file, which appears complete or not at
 * all; so a job can be resumed. */
#include "compress/compress_internal.h"

#include "base/files.h"
#include "base/team.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

/* The effects of cuts: a scale for each curve, and the shares that were tried of each matrix. */
enum {
    FIRST_TRIED = GAC_PROJECTION_COUNT + CHANNELS_COUNT,
    N_SCALES = FIRST_TRIED + GAC_PROJECTION_COUNT * N_SHARES
};
#define FILE_NAME "model.safetensors"
#define FINGERPRINT "gac_compress_5" /* a number for each format or rule */

/* The folders of a layer: its curves, and its gradients. */
static const char *const kinds[] = { "layer", "gradients" };
enum { KIND_LAYER, KIND_GRADIENTS, KIND_COUNT };

static void layer_path(const compression *c, int kind, int32_t layer, const char *file, char *out,
                       size_t size)
{
    snprintf(out, size, "%s/%s-%03d%s%s", c->work, kinds[kind], layer, file ? "/" : "",
             file ? file : "");
}

/* Adds the model's config to a hash: the same tensors may make another model. */
static gac_status hash_config(const compression *c, uint64_t *hash)
{
    char *text = NULL;
    size_t n_bytes = 0;
    gac_status status = gac_json_text(gac_checkpoint_config(c->checkpoint),
                                      JSON_COMPACT | JSON_SORT_KEYS, &text, &n_bytes, c->err);
    if (status == GAC_OK)
        *hash = *hash * 31 + gac_hash_bytes(text, n_bytes);
    free(text);
    return status;
}

/* What a layer's file says it is of: a job and a layer. */
enum { LABEL_BYTES = 40 };
static void label(const compression *c, int32_t layer, char out[LABEL_BYTES])
{
    snprintf(out, LABEL_BYTES, "%s %d", c->fingerprint, layer);
}

/* Hashes all that the results of layers depend on. */
static gac_status find_fingerprint(compression *c)
{
    const gac_compress_options *o = c->options;
    char text[256];
    uint64_t hash = gac_hash_bytes(o->ids, o->n_ids * sizeof *o->ids);
    gac_status status = GAC_OK;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c->checkpoint) && status == GAC_OK; i++) {
        const gac_tensor *t = gac_checkpoint_tensor(c->checkpoint, i);
        const void *data;
        status = gac_checkpoint_map(c->checkpoint, i, &data, c->err);
        if (status != GAC_OK)
            break;
        snprintf(text, sizeof text, "%016llx %.100s %016llx", (unsigned long long)hash, t->name,
                 (unsigned long long)gac_hash_bytes(data, t->size_bytes));
        hash = gac_hash_bytes(text, strlen(text));
    }
    if (status == GAC_OK)
        status = hash_config(c, &hash);
    for (int32_t i = 0; i < o->n_exclude; i++)
        hash = hash * 31 + gac_hash_bytes(o->exclude[i], strlen(o->exclude[i]));
    snprintf(text, sizeof text, "%016llx %d %u %d %d %llu %lld %lld %lld %lld %s %s",
             (unsigned long long)hash, (int)o->method, o->choices, o->first_layer, o->n_layers,
             (unsigned long long)o->seed, (long long)c->window, (long long)c->n_windows,
             (long long)c->n_trial_windows, (long long)c->n_gradient_windows, o->device,
             GAC_VERSION);
    snprintf(c->fingerprint, sizeof c->fingerprint, "%016llx",
             (unsigned long long)gac_hash_bytes(text, strlen(text)));
    return status;
}

/* Removes a folder of a layer. Returns false if it is there and cannot be removed. */
static bool remove_layer(const compression *c, int kind, int32_t layer)
{
    char path[4096];
    layer_path(c, kind, layer, FILE_NAME, path, sizeof path);
    if (unlink(path) != 0 && errno != ENOENT && errno != ENOTDIR)
        return false;
    layer_path(c, kind, layer, NULL, path, sizeof path);
    return rmdir(path) == 0 || errno == ENOENT || errno == ENOTDIR;
}

static bool remove_layers(const compression *c)
{
    bool removed = true;
    for (int32_t i = 0; i < c->n_layers; i++)
        for (int kind = 0; kind < KIND_COUNT; kind++)
            removed = remove_layer(c, kind, i) && removed;
    return removed;
}

/* Removes the layers in the work folder, and the folder if nothing else is in it. Returns false
 * if one of them cannot be removed. */
static bool remove_work(const compression *c)
{
    const bool removed = remove_layers(c);
    return (rmdir(c->work) == 0 || errno == ENOENT || errno == ENOTEMPTY) && removed;
}

gac_status compress_clear_work(compression *c)
{
    char q[256];
    if (c->options->work || remove_work(c)) {
        c->owns_work = false; /* from now on it may be another job's */
        return GAC_OK;
    }
    return gac_error_set(c->err, GAC_FAILED, "%s: cannot be removed: %s",
                         gac_quote(q, sizeof q, c->work), strerror(errno));
}

/* Finds the fingerprint where it is needed. All processes must have the same. */
static gac_status check_sameness(compression *c)
{
    gac_team *team = c->options->team;
    char first[sizeof c->fingerprint];
    gac_status status = c->keeps_work || team ? find_fingerprint(c) : GAC_OK;
    memcpy(first, c->fingerprint, sizeof first);
    if (status == GAC_OK)
        status = gac_team_broadcast(team, 0, first, sizeof first, c->err);
    if (status == GAC_OK && strcmp(first, c->fingerprint) != 0)
        return gac_error_set(c->err, GAC_USAGE,
                             "its model, text, options or version is not that of process 0");
    return status;
}

/* Whether out can be written, before an hour of measuring. Leaves nothing behind. */
static gac_status check_target(const compression *c, const char *out)
{
    gac_writer *writer = NULL;
    gac_writer_options how = GAC_WRITER_OPTIONS_INIT;
    how.replace = c->options->replace;
    gac_status status = gac_check_apart(out, gac_checkpoint_path(c->checkpoint), c->err);
    if (status == GAC_OK)
        status = gac_check_apart(c->work, out, c->err);
    if (status == GAC_OK)
        status = gac_writer_create(out, &how, &writer, c->err);
    gac_writer_discard(writer);
    return status;
}

/* Makes the work folder if it is not there, and locks it against other jobs. Where the file system
 * has no locks, nothing is locked. */
static gac_status open_work(compression *c)
{
    char q[256];
    struct stat s;
    do {
        if (c->lock >= 0)
            close(c->lock); /* another job removed the folder meanwhile */
        const bool made = mkdir(c->work, 0700) == 0;
        if (!made && errno != EEXIST)
            return gac_error_set(c->err, GAC_FAILED, "%s: cannot make the work folder: %s",
                                 gac_quote(q, sizeof q, c->work), strerror(errno));
        c->lock = open(c->work, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        if (c->lock < 0 && errno != ENOENT) {
            gac_error_set(c->err, GAC_FAILED, "%s: %s", gac_quote(q, sizeof q, c->work),
                          strerror(errno));
            if (made)
                rmdir(c->work);
            return GAC_FAILED;
        }
        if (c->lock >= 0 && flock(c->lock, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
            return gac_error_set(c->err, GAC_FAILED, "%s: another job is at work here",
                                 gac_quote(q, sizeof q, c->work));
    } while (c->lock < 0 || (fstat(c->lock, &s) == 0 && s.st_nlink == 0));
    c->owns_work = true;
    return GAC_OK;
}

gac_status compress_start_work(compression *c, const char *out)
{
    const char *own = c->options->work;
    size_t n = strlen(own ? own : out);
    while (!own && n > 1 && out[n - 1] == '/')
        n--;
    c->keeps_work = own || c->options->resume;
    c->work = malloc(n + 8);
    if (!c->work)
        return gac_error_no_memory(c->err);
    snprintf(c->work, n + 8, "%.*s%s", (int)n, own ? own : out, own ? "" : ".work");
    gac_status status = check_sameness(c);
    if (status != GAC_OK || !gac_team_is_first(c->options->team))
        return status;
    if (!c->options->dry_run)
        status = check_target(c, out);
    if (status == GAC_OK)
        status = gac_check_apart(c->work, gac_checkpoint_path(c->checkpoint), c->err);
    if (status != GAC_OK)
        return status;
    status = open_work(c);
    if (status == GAC_OK && !c->keeps_work)
        remove_layers(c);
    return status;
}

void compress_end_work(compression *c, bool keep)
{
    if (c->owns_work && !keep)
        remove_work(c);
    if (c->lock >= 0)
        close(c->lock);
    free(c->work);
    c->work = NULL;
}

/* One tensor of a layer's file. */
typedef struct part {
    char name[48];
    gac_dtype dtype;
    int64_t shape[2];
    const void *data;
} part;

enum { MAX_PARTS = 3 * GAC_PROJECTION_COUNT + 3 * CHANNELS_COUNT + 1 };

static void add_part(part *parts, int *n, const char *kind, int index, gac_dtype dtype,
                     int64_t n_rows, int64_t n_cols, const void *data)
{
    part *p = &parts[(*n)++];
    *p = (part){ .dtype = dtype, .shape = { n_rows, n_cols }, .data = data };
    snprintf(p->name, sizeof p->name, "%s.%d", kind, index);
}

/* A square matrix in F32; its own memory is freed. NULL: no memory. */
static float *narrow(double **gram, int64_t n)
{
    float *out = malloc((size_t)(n * n) * sizeof *out);
    for (int64_t i = 0; out && i < n * n; i++)
        out[i] = (float)(*gram)[i];
    free(*gram);
    *gram = NULL;
    return out;
}

static int list_parts(const layer_stats *l, const double *scales, float *const *grams, part *parts)
{
    int n = 0;
    add_part(parts, &n, "scales", 0, GAC_DTYPE_F64, 1, N_SCALES, scales);
    for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
        const matrix_stats *m = &l->matrix[p];
        if (!m->energy)
            continue;
        add_part(parts, &n, "energy", p, GAC_DTYPE_F64, m->n_parts, m->n, m->energy);
        add_part(parts, &n, "basis", p, GAC_DTYPE_F32, m->n_out, m->n_basis, m->basis);
        if (m->second)
            add_part(parts, &n, "second", p, GAC_DTYPE_F32, m->n_out, m->n_basis, m->second);
    }
    for (int k = 0; k < CHANNELS_COUNT; k++) {
        const channel_stats *s = &l->channels[k];
        const int64_t n_inputs = s->n_groups * s->block;
        if (!s->order)
            continue;
        add_part(parts, &n, "order", k, GAC_DTYPE_I32, 1, s->n_groups, s->order);
        add_part(parts, &n, "loss", k, GAC_DTYPE_F64, 1, s->n_groups + 1, s->loss);
        add_part(parts, &n, "gram", k, GAC_DTYPE_F32, n_inputs, n_inputs, grams[k]);
    }
    return n;
}

static gac_status write_parts(compression *c, int kind, int32_t layer, const part *parts, int n)
{
    char path[4096], of[LABEL_BYTES];
    gac_writer *writer = NULL;
    gac_writer_options how = GAC_WRITER_OPTIONS_INIT;
    label(c, layer, of);
    json_t *metadata = json_pack("{s:s}", FINGERPRINT, of);
    how.max_shard_bytes = UINT64_MAX / 2;
    how.no_sync = c->options->no_sync || !c->keeps_work;
    how.replace = true;
    how.metadata = metadata;
    layer_path(c, kind, layer, NULL, path, sizeof path);
    gac_status status =
        metadata ? gac_writer_create(path, &how, &writer, c->err) : gac_error_no_memory(c->err);
    for (int i = 0; i < n && status == GAC_OK; i++)
        status =
            gac_writer_add(writer, parts[i].name, parts[i].dtype, 2, parts[i].shape, NULL, c->err);
    if (status == GAC_OK)
        status = gac_writer_layout(writer, c->err);
    for (int i = 0; i < n && status == GAC_OK; i++) {
        size_t bytes = (size_t)(parts[i].shape[0] * parts[i].shape[1]) *
                       (size_t)gac_dtype_bits(parts[i].dtype) / 8;
        status = gac_writer_write(writer, i, 0, parts[i].data, bytes, c->err);
    }
    if (status == GAC_OK)
        status = gac_writer_finish(writer, c->err);
    else
        gac_writer_discard(writer);
    json_decref(metadata);
    return status;
}

static gac_status write_layer(compression *c, int32_t layer)
{
    layer_stats *l = &c->layers[layer];
    double scales[N_SCALES];
    part parts[MAX_PARTS];
    float *grams[CHANNELS_COUNT] = { NULL };
    bool have_grams = true;
    for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
        scales[p] = l->matrix[p].scale;
        memcpy(&scales[FIRST_TRIED + p * N_SHARES], l->matrix[p].tried, sizeof l->matrix[p].tried);
    }
    for (int k = 0; k < CHANNELS_COUNT; k++)
        scales[GAC_PROJECTION_COUNT + k] = l->channels[k].scale;
    for (int k = 0; k < CHANNELS_COUNT; k++)
        if (l->channels[k].order) {
            grams[k] = narrow(&l->channels[k].gram, l->channels[k].n_groups * l->channels[k].block);
            have_grams = have_grams && grams[k];
        }
    const int n = list_parts(l, scales, grams, parts);
    gac_status status =
        have_grams ? write_parts(c, KIND_LAYER, layer, parts, n) : gac_error_no_memory(c->err);
    for (int k = 0; k < CHANNELS_COUNT; k++)
        free(grams[k]);
    return status;
}

gac_status compress_save_gradients(compression *c, int32_t layer, double **sums)
{
    part parts[GAC_PROJECTION_COUNT];
    float *narrowed[GAC_PROJECTION_COUNT] = { NULL };
    gac_status status = GAC_OK;
    int n = 0;
    for (int p = 0; p < GAC_PROJECTION_COUNT && status == GAC_OK; p++) {
        const int64_t n_out = c->layers[layer].matrix[p].n_out;
        if (!sums[p])
            continue;
        narrowed[p] = narrow(&sums[p], n_out);
        add_part(parts, &n, "sums", p, GAC_DTYPE_F32, n_out, n_out, narrowed[p]);
        status = narrowed[p] ? GAC_OK : gac_error_no_memory(c->err);
    }
    if (status == GAC_OK)
        status = write_parts(c, KIND_GRADIENTS, layer, parts, n);
    for (int p = 0; p < GAC_PROJECTION_COUNT; p++)
        free(narrowed[p]);
    return status;
}

gac_status compress_save_layer(compression *c, int32_t layer)
{
    layer_stats *l = &c->layers[layer];
    gac_status status = gac_team_is_first(c->options->team) ? write_layer(c, layer) : GAC_OK;
    for (int p = 0; p < GAC_PROJECTION_COUNT; p++) {
        free(l->matrix[p].basis);
        free(l->matrix[p].second);
        l->matrix[p].basis = l->matrix[p].second = NULL;
    }
    for (int k = 0; k < CHANNELS_COUNT; k++) {
        free(l->channels[k].gram);
        l->channels[k].gram = NULL;
    }
    return status;
}

gac_status compress_open_layer(const compression *c, int32_t layer, gac_checkpoint **out)
{
    char path[4096];
    layer_path(c, KIND_LAYER, layer, FILE_NAME, path, sizeof path);
    return gac_checkpoint_open(path, NULL, out, c->err);
}

/* Copies a part of n numbers, or returns NULL where it is not there in this shape. */
static void *copy_part(const gac_checkpoint *file, const char *kind, int index, int64_t n,
                       gac_dtype dtype)
{
    char name[48];
    const void *data;
    snprintf(name, sizeof name, "%s.%d", kind, index);
    int32_t at = gac_checkpoint_find(file, name);
    const gac_tensor *t = at < 0 ? NULL : gac_checkpoint_tensor(file, at);
    if (!t || t->dtype != dtype || t->n_elements != n ||
        gac_checkpoint_map(file, at, &data, NULL) != GAC_OK)
        return NULL;
    void *copy = malloc(t->size_bytes);
    if (copy)
        memcpy(copy, data, t->size_bytes);
    return copy;
}

static bool is_of(const compression *c, int32_t layer, const gac_checkpoint *file)
{
    char wanted[LABEL_BYTES];
    const char *stated =
        json_string_value(json_object_get(gac_checkpoint_metadata(file, 0), FINGERPRINT));
    label(c, layer, wanted);
    return stated && strcmp(stated, wanted) == 0;
}

/* Opens a folder of a layer if it is of this job; *out is NULL if there is none. */
static gac_status open_measured(const compression *c, int kind, int32_t layer, gac_checkpoint **out)
{
    char path[4096];
    *out = NULL;
    layer_path(c, kind, layer, FILE_NAME, path, sizeof path);
    if (access(path, R_OK) != 0)
        return GAC_OK;
    gac_status status = gac_checkpoint_open(path, NULL, out, c->err);
    if (status == GAC_BAD_INPUT) { /* damaged: measured anew */
        remove_layer(c, kind, layer);
        return GAC_OK;
    }
    if (status == GAC_OK && !is_of(c, layer, *out)) {
        gac_checkpoint_close(*out);
        *out = NULL;
    }
    return status;
}

/* The sums of one projection in an open file, as a copy, or NULL. */
static float *copy_sums(const compression *c, const gac_checkpoint *file, int32_t layer,
                        int projection)
{
    const int64_t n = c->layers[layer].matrix[projection].n_out;
    return copy_part(file, "sums", projection, n * n, GAC_DTYPE_F32);
}

bool compress_have_gradients(const compression *c)
{
    bool have = c->keeps_work;
    for (int32_t l = 0; l < c->n_layers && have; l++) {
        gac_checkpoint *file = NULL;
        have = open_measured(c, KIND_GRADIENTS, l, &file) == GAC_OK && file;
        for (int p = 0; p < GAC_PROJECTION_COUNT && have; p++) {
            float *sums = compress_weighs(c, p) ? copy_sums(c, file, l, p) : NULL;
            have = sums || !compress_weighs(c, p);
            free(sums);
        }
        gac_checkpoint_close(file);
    }
    return have;
}

gac_status compress_load_gradients(compression *c, int32_t layer, int projection, double *sums)
{
    const int64_t n = c->layers[layer].matrix[projection].n_out;
    gac_checkpoint *file = NULL;
    char path[4096], q[256];
    gac_status status = open_measured(c, KIND_GRADIENTS, layer, &file);
    float *copy = status == GAC_OK && file ? copy_sums(c, file, layer, projection) : NULL;
    layer_path(c, KIND_GRADIENTS, layer, NULL, path, sizeof path);
    if (status == GAC_OK && !copy)
        status = gac_error_set(c->err, GAC_FAILED, "%s: the gradients cannot be read",
                               gac_quote(q, sizeof q, path));
    for (int64_t i = 0; copy && i < n * n; i++)
        sums[i] = (double)copy[i];
    free(copy);
    gac_checkpoint_close(file);
    return status;
}

static gac_status load_layer(compression *c, int32_t layer, bool *found)
{
    layer_stats *l = &c->layers[layer];
    gac_checkpoint *file = NULL;
    *found = false;
    if (!c->keeps_work)
        return GAC_OK;
    gac_status status = open_measured(c, KIND_LAYER, layer, &file);
    if (status != GAC_OK || !file)
        return status;
    double *scales = copy_part(file, "scales", 0, N_SCALES, GAC_DTYPE_F64);
    for (int p = 0; p < GAC_PROJECTION_COUNT && scales; p++) {
        matrix_stats *m = &l->matrix[p];
        m->scale = scales[p];
        memcpy(m->tried, &scales[FIRST_TRIED + p * N_SHARES], sizeof m->tried);
        m->energy = copy_part(file, "energy", p, m->n_parts * m->n, GAC_DTYPE_F64);
        m->n_basis = compress_break_even(m);
        for (int64_t i = m->n_parts * m->n - 1; m->energy && i >= 0; i--)
            m->total += m->energy[i];
    }
    for (int k = 0; k < CHANNELS_COUNT && scales; k++) {
        channel_stats *s = &l->channels[k];
        s->scale = scales[GAC_PROJECTION_COUNT + k];
        s->order = copy_part(file, "order", k, s->n_groups, GAC_DTYPE_I32);
        s->loss = copy_part(file, "loss", k, s->n_groups + 1, GAC_DTYPE_F64);
    }
    *found = scales != NULL;
    free(scales);
    gac_checkpoint_close(file);
    return GAC_OK;
}

gac_status compress_load_layer(compression *c, int32_t layer, bool *found)
{
    gac_team *team = c->options->team;
    gac_status status = gac_team_is_first(team) ? load_layer(c, layer, found) : GAC_OK;
    return status == GAC_OK ? gac_team_broadcast(team, 0, found, sizeof *found, c->err) : status;
}
