#include "base/arguments.h"
#include "engine/engine_internal.h"

gac_status gac_engine_model_context(const gac_model *model, int64_t *n_tokens, gac_error *err)
{
    GAC_REFUSE_NULL(err, model, n_tokens);
    net n;
    gac_status status = gac_net_read(model, &n, err);
    if (status != GAC_OK)
        return status;
    *n_tokens = n.max_context;
    gac_net_dispose(&n);
    return GAC_OK;
}
