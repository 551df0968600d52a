/* A model that is known: token v has the logit -|v - next(id)| / 4 after id, and
 * next(id) is (5 id + 3) mod vocab. Define it before the library's own engine is
 * linked: all of gac_engine_open to gac_engine_losses is here. */
#ifndef GAC_TESTS_FAKE_ENGINE_H
#define GAC_TESTS_FAKE_ENGINE_H

#include <gac/engine.h>

typedef struct fake_engine {
    int64_t vocab, max_context, max_new;
    int64_t n_passes, n_tokens; /* that went through */
    int64_t n_cached;           /* of the last pass, with what it added */
    int64_t delay_us;           /* of a pass */
    int64_t nan_at;             /* position whose logits are not numbers; -1 none */
    int64_t odd_at;             /* position where token 7 has half too much; 0 none. Models of three
                                   layers open with 21. */
    int64_t room_batch, room_context; /* as last reserved; 0: any */
} fake_engine;

/* A model to hand to the library; gac_engine_close frees it. */
gac_engine *fake_engine_create(const fake_engine *settings);
const fake_engine *fake_engine_look(const gac_engine *engine);
int32_t fake_engine_next(int64_t vocab, int32_t id);

#endif
