/* SVD-LLM: X = …q_proj is stored as …q_v_proj [r, in] and …q_u_proj [out, r]. */
#include <string.h>

#include "model/model_internal.h"

gac_status convention_svd_llm(builder *b, const char *module, linear *out, gac_error *err)
{
    static const char suffix[] = "_proj";
    size_t n = strlen(module), m = sizeof suffix - 1;
    if (n <= m || strcmp(module + n - m, suffix) != 0)
        return GAC_OK;
    const char *v = gac_arena_printf(b->arena, "%.*s_v_proj", (int)(n - m), module);
    const char *u = gac_arena_printf(b->arena, "%.*s_u_proj", (int)(n - m), module);
    if (!v || !u)
        return gac_error_no_memory(err);
    int32_t first = builder_find(b, "%s.weight", v), second = builder_find(b, "%s.weight", u);
    if (first < 0 || second < 0)
        return GAC_OK;
    b->found |= FOUND_SVD_LLM;
    pair_names names = { builder_display(b, "%s.rank", module), v, u, NULL };
    return linear_from_pair(b, &names, first, second, -1, out, err);
}
