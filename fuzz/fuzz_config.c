/* The input is config.json beside a small Llama-like model of one layer. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fuzz_checks.h"
#include "fuzz_folder.h"

typedef struct weight {
    const char *name;
    int n_rows, n_columns; /* 0 columns: a vector */
} weight;

/* hidden 16, two heads of 8, one of them for keys, width 24, vocabulary 10 */
static const weight weights[] = {
    { "model.embed_tokens.weight", 10, 16 },
    { "model.layers.0.input_layernorm.weight", 16, 0 },
    { "model.layers.0.self_attn.q_proj.weight", 16, 16 },
    { "model.layers.0.self_attn.k_proj.weight", 8, 16 },
    { "model.layers.0.self_attn.v_proj.weight", 8, 16 },
    { "model.layers.0.self_attn.o_proj.weight", 16, 16 },
    { "model.layers.0.post_attention_layernorm.weight", 16, 0 },
    { "model.layers.0.mlp.gate_proj.weight", 24, 16 },
    { "model.layers.0.mlp.up_proj.weight", 24, 16 },
    { "model.layers.0.mlp.down_proj.weight", 16, 24 },
    { "model.norm.weight", 16, 0 },
};

static void put_model(void)
{
    char header[4096] = "{";
    size_t used = 1;
    uint64_t end = 0;

    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        const weight *w = &weights[i];
        uint64_t begin = end;
        char shape[32];
        snprintf(shape, sizeof shape, w->n_columns ? "%d,%d" : "%d", w->n_rows, w->n_columns);
        end += (uint64_t)w->n_rows * (uint64_t)(w->n_columns ? w->n_columns : 1) * 2;
        used +=
            (size_t)snprintf(header + used, sizeof header - used,
                             "%s\"%s\":{\"dtype\":\"F16\",\"shape\":[%s],\"data_offsets\":[%" PRIu64
                             ",%" PRIu64 "]}",
                             i ? "," : "", w->name, shape, begin, end);
    }
    header[used++] = '}';
    fuzz_put_safetensors("model.safetensors", header, used, end);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static int ready;
    gac_error err = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    gac_status status;

    if (!ready)
        put_model();
    ready = 1;
    fuzz_put("config.json", data, n_bytes);
    status = gac_checkpoint_open(fuzz_folder(), NULL, &checkpoint, &err);
    if (status == GAC_OK)
        status = gac_model_create(checkpoint, &model, &err);
    if (status == GAC_OK) {
        fuzz_check_model(model);
        fuzz_check_engine(model);
    } else {
        fuzz_check_refusal(status, &err);
    }
    gac_model_free(model);
    gac_checkpoint_close(checkpoint);
    return 0;
}
