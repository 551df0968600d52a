/* The input is config.json, a NUL, and the header of model.safetensors: any
 * family, any compressor. The data the header asks for is there, as zeros. */
#include <stdlib.h>
#include <string.h>

#include "fuzz_checks.h"
#include "fuzz_folder.h"

/* The end of the last data_offsets, found by looking for numbers before "]}":
 * what it gets wrong, the reader refuses. */
static uint64_t data_end(const char *text, size_t n_bytes)
{
    uint64_t end = 0;
    for (size_t i = 0; i + 1 < n_bytes; i++) {
        uint64_t value = 0, unit = 1;
        if (text[i] != ']' || text[i + 1] != '}')
            continue;
        for (size_t j = i; j-- > 0 && text[j] >= '0' && text[j] <= '9' && unit < 10000000000u;
             unit *= 10)
            value += (uint64_t)(text[j] - '0') * unit;
        end = value > end ? value : end;
    }
    return end;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    gac_error err = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;
    gac_model *model = NULL;
    const uint8_t *nul = n_bytes ? memchr(data, 0, n_bytes) : NULL;
    size_t n_config = nul ? (size_t)(nul - data) : 0;
    const char *header = nul ? (const char *)nul + 1 : NULL;
    size_t n_header = nul ? n_bytes - n_config - 1 : 0;
    gac_status status;

    if (!nul)
        return -1; /* keep such inputs out of the corpus */
    fuzz_put("config.json", data, n_config);
    fuzz_put_safetensors("model.safetensors", header, n_header, data_end(header, n_header));
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
