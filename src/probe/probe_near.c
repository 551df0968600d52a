/* Exact points at every size around common ones. */
#include "probe/probe_internal.h"

#define PART_OF_TIME 0.9

/* Both places, prefill and decode. */
static gac_status measure_near(probe *p, probe_gemm *g, double end_s, bool *cut)
{
    static const int64_t sizes[] = { 4096, 11008, 14336, 1741, 1024 }, rows[] = { 1, 16, 4096 };
    int64_t reach = g->place[0].found.period < 8 ? 4 : 8;
    gac_status status = GAC_OK;
    for (int i = 0; i < (p->options->quick ? 1 : 5); i++) {
        for (int r = 0; r < 3; r++) {
            for (int64_t j = 0; j < 2 * (2 * reach + 1) && status == GAC_OK; j++) {
                int64_t v = sizes[i] - reach + j / 2;
                probe_point point;
                if (gac_now_s() > end_s) {
                    *cut = true;
                    return GAC_OK;
                }
                gac_task_spec spec =
                    probe_gemm_spec(g->dtype, rows[r], j % 2 ? 4096 : v, j % 2 ? v : 4096);
                status = probe_measure(p, &spec, &point);
                if (status == GAC_OK)
                    status = probe_gemm_add_exact(p, g, &point);
            }
        }
    }
    return status;
}

gac_status probe_gemm_near(probe *p, probe_gemm *g)
{
    bool cut = false;
    probe_begin(p, "GEMM near common sizes", gac_dtype_name(g->dtype), 0);
    gac_status status = measure_near(p, g, gac_now_s() + probe_left_s(p) * PART_OF_TIME, &cut);
    probe_finish(p);
    if (cut)
        probe_note(p, "%s: exact points near common sizes are not complete, the time was up",
                   gac_dtype_name(g->dtype));
    return status;
}
