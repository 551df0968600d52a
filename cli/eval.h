/* What the parts of gac eval share. */
#ifndef GAC_CLI_EVAL_H
#define GAC_CLI_EVAL_H

#include "engine_args.h"

#include <gac/engine.h>

enum { MAX_SHAPES = 16 };

/* BxS or B@CONTEXT, as many as were asked for. */
typedef struct shape_list {
    gac_pass_shape shapes[MAX_SHAPES];
    gac_pass_timing *timings; /* (n) */
    int n;
} shape_list;

typedef struct eval_command {
    engine_args engine;
    const char *text;            /* file of --perplexity */
    int64_t window, max_windows; /* 0: as usual */
    shape_list prefill, decode;
    int piqa; /* whether to run it */
    const char *task_data, *lm_eval;
    int64_t limit;
    bool force;

    gac_engine_info info; /* and what came out: */
    gac_perplexity perplexity;
    gac_piqa piqa_score;
} eval_command;

void eval_print(const eval_command *o);
/* A gac.eval/1, and what lm-evaluation-harness would have written. NULL when out
 * of memory. */
json_t *eval_json(cli *c, const eval_command *o);
json_t *eval_lm_eval_json(const eval_command *o);

#endif
