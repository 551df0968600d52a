/* PIQA by the rules of lm-evaluation-harness.
 *
 * The prompt is "Question: GOAL\nAnswer:", and the two continuations are "
 * SOLUTION". Prompt and whole text are encoded separately, with special tokens.
 * The continuation is what the whole text has beyond the prompt's length. acc
 * picks the likelier continuation. acc_norm divides the log-likelihood by the
 * number of characters of the solution, without the space. */
#include "base/arguments.h"
#include "base/utf8.h"

#include <gac/engine.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define MAX_DATA_BYTES ((size_t)256 << 20)

typedef struct question {
    char *goal, *solutions[2];
    int label;
} question;

typedef struct question_list {
    question *items;
    size_t n, capacity;
    size_t n_unlabelled;
} question_list;

static void dispose(question_list *list)
{
    for (size_t i = 0; i < list->n; i++) {
        free(list->items[i].goal);
        free(list->items[i].solutions[0]);
        free(list->items[i].solutions[1]);
    }
    free(list->items);
}

static gac_status add(question_list *list, const json_t *line, const char *source, gac_error *err)
{
    static const char *const keys[] = { "goal", "sol1", "sol2" };
    const char *texts[3];
    const json_t *label = json_object_get(line, "label");
    for (int i = 0; i < 3; i++) {
        texts[i] = json_string_value(json_object_get(line, keys[i]));
        if (!texts[i])
            return gac_error_set(err, GAC_BAD_INPUT, "%s: \"%s\" must be a string", source,
                                 keys[i]);
    }
    if (label &&
        (!json_is_integer(label) || json_integer_value(label) < 0 || json_integer_value(label) > 1))
        return gac_error_set(err, GAC_BAD_INPUT, "%s: \"label\" must be 0 or 1", source);
    if (list->n == list->capacity) {
        size_t capacity = list->capacity * 2 + 64;
        question *bigger = realloc(list->items, capacity * sizeof *bigger);
        if (!bigger)
            return gac_error_no_memory(err);
        list->items = bigger;
        list->capacity = capacity;
    }
    question *q = &list->items[list->n++];
    *q = (question){ strdup(texts[0]), { strdup(texts[1]), strdup(texts[2]) }, -1 };
    if (label)
        q->label = (int)json_integer_value(label);
    list->n_unlabelled += !label;
    return q->goal && q->solutions[0] && q->solutions[1] ? GAC_OK : gac_error_no_memory(err);
}

static gac_status slurp(const char *path, char **text, size_t *n, gac_error *err)
{
    gac_file *file = NULL;
    gac_status status = gac_file_open(path, &file, err);
    if (status == GAC_OK)
        status = gac_file_slurp(file, MAX_DATA_BYTES, text, n, err);
    gac_file_close(file);
    return status;
}

static gac_status read_questions(const char *path, question_list *list, gac_error *err)
{
    char *text = NULL, q[300], source[340];
    size_t n = 0, n_lines = 0;
    gac_status status = slurp(path, &text, &n, err);
    gac_quote(q, sizeof q, path);
    for (size_t at = 0; at < n && status == GAC_OK;) {
        const char *end = memchr(text + at, '\n', n - at);
        size_t length = end ? (size_t)(end - text) - at : n - at;
        json_t *line = NULL;
        snprintf(source, sizeof source, "%s line %zu", q, ++n_lines);
        if (strspn(text + at, " \t\r") < length) {
            status = gac_json_parse(text + at, length, source, &line, err);
            if (status == GAC_OK)
                status = add(list, line, source, err);
        }
        json_decref(line);
        at += length + 1;
    }
    free(text);
    if (status == GAC_OK && list->n == 0)
        status = gac_error_set(err, GAC_BAD_INPUT, "%s: holds no questions", q);
    return status;
}

/* Reads one label, 0 or 1, per question. */
static gac_status read_labels(const char *path, question_list *list, gac_error *err)
{
    char *text = NULL, q[300];
    size_t n = 0, n_labels = 0;
    gac_status status = slurp(path, &text, &n, err);
    if (status != GAC_OK)
        return status;
    char *rest = NULL;
    for (char *word = strtok_r(text, " \t\r\n", &rest); word && status == GAC_OK;
         word = strtok_r(NULL, " \t\r\n", &rest)) {
        if (strcmp(word, "0") != 0 && strcmp(word, "1") != 0)
            status = gac_error_set(err, GAC_BAD_INPUT, "%s: label %zu is neither 0 nor 1",
                                   gac_quote(q, sizeof q, path), n_labels + 1);
        else if (n_labels < list->n)
            list->items[n_labels].label = word[0] - '0';
        n_labels++;
    }
    if (status == GAC_OK && n_labels != list->n)
        status = gac_error_set(err, GAC_BAD_INPUT, "%s: %zu labels for %zu questions",
                               gac_quote(q, sizeof q, path), n_labels, list->n);
    free(text);
    return status;
}

