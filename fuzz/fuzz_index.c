/* The input is the index of a directory with two small shards. */
#include <string.h>

#include "fuzz_checks.h"
#include "fuzz_folder.h"

static void put_shards(void)
{
    static const char first[] =
        "{\"a.x\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":[0,4]},"
        "\"a.y\":{\"dtype\":\"F16\",\"shape\":[2,1],\"data_offsets\":[4,8]}}";
    static const char second[] = "{\"b.x\":{\"dtype\":\"U8\",\"shape\":[],\"data_offsets\":[0,1]}}";
    fuzz_put_safetensors("model-00001-of-00002.safetensors", first, strlen(first), 8);
    fuzz_put_safetensors("model-00002-of-00002.safetensors", second, strlen(second), 1);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static int ready;
    gac_error err = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;
    gac_status status;

    if (!ready)
        put_shards();
    ready = 1;
    fuzz_put("model.safetensors.index.json", data, n_bytes);
    status = gac_checkpoint_open(fuzz_folder(), NULL, &checkpoint, &err);
    if (status == GAC_OK)
        fuzz_check_checkpoint(checkpoint);
    else
        fuzz_check_refusal(status, &err);
    gac_checkpoint_close(checkpoint);
    return 0;
}
