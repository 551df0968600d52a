#include "fuzz_checks.h"

#include <string.h>

#include <gac/engine.h>

void fuzz_check_refusal(gac_status status, const gac_error *err)
{
    size_t n = strnlen(err->text, sizeof err->text);
    FUZZ_CHECK(status == GAC_BAD_INPUT || status == GAC_NO_RESOURCE);
    FUZZ_CHECK(err->status == status);
    FUZZ_CHECK(n > 0 && n < sizeof err->text);
    for (size_t i = 0; i < n; i++)
        FUZZ_CHECK((unsigned char)err->text[i] >= 32 && err->text[i] != 127);
}

static void check_tensor(gac_checkpoint *c, int32_t index)
{
    gac_error err = GAC_ERROR_INIT;
    const gac_tensor *t = gac_checkpoint_tensor(c, index);
    unsigned char byte;
    int64_t n = 1;

    FUZZ_CHECK(t->file >= 0 && t->file < gac_checkpoint_n_files(c));
    FUZZ_CHECK(strlen(t->name) <= GAC_MAX_NAME_BYTES);
    FUZZ_CHECK(gac_checkpoint_find(c, t->name) == index);
    FUZZ_CHECK(t->n_axes >= 0 && t->n_axes <= GAC_MAX_AXES);
    FUZZ_CHECK(t->dtype >= 0 && t->dtype < GAC_DTYPE_COUNT);
    for (int32_t axis = 0; axis < t->n_axes; axis++) {
        FUZZ_CHECK(t->shape[axis] >= 0);
        FUZZ_CHECK(gac_mul_i64(n, t->shape[axis], &n));
    }
    FUZZ_CHECK(n == t->n_elements);
    FUZZ_CHECK((uint64_t)n * (uint64_t)gac_dtype_bits(t->dtype) == t->size_bytes * 8);
    FUZZ_CHECK(!t->strides || gac_checkpoint_is_torch(c));
    FUZZ_CHECK(t->offset <= gac_checkpoint_file_size(c, t->file));
    if (!t->strides && t->size_bytes > 0) {
        FUZZ_CHECK(t->offset >= gac_checkpoint_data_start(c, t->file));
        FUZZ_CHECK(t->size_bytes <= gac_checkpoint_file_size(c, t->file) - t->offset);
    }
    FUZZ_CHECK(gac_checkpoint_read(c, index, t->size_bytes, &byte, 1, &err) != GAC_OK);
    if (t->size_bytes > 0) {
        FUZZ_CHECK(gac_checkpoint_read(c, index, 0, &byte, 1, &err) == GAC_OK);
        FUZZ_CHECK(gac_checkpoint_read(c, index, t->size_bytes - 1, &byte, 1, &err) == GAC_OK);
    }
}

void fuzz_check_checkpoint(gac_checkpoint *c)
{
    uint64_t in_file = 0, total = 0;
    int32_t file = -1;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c); i++) {
        const gac_tensor *t = gac_checkpoint_tensor(c, i);
        check_tensor(c, i);
        FUZZ_CHECK(t->file >= file);
        if (t->file != file)
            in_file = gac_checkpoint_data_start(c, t->file);
        file = t->file;
        in_file += t->size_bytes;
        total += t->size_bytes;
        bool last =
            i + 1 == gac_checkpoint_n_tensors(c) || gac_checkpoint_tensor(c, i + 1)->file != file;
        if (last && !gac_checkpoint_is_torch(c)) /* tensors of torch may share bytes */
            FUZZ_CHECK(in_file == gac_checkpoint_file_size(c, file));
    }
    FUZZ_CHECK(total == gac_checkpoint_size_bytes(c));
    FUZZ_CHECK(gac_checkpoint_find(c, "no such tensor\n") < 0);
    for (int32_t i = 0; i < gac_checkpoint_n_notes(c); i++)
        FUZZ_CHECK(gac_checkpoint_note(c, i) != NULL);
}

static void check_dim(const gac_model *model, int32_t index)
{
    const gac_checkpoint *c = gac_model_checkpoint(model);
    const gac_dim *dim = gac_model_dim(model, index);

    FUZZ_CHECK(dim->name && dim->reason && dim->size >= 0);
    FUZZ_CHECK(gac_model_find_dim(model, dim->name) == index);
    FUZZ_CHECK(dim->role >= 0 && dim->role < GAC_ROLE_COUNT);
    FUZZ_CHECK(dim->tied_to >= -1 && dim->tied_to < gac_model_n_dims(model));
    for (int32_t i = 0; i < dim->n_places; i++) {
        const gac_place *place = &dim->places[i];
        const gac_tensor *t;
        int64_t end;
        FUZZ_CHECK(place->tensor >= 0 && place->tensor < gac_checkpoint_n_tensors(c));
        t = gac_checkpoint_tensor(c, place->tensor);
        FUZZ_CHECK(place->axis >= 0 && place->axis < t->n_axes);
        FUZZ_CHECK(place->start >= 0 && place->n_slices >= 0);
        FUZZ_CHECK(gac_mul_i64(place->n_slices, dim->size, &end));
        FUZZ_CHECK(gac_add_i64(end, place->start, &end));
        FUZZ_CHECK(end <= t->shape[place->axis]);
    }
}

static void check_op(const gac_model *model, int32_t index)
{
    const gac_op *op = gac_model_op(model, index);
    int32_t n_dims = gac_model_n_dims(model);

    FUZZ_CHECK(op->tensor >= -1);
    FUZZ_CHECK(op->tensor < gac_checkpoint_n_tensors(gac_model_checkpoint(model)));
    FUZZ_CHECK((op->kind == GAC_OP_SDPA) == (op->tensor < 0));
    if (op->kind == GAC_OP_SDPA) {
        FUZZ_CHECK(op->qk_dim >= 0 && op->qk_dim < n_dims);
        FUZZ_CHECK(op->v_dim >= 0 && op->v_dim < n_dims);
        FUZZ_CHECK(op->n_q_heads >= 0 && op->n_kv_heads >= 0);
    } else {
        FUZZ_CHECK(op->n >= 0 && op->k >= 0);
    }
    for (int32_t i = 0; i < op->n_terms; i++)
        FUZZ_CHECK(op->terms[i].dim >= 0 && op->terms[i].dim < n_dims);
}

void fuzz_check_model(const gac_model *model)
{
    FUZZ_CHECK(gac_model_family(model) && gac_model_compressor(model));
    FUZZ_CHECK(gac_model_n_layers(model) >= 0);
    for (int32_t i = 0; i < gac_model_n_dims(model); i++)
        check_dim(model, i);
    for (int32_t i = 0; i < gac_model_n_ops(model); i++)
        check_op(model, i);
    for (int32_t i = 0; i < gac_model_n_unexplained(model); i++)
        FUZZ_CHECK(gac_model_unexplained(model, i) <
                   gac_checkpoint_n_tensors(gac_model_checkpoint(model)));
}

void fuzz_check_engine(const gac_model *model)
{
    gac_error err = GAC_ERROR_INIT;
    int64_t n_tokens = 0;
    gac_status status = gac_engine_model_context(model, &n_tokens, &err);
    if (status == GAC_OK)
        FUZZ_CHECK(n_tokens >= 1);
    else
        fuzz_check_refusal(status, &err);
}
