/* Shared by the files of gac eval. */
#ifndef GAC_CLI_EVAL_H
#define GAC_CLI_EVAL_H

#include "engine_args.h"

#include <gac/engine.h>

enum { MAX_SHAPES = 16 };

/* The shapes of --prefill BxS or --decode B@CONTEXT. */
typedef struct shape_list {
    gac_pass_shape shapes[MAX_SHAPES];
    gac_pass_timing *timings; /* (n) */
    int n;
} shape_list;

typedef struct eval_command {
    engine_args engine;
    const char *text;            /* file of --perplexity */
    int64_t window, max_windows; /* 0: the default */
    shape_list prefill, decode;
    int piqa; /* 1: run it */
    const char *task_data, *lm_eval;
    int64_t limit;
    bool force;

    gac_engine_info info; /* results */
    gac_perplexity perplexity;
    gac_piqa piqa_score;
} eval_command;

void eval_print(const eval_command *o);
/* Make a gac.eval/1 result, and a result as lm-evaluation-harness writes it.
 * NULL if memory is short. */
json_t *eval_json(cli *c, const eval_command *o);
json_t *eval_lm_eval_json(const eval_command *o);

#endif
