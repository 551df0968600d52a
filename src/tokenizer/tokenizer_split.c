/* The pre-tokenizer: splits text into words, step by step. */
#include "tokenizer/tokenizer_internal.h"

#include <string.h>

/* The state of splitting one text. */
typedef struct split_run {
    pre_tokenizer *pre;
    bpe_model *bpe;
    id_list *out;
    gac_error *err;
} split_run;

/* The spans that a step finds in its input. The last span is held back while it
 * may still grow. */
typedef struct span_list {
    const split_run *run;
    int32_t step;
    const char *text;
    bool at_start;
    size_t start, end; /* the span held back */
    bool held, is_match, previous;
} span_list;

static gac_status run_step(const split_run *run, int32_t step, const char *text, size_t n,
                           bool at_start);

/* Passes a span to the next step. */
static gac_status hand_on(const span_list *list, size_t start, size_t end)
{
    split_step *step = &list->run->pre->steps[list->step];
    const char *text = list->text + start;
    size_t n = end - start;
    if (n == 0)
        return GAC_OK;
    if (step->kind == SPLIT_BYTE_LEVEL) {
        char spelled[2];
        step->mapped.n = 0;
        for (size_t i = 0; i < n; i++)
            if (!gac_bytes_append(&step->mapped, spelled,
                                  gac_byte_char((unsigned char)text[i], spelled)))
                return gac_error_no_memory(list->run->err);
        text = step->mapped.data;
        n = step->mapped.n;
    }
    return run_step(list->run, list->step + 1, text, n, list->at_start && start == 0);
}

static gac_status flush(span_list *list)
{
    if (!list->held)
        return GAC_OK;
    list->held = false;
    return hand_on(list, list->start, list->end);
}

/* Returns whether a span joins the one held back. */
static bool joins(const span_list *list, split_behavior behavior, bool is_match)
{
    switch (behavior) {
    case BEHAVIOR_CONTIGUOUS:
        return is_match == list->previous;
    case BEHAVIOR_WITH_PREVIOUS:
        return is_match && !list->previous;
    case BEHAVIOR_WITH_NEXT:
        return list->is_match && !is_match;
    default:
        return false;
    }
}

static gac_status add_span(span_list *list, size_t start, size_t end, bool is_match)
{
    const split_step *step = &list->run->pre->steps[list->step];
    gac_status status = GAC_OK;
    is_match = is_match != step->invert;
    if (step->behavior == BEHAVIOR_ISOLATED)
        return hand_on(list, start, end);
    if (step->behavior == BEHAVIOR_REMOVED)
        return is_match ? GAC_OK : hand_on(list, start, end);
    if (list->held && joins(list, step->behavior, is_match)) {
        list->end = end;
    } else {
        status = flush(list);
        list->start = start;
        list->end = end;
        list->held = true;
    }
    list->is_match = list->previous = is_match;
    return status;
}

static gac_status split_by_pattern(span_list *list, gac_pattern *pattern, size_t n)
{
    pattern_walk walk = { .pattern = pattern, .text = list->text, .n = n };
    size_t done = 0, start, end;
    bool found = true;
    gac_status status = GAC_OK;
    while (status == GAC_OK) {
        status = gac_pattern_next(&walk, &found, &start, &end, list->run->err);
        if (status != GAC_OK || !found)
            break;
        if (done != start)
            status = add_span(list, done, start, false);
        if (status == GAC_OK)
            status = add_span(list, start, end, true);
        done = end;
    }
    if (status == GAC_OK && done != n)
        status = add_span(list, done, n, false);
    return status == GAC_OK ? flush(list) : status;
}

static gac_status split_digits(span_list *list, size_t n)
{
    size_t done = 0, length;
    gac_status status = GAC_OK;
    for (size_t at = 0; at < n && status == GAC_OK; at += length) {
        if (!gac_char_is_numeric(gac_utf8_get(list->text + at, &length)))
            continue;
        if (done < at)
            status = add_span(list, done, at, false);
        if (status == GAC_OK)
            status = add_span(list, at, at + length, true);
        done = at + length;
    }
    if (status == GAC_OK && done < n)
        status = add_span(list, done, n, false);
    return status == GAC_OK ? flush(list) : status;
}

/* Adds a leading space if the step asks for one. */
static bool prepare_byte_level(split_step *step, const char **text, size_t *n)
{
    if (!step->prefix_space || (*text)[0] == ' ')
        return true;
    step->text.n = 0;
    if (!gac_bytes_append(&step->text, " ", 1) || !gac_bytes_append(&step->text, *text, *n))
        return false;
    *text = step->text.data;
    *n = step->text.n;
    return true;
}

/* Replaces spaces, and puts one replacement in front. */
static bool prepare_metaspace(split_step *step, bool at_start, const char **text, size_t *n)
{
    size_t n_mark = strlen(step->replacement);
    bool marked = (*text)[0] == ' ' || (*n >= n_mark && !memcmp(*text, step->replacement, n_mark));
    bool wanted = step->scheme == PREPEND_ALWAYS || (step->scheme == PREPEND_FIRST && at_start);
    bool made = true;
    step->text.n = 0;
    if (wanted && !marked)
        made = gac_bytes_append(&step->text, step->replacement, n_mark);
    for (size_t at = 0; made && at < *n;) {
        const char *space = memchr(*text + at, ' ', *n - at);
        size_t end = space ? (size_t)(space - *text) : *n;
        made = gac_bytes_append(&step->text, *text + at, end - at) &&
               (!space || gac_bytes_append(&step->text, step->replacement, n_mark));
        at = end + 1;
    }
    *text = step->text.data;
    *n = step->text.n;
    return made;
}

static gac_status run_step(const split_run *run, int32_t number, const char *text, size_t n,
                           bool at_start)
{
    if (n == 0)
        return GAC_OK;
    if (number == run->pre->n_steps)
        return gac_bpe_word(run->bpe, text, n, run->out, run->err);
    split_step *step = &run->pre->steps[number];
    bool ready = true;
    if (step->kind == SPLIT_BYTE_LEVEL)
        ready = prepare_byte_level(step, &text, &n);
    else if (step->kind == SPLIT_METASPACE)
        ready = prepare_metaspace(step, at_start, &text, &n);
    if (!ready)
        return gac_error_no_memory(run->err);
    span_list list = { .run = run, .step = number, .text = text, .at_start = at_start };
    if (step->kind == SPLIT_DIGITS)
        return split_digits(&list, n);
    return step->pattern ? split_by_pattern(&list, step->pattern, n) : hand_on(&list, 0, n);
}

gac_status gac_split_words(pre_tokenizer *pre, bpe_model *bpe, const char *text, size_t n,
                           bool at_start, id_list *out, gac_error *err)
{
    split_run run = { pre, bpe, out, err };
    return run_step(&run, 0, text, n, at_start);
}
