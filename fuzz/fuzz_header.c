/* The input is a whole safetensors file. */
#include <stdlib.h>

#include "fuzz_checks.h"
#include "fuzz_folder.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static char *path;
    gac_error err = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;
    gac_status status;

    if (!path)
        path = fuzz_path("in.safetensors");
    fuzz_put("in.safetensors", data, n_bytes);
    status = gac_checkpoint_open(path, NULL, &checkpoint, &err);
    if (status == GAC_OK)
        fuzz_check_checkpoint(checkpoint);
    else
        fuzz_check_refusal(status, &err);
    gac_checkpoint_close(checkpoint);
    return 0;
}
