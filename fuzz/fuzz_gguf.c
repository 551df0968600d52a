/* The input is a whole GGUF file: opened, every tensor and key looked at, and
 * converted. */
#include <limits.h>
#include <stdlib.h>
#include <string.h>

#include "checkpoint/gguf.h"
#include "fuzz_checks.h"
#include "fuzz_folder.h"

static void check_tensor(gac_gguf *gguf, int32_t index)
{
    static float floats[256];
    gac_error err = GAC_ERROR_INIT;
    const gac_gguf_tensor *t = gac_gguf_tensor_at(gguf, index);
    int64_t n = 1, in_block = gac_ggml_block_elements(t->type);
    FUZZ_CHECK(gac_gguf_find_tensor(gguf, t->name) == index);
    FUZZ_CHECK(gac_ggml_type_name(t->type) != NULL);
    FUZZ_CHECK(t->n_axes >= 0 && t->n_axes <= GAC_MAX_GGUF_AXES);
    for (int32_t axis = 0; axis < t->n_axes; axis++)
        FUZZ_CHECK(t->shape[axis] > 0 && gac_mul_i64(n, t->shape[axis], &n));
    FUZZ_CHECK(n == t->n_elements && n % in_block == 0);
    FUZZ_CHECK(t->offset % gac_gguf_alignment(gguf) == 0);
    FUZZ_CHECK(gac_gguf_read(gguf, index, 0, in_block, floats, &err) == GAC_OK);
    FUZZ_CHECK(gac_gguf_read(gguf, index, n - in_block, in_block, floats, &err) == GAC_OK);
    FUZZ_CHECK(gac_gguf_read(gguf, index, n, in_block, floats, &err) != GAC_OK);
}

/* Every byte a lookup hands out can be read. */
static unsigned sum_of(const char *text, size_t n_bytes)
{
    unsigned sum = 0;
    for (size_t i = 0; i < n_bytes; i++)
        sum += (unsigned char)text[i];
    return sum;
}

static unsigned check_key(const gac_gguf *gguf, int32_t key)
{
    const char *text;
    size_t n_bytes;
    gac_gguf_kind kind;
    int64_t n, integer;
    double number;
    bool truth;
    unsigned sum = 0;
    FUZZ_CHECK(gac_gguf_find_key(gguf, gac_gguf_key(gguf, key)) == key);
    bool integral = gac_gguf_integer(gguf, key, &integer);
    FUZZ_CHECK(!integral || gac_gguf_number(gguf, key, &number));
    FUZZ_CHECK(gac_gguf_bool(gguf, key, &truth) ==
               (gac_gguf_value_kind(gguf, key) == GAC_GGUF_BOOL));
    if (gac_gguf_string(gguf, key, &text, &n_bytes))
        sum += sum_of(text, n_bytes);
    if (!gac_gguf_array(gguf, key, &kind, &n))
        return sum;
    for (int64_t i = 0; i < n; i++) {
        sum += gac_gguf_array_number(gguf, key, i, &number);
        sum += gac_gguf_array_integer(gguf, key, i, &integer);
        FUZZ_CHECK(gac_gguf_array_string(gguf, key, i, &text, &n_bytes) ==
                   (kind == GAC_GGUF_STRING));
        if (kind == GAC_GGUF_STRING)
            sum += sum_of(text, n_bytes);
    }
    FUZZ_CHECK(!gac_gguf_array_integer(gguf, key, n, &integer));
    FUZZ_CHECK(!gac_gguf_array_string(gguf, key, n, &text, &n_bytes));
    return sum;
}

/* What was converted opens, and is a model without a tensor left over. */
static void check_converted(const char *path)
{
    gac_error err = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    FUZZ_CHECK(gac_checkpoint_open(path, NULL, &checkpoint, &err) == GAC_OK);
    fuzz_check_checkpoint(checkpoint);
    FUZZ_CHECK(gac_model_create(checkpoint, &model, &err) == GAC_OK);
    FUZZ_CHECK(gac_model_n_unexplained(model) == 0);
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static char *path, *out;
    unsigned sum = 0;
    gac_error err = GAC_ERROR_INIT;
    gac_gguf *gguf = NULL;
    gac_convert_options options = GAC_CONVERT_OPTIONS_INIT;
    gac_convert_result result;

    if (!path) {
        path = fuzz_path("in.gguf");
        out = fuzz_path("out");
    }
    fuzz_put("in.gguf", data, n_bytes);
    gac_status status = gac_gguf_open(path, &gguf, &err);
    if (status != GAC_OK) {
        fuzz_check_refusal(status, &err);
        return 0;
    }
    for (int32_t i = 0; i < gac_gguf_n_tensors(gguf); i++)
        check_tensor(gguf, i);
    for (int32_t i = 0; i < gac_gguf_n_keys(gguf); i++)
        sum += check_key(gguf, i);
    FUZZ_CHECK(sum != UINT_MAX); /* so that the reads happen */
    gac_gguf_close(gguf);
    options.replace = options.no_sync = true;
    options.dtype = GAC_DTYPE_BF16;
    status = gac_convert_gguf(path, out, &options, &result, &err);
    if (status == GAC_OK)
        check_converted(out);
    else if (status != GAC_USAGE) /* a weight too large for BF16 */
        fuzz_check_refusal(status, &err);
    return 0;
}