static gac_status load(const char *path, question_list *list, gac_error *err)
{
    struct stat about;
    char *file = NULL, *labels = NULL;
    bool folder = stat(path, &about) == 0 && S_ISDIR(about.st_mode);
    if (asprintf(&file, "%s%s", path, folder ? "/valid.jsonl" : "") < 0)
        return gac_error_no_memory(err);
    gac_status status = read_questions(file, list, err);
    if (status == GAC_OK && list->n_unlabelled > 0) {
        const char *suffix = strrchr(file, '.');
        size_t n_stem = suffix && !strchr(suffix, '/') ? (size_t)(suffix - file) : strlen(file);
        if (asprintf(&labels, "%.*s-labels.lst", (int)n_stem, file) < 0)
            status = gac_error_no_memory(err);
        else
            status = read_labels(labels, list, err);
        free(labels);
    }
    free(file);
    return status;
}

static size_t count_characters(const char *text)
{
    size_t n = 0;
    for (; *text; text++)
        n += ((unsigned char)*text & 0xc0) != 0x80;
    return n;
}

/* Computes the log-likelihood of a continuation. Longer texts are truncated on
 * the left. */
static gac_status likelihood(gac_engine *engine, gac_tokenizer *tokenizer, int64_t max_context,
                             const char *context, const char *whole, double *out, gac_error *err)
{
    int32_t *ids = NULL, *context_ids = NULL;
    size_t n_ids = 0, n_context = 0;
    double *losses = NULL;
    *out = 0;
    gac_status status =
        gac_tokenizer_encode(tokenizer, whole, strlen(whole), true, &ids, &n_ids, err);
    if (status == GAC_OK)
        status = gac_tokenizer_encode(tokenizer, context, strlen(context), true, &context_ids,
                                      &n_context, err);
    if (status == GAC_OK)
        status = gac_engine_check_text(engine, ids, n_ids, err);
    if (status != GAC_OK || n_ids <= n_context)
        goto done; /* the continuation merged into the context: likelihood 1 */
    size_t most = (size_t)max_context + 1; /* the last token is only predicted */
    size_t skip = n_ids > most ? n_ids - most : 0;
    size_t n = n_ids - skip, first = n_context > skip + 1 ? n_context - skip : 1;
    if (!(losses = malloc(n * sizeof *losses))) {
        status = gac_error_no_memory(err);
        goto done;
    }
    status = gac_engine_losses(engine, ids + skip, (int64_t)n, losses, err);
    for (size_t i = first; i < n && status == GAC_OK; i++)
        *out -= losses[i - 1];
    if (status == GAC_OK && !isfinite(*out))
        status = gac_error_set(err, GAC_FAILED,
                               "a loss is not finite: the model overflows in this "
                               "dtype, or its weights are broken");
done:
    free(losses);
    free(context_ids);
    free(ids);
    return status;
}

/* Finds whether acc (right[0]) and acc_norm (right[1]) pick the right answer. */
static gac_status ask(gac_engine *engine, gac_tokenizer *tokenizer, int64_t max_context,
                      const question *q, bool right[2], gac_error *err)
{
    char *context = NULL, *whole = NULL;
    double sums[2] = { 0, 0 }, norms[2] = { 0, 0 };
    gac_status status = GAC_OK;
    if (asprintf(&context, "Question: %s\nAnswer:", q->goal) < 0)
        return gac_error_no_memory(err);
    for (int i = 0; i < 2 && status == GAC_OK; i++) {
        if (asprintf(&whole, "%s %s", context, q->solutions[i]) < 0) {
            status = gac_error_no_memory(err);
            break;
        }
        status = likelihood(engine, tokenizer, max_context, context, whole, &sums[i], err);
        norms[i] = sums[i] / (double)count_characters(q->solutions[i]);
        free(whole);
    }
    free(context);
    right[0] = (sums[1] > sums[0]) == (q->label == 1);
    right[1] = (norms[1] > norms[0]) == (q->label == 1);
    return status;
}

static double standard_error(double p, int64_t n)
{
    return n > 1 ? sqrt(p * (1 - p) / (double)(n - 1)) : 0;
}

gac_status gac_engine_piqa(gac_engine *engine, gac_tokenizer *tokenizer, const char *path,
                           const gac_piqa_options *options, gac_piqa *out, gac_error *err)
{
    GAC_REFUSE_NULL(err, engine, tokenizer, path, out);
    gac_engine_info info;
    question_list list = { 0 };
    int64_t n_right[2] = { 0, 0 };
    bool right[2] = { false, false };
    gac_engine_describe(engine, &info);
    gac_status status = load(path, &list, err);
    int64_t n = (int64_t)list.n;
    if (options && options->limit > 0 && options->limit < n)
        n = options->limit;
    gac_progress *progress = options ? options->progress : NULL;
    gac_progress_start(progress, "piqa", "questions", (uint64_t)n);
    for (int64_t i = 0; i < n && status == GAC_OK; i++) {
        status = ask(engine, tokenizer, info.max_context, &list.items[i], right, err);
        n_right[0] += right[0];
        n_right[1] += right[1];
        gac_progress_step(progress, (uint64_t)i + 1);
    }
    gac_progress_finish(progress);
    if (status == GAC_OK) {
        double acc = (double)n_right[0] / (double)n, norm = (double)n_right[1] / (double)n;
        *out = (gac_piqa){ (int64_t)list.n,        n,    acc,
                           standard_error(acc, n), norm, standard_error(norm, n) };
    }
    dispose(&list);
    return status;
}
