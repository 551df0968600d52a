#include <gac/engine.h>

#include <jansson.h>

/* Qwen2 states a window that it does not use; Mistral states null. */
int64_t gac_engine_model_context(const gac_model *model)
{
    const json_t *config = gac_checkpoint_config(gac_model_checkpoint(model));
    const json_t *used = json_object_get(config, "use_sliding_window");
    int64_t limit = json_integer_value(json_object_get(config, "max_position_embeddings"));
    int64_t window = json_integer_value(json_object_get(config, "sliding_window"));
    limit = limit > 0 ? limit : 0;
    if (window > 0 && !json_is_false(used) && (limit == 0 || window < limit))
        return window;
    return limit;
}
