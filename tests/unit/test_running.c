/* Tests what is built on the forward pass with a fake engine: perplexity,
 * generation, tasks, comparison and timing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "engine/sampler.h"
#include "engine/text_stream.h"
#include "fake_engine.h"
#include "scratch.h"
#include "small_llama.h"
#include "tokenizer/tokenizer_internal.h"

#include <gac/engine.h>

#include <jansson.h>
#include <math.h>

enum { N_BYTES = 256, EOS = 256, VOCAB = 257 };

static gac_engine *engine_of(int64_t vocab, int64_t max_context)
{
    fake_engine settings = {
        .vocab = vocab, .max_context = max_context, .max_new = max_context, .nan_at = -1
    };
    return fake_engine_create(&settings);
}

/* The fake engine's loss of b after a. */
static double loss_of(int64_t vocab, int32_t a, int32_t b)
{
    int32_t next = fake_engine_next(vocab, a);
    double sum = 0;
    for (int64_t v = 0; v < vocab; v++)
        sum += exp(-0.25 * (double)llabs(v - next));
    return log(sum) + 0.25 * abs(b - next);
}

/* Token i is byte i. <s>, which is 256, precedes a text. */
static gac_tokenizer *byte_tokenizer(void)
{
    static int n;
    char name[32], file[64], byte[3] = { 0 }, id[8];
    gac_tokenizer *tokenizer = NULL;
    json_t *vocab = json_object();
    for (int i = 0; i < N_BYTES; i++) {
        memset(byte, 0, sizeof byte);
        gac_byte_char((unsigned char)i, byte);
        json_object_set_new(vocab, byte, json_integer(i));
    }
    json_object_set_new(vocab, "<s>", json_integer(EOS));
    snprintf(id, sizeof id, "<s>");
    json_t *level = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                              "trim_offsets", 1, "use_regex", 1);
    json_t *root = json_pack(
        "{s:{s:s, s:o, s:[]}, s:O, s:o, s:[{s:i, s:s, s:b, s:b, s:b, s:b, s:b}], s:{s:s, "
        "s:[{s:{s:s, s:i}}, {s:{s:s, s:i}}], s:[], s:{s:{s:s, s:[i], s:[s]}}}}",
        "model", "type", "BPE", "vocab", vocab, "merges", "pre_tokenizer", level, "decoder", level,
        "added_tokens", "id", EOS, "content", id, "single_word", 0, "lstrip", 0, "rstrip", 0,
        "normalized", 0, "special", 1, "post_processor", "type", "TemplateProcessing", "single",
        "SpecialToken", "id", id, "type_id", 0, "Sequence", "id", "A", "type_id", 0, "pair",
        "special_tokens", id, "id", id, "ids", EOS, "tokens", id);
    assert_non_null(root);
    char *text = json_dumps(root, 0);
    snprintf(name, sizeof name, "bytes%d", n++);
    snprintf(file, sizeof file, "%s/tokenizer.json", name);
    scratch_mkdir(name);
    scratch_put(file, text, strlen(text));
    free(text);
    json_decref(root);
    assert_ok(gac_tokenizer_open(scratch_path(name), &tokenizer, err));
    return tokenizer;
}

static void test_perplexity(void **state)
{
    (void)state;
    enum { N = 23, WINDOW = 5 }; /* 4 windows of 5, one of 3 */
    int32_t ids[N];
    double losses[N], mean = 0, variance = 0;
    int n = 0;
    gac_engine *engine = engine_of(40, 16);
    gac_perplexity p;
    gac_perplexity_options options = GAC_PERPLEXITY_OPTIONS_INIT;
    for (int i = 0; i < N; i++) {
        ids[i] = i * i % 40;
        if (i % WINDOW != 0)
            losses[n++] = loss_of(40, ids[i - 1], ids[i]);
    }
    for (int i = 0; i < n; i++)
        mean += losses[i] / n;
    for (int i = 0; i < n; i++)
        variance += (losses[i] - mean) * (losses[i] - mean) / (n - 1);
    options.window = WINDOW;
    assert_ok(gac_engine_perplexity(engine, ids, N, &options, &p, err));
    assert_int_equal(p.n_tokens, n);
    assert_int_equal(p.n_tokens, N - 5);
    assert_int_equal(p.n_windows, 5);
    assert_int_equal(p.window, WINDOW);
    assert_true(fabs(p.mean_loss - mean) < 1e-6);
    assert_true(fabs(p.value - exp(mean)) < 1e-5);
    assert_true(fabs(p.value_error - exp(mean) * sqrt(variance / n)) < 1e-5);
    options.max_windows = 2;
    assert_ok(gac_engine_perplexity(engine, ids, N, &options, &p, err));
    assert_int_equal(p.n_tokens, 8);
    assert_int_equal(p.n_windows, 2);
    options.max_windows = 0;
    assert_ok(gac_engine_perplexity(engine, ids, 21, &options, &p, err)); /* one id left over */
    assert_int_equal(p.n_tokens, 16);
    assert_int_equal(p.n_windows, 4);
    assert_ok(gac_engine_perplexity(engine, ids, 22, &options, &p, err)); /* two left over */
    assert_int_equal(p.n_tokens, 17);
    assert_int_equal(p.n_windows, 5);
    /* NULL options: the whole context as window */
    assert_ok(gac_engine_perplexity(engine, ids, N, NULL, &p, err));
    assert_int_equal(p.window, 16);
    assert_int_equal(p.n_tokens, 15 + 6);
    gac_engine_close(engine);
}

static void test_perplexity_bad(void **state)
{
    (void)state;
    int32_t ids[8] = { 1, 2, 3, 4, 5, 6, 7, 39 };
    fake_engine settings = { .vocab = 40, .max_context = 16, .max_new = 16, .nan_at = 3 };
    gac_engine *engine = fake_engine_create(&settings);
    gac_perplexity p;
    gac_perplexity_options options = { .window = 17 };
    assert_fails(gac_engine_perplexity(engine, ids, 1, NULL, &p, err), GAC_USAGE, "two tokens");
    assert_fails(gac_engine_perplexity(engine, ids, 8, &options, &p, err), GAC_USAGE, "17 tokens");
    options.window = 1;
    assert_fails(gac_engine_perplexity(engine, ids, 8, &options, &p, err), GAC_USAGE, "1 tokens");
    assert_fails(gac_engine_perplexity(engine, ids, 8, NULL, &p, err), GAC_FAILED,
                 "token 4 of the text is not finite");
    ids[2] = 40;
    assert_fails(gac_engine_perplexity(engine, ids, 8, NULL, &p, err), GAC_USAGE, "token 40");
    gac_engine_close(engine);
}

static int32_t pick(const gac_sampling *rules, const float *logits, int64_t n)
{
    sampler s;
    int32_t id = -1;
    assert_ok(gac_sampler_init(&s, rules, n, err));
    assert_ok(gac_sampler_pick(&s, logits, &id, err));
    gac_sampler_dispose(&s);
    return id;
}

static void test_greedy(void **state)
{
    (void)state;
    gac_sampling rules = GAC_SAMPLING_INIT;
    assert_int_equal(pick(&rules, (float[]){ 1, 3, 2 }, 3), 1);
    assert_int_equal(pick(&rules, (float[]){ 1, 3, 3 }, 3), 1); /* the lowest id of equal logits */
    assert_int_equal(pick(&rules, (float[]){ -INFINITY, -5, -INFINITY }, 3), 1);
}

/* Draws n_draws times and counts the ids. */
static void count(const gac_sampling *rules, const float *logits, int n, int n_draws, int *counts)
{
    sampler s;
    int32_t id;
    memset(counts, 0, (size_t)n * sizeof *counts);
    assert_ok(gac_sampler_init(&s, rules, n, err));
    for (int i = 0; i < n_draws; i++) {
        assert_ok(gac_sampler_pick(&s, logits, &id, err));
        counts[id]++;
    }
    gac_sampler_dispose(&s);
}

static void test_sampled(void **state)
{
    (void)state;
    enum { N = 4, DRAWS = 20000 };
    /* Probabilities 0.1, 0.2, 0.3, 0.4. */
    const float logits[N] = { logf(1), logf(2), logf(3), logf(4) };
    int counts[N];
    gac_sampling rules = { 1, 0, 1, 7 };
    count(&rules, logits, N, DRAWS, counts);
    for (int i = 0; i < N; i++) /* within 6 standard deviations */
        assert_true(abs(counts[i] - DRAWS * (i + 1) / 10) < 450);
    rules.temperature = 0.5; /* squares: 1, 4, 9, 16 of 30 */
    count(&rules, logits, N, DRAWS, counts);
    for (int i = 0; i < N; i++)
        assert_true(abs(counts[i] - DRAWS * (i + 1) * (i + 1) / 30) < 450);
    rules = (gac_sampling){ 1, 2, 1, 7 };
    count(&rules, logits, N, DRAWS, counts);
    assert_int_equal(counts[0] + counts[1], 0);
    assert_true(abs(counts[2] - DRAWS * 3 / 7) < 450);
    rules = (gac_sampling){ 1, 0, 0.65, 7 }; /* 0.4 + 0.3 reach 0.65 */
    count(&rules, logits, N, DRAWS, counts);
    assert_int_equal(counts[0] + counts[1], 0);
    assert_true(abs(counts[2] - DRAWS * 3 / 7) < 450);
    rules = (gac_sampling){ 1, 3, 0.7, 7 }; /* 4 + 3 of the 9 that top-k keeps */
    count(&rules, logits, N, DRAWS, counts);
    assert_int_equal(counts[0] + counts[1], 0);
    rules = (gac_sampling){ 1, 0, 1e-9, 7 };
    count(&rules, logits, N, DRAWS, counts);
    assert_int_equal(counts[3], DRAWS);
    rules = (gac_sampling){ 1, 1, 1, 7 };
    count(&rules, (float[]){ 2, 5, 5, 5 }, N, DRAWS, counts);
    assert_int_equal(counts[1], DRAWS);
}

/* splitmix64 is fixed, so the draws are too. */
static void test_seeds(void **state)
{
    (void)state;
    float logits[64] = { 0 };
    int32_t ids[2][8];
    sampler s;
    gac_sampling rules = { 1, 0, 1, 0 };
    /* From seed 0 splitmix64 begins e220a8397b1dcdaf, 6e789e6aa1b965f4. */
    static const int32_t first[2] = { 0xe220a839 >> 26, 0x6e789e6a >> 26 };
    assert_ok(gac_sampler_init(&s, &rules, 64, err));
    for (int i = 0; i < 8; i++)
        assert_ok(gac_sampler_pick(&s, logits, &ids[0][i], err));
    gac_sampler_dispose(&s);
    assert_int_equal(ids[0][0], first[0]);
    assert_int_equal(ids[0][1], first[1]);
    rules.seed = 1;
    assert_ok(gac_sampler_init(&s, &rules, 64, err));
    for (int i = 0; i < 8; i++)
        assert_ok(gac_sampler_pick(&s, logits, &ids[1][i], err));
    gac_sampler_dispose(&s);
    assert_memory_not_equal(ids[0], ids[1], sizeof ids[0]);
}

static void test_sampling_bad(void **state)
{
    (void)state;
    static const gac_sampling bad[] = { { -1, 0, 1, 0 }, { NAN, 0, 1, 0 }, { INFINITY, 0, 1, 0 },
                                        { 1, -1, 1, 0 }, { 1, 0, 0, 0 },   { 1, 0, 1.01, 0 },
                                        { 1, 0, NAN, 0 } };
    gac_sampling rules = { 1, 0, 1, 0 };
    sampler s;
    int32_t id;
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_fails(gac_sampler_init(&s, &bad[i], 4, err), GAC_USAGE, "");
    assert_ok(gac_sampler_init(&s, &rules, 3, err));
    assert_fails(gac_sampler_pick(&s, (float[]){ 0, 1, NAN }, &id, err), GAC_FAILED, "token 2");
    assert_fails(gac_sampler_pick(&s, (float[]){ 0, INFINITY, 0 }, &id, err), GAC_FAILED,
                 "token 1");
    float none[3] = { -INFINITY, -INFINITY, -INFINITY };
    assert_fails(gac_sampler_pick(&s, none, &id, err), GAC_FAILED, "no token");
    gac_sampler_dispose(&s);
}

static void streams(const char *bytes, const char *const *shown)
{
    text_stream stream = { 0 };
    size_t from = 0, n = strlen(bytes);
    for (size_t i = 0; i < n; i++) {
        assert_true(gac_text_stream_add(&stream, bytes + i, 1));
        assert_string_equal(stream.text.data + from, shown[i]);
        from = stream.text.n;
    }
    assert_true(gac_text_stream_finish(&stream));
    assert_string_equal(stream.text.data + from, shown[n]);
    gac_text_stream_dispose(&stream);
}

static void test_text_stream(void **state)
{
    (void)state;
#define BAD "\xef\xbf\xbd"
    streams("a\xc3\xa9", (const char *[]){ "a", "", "\xc3\xa9", "" });
    streams("\xe2\x82\xac!", (const char *[]){ "", "", "\xe2\x82\xac", "!", "" });
    streams("\xf0\x9f\x99\x82", (const char *[]){ "", "", "", "\xf0\x9f\x99\x82", "" });
    streams("\xf0\x9f\x99", (const char *[]){ "", "", "", BAD });
    streams("\xe2\x82x", (const char *[]){ "", "", BAD "x", "" });
    streams("\xe2\xe2\x82\xac", (const char *[]){ "", BAD, "", "\xe2\x82\xac", "" });
    streams("\xff", (const char *[]){ "", BAD });
    streams("\xff\x80z", (const char *[]){ "", BAD, BAD "z", "" });
    streams("\xed\xa0\x80", (const char *[]){ "", BAD, BAD, BAD }); /* a surrogate */
    streams("", (const char *[]){ "" });
}

typedef struct shown {
    char text[4096];
    size_t n;
    int32_t ids[256];
    int n_ids, n_last, stop_after;
} shown;

static bool show(void *context, int32_t id, const char *text, size_t n_bytes)
{
    shown *s = context;
    size_t bad;
    for (size_t at = 0, length; at < n_bytes; at += length)
        assert_true((length = gac_utf8_check(text + at, n_bytes - at, &bad)) > 0);
    assert_int_equal(strlen(text), n_bytes);
    memcpy(s->text + s->n, text, n_bytes);
    s->n += n_bytes;
    if (id < 0)
        s->n_last++;
    else
        s->ids[s->n_ids++] = id;
    return s->n_ids != s->stop_after;
}

static void test_generate(void **state)
{
    (void)state;
    gac_engine *engine = engine_of(VOCAB, 128);
    gac_tokenizer *tokenizer = byte_tokenizer();
    gac_generation out;
    shown s = { .stop_after = -1 };
    gac_generate_options options = GAC_GENERATE_OPTIONS_INIT;
    const int32_t prompt[] = { EOS, 'h', 'i' };
    options.max_tokens = 60;
    options.show = show;
    options.show_context = &s;
    assert_ok(gac_engine_generate(engine, tokenizer, prompt, 3, &options, &out, err));
    assert_int_equal(out.stop, GAC_STOP_LENGTH);
    assert_string_equal(gac_stop_name(out.stop), "length");
    assert_int_equal(out.n_ids, 60);
    for (int32_t i = 0, id = 'i'; i < 60; i++) {
        id = fake_engine_next(VOCAB, id);
        assert_int_equal(out.ids[i], id);
    }
    /* One pass for the prompt, and one for every token but the last. */
    assert_int_equal(fake_engine_look(engine)->n_passes, 60);
    assert_int_equal(fake_engine_look(engine)->n_tokens, 3 + 59);
    assert_int_equal(s.n_ids, 60);
    assert_memory_equal(s.ids, out.ids, sizeof *s.ids * 60);
    assert_int_equal(s.n, out.n_bytes);
    assert_memory_equal(s.text, out.text, out.n_bytes);
    /* The text equals the decoding of all ids, repaired to valid UTF-8. */
    char *bytes;
    size_t n;
    byte_buffer room = { 0 };
    assert_ok(gac_tokenizer_decode(tokenizer, out.ids, 60, true, &bytes, &n, err));
    const char *valid = bytes;
    assert_true(gac_utf8_repair(&valid, &n, &room));
    assert_int_equal(n, out.n_bytes);
    assert_memory_equal(valid, out.text, n);
    gac_bytes_dispose(&room);
    free(bytes);
    gac_generation_dispose(&out);
    gac_tokenizer_close(tokenizer);
    gac_engine_close(engine);
}

static void test_generate_stops(void **state)
{
    (void)state;
    gac_engine *engine = engine_of(VOCAB, 8);
    gac_generation out;
    shown s = { .stop_after = 2 };
    const int32_t prompt[] = { 1, 2, 3, 4, 5, 6, 7, 8, 9 };
    int32_t third = 3;
    gac_generate_options options = GAC_GENERATE_OPTIONS_INIT;
    assert_ok(gac_engine_generate(engine, NULL, prompt, 3, &options, &out, err));
    assert_int_equal(out.stop, GAC_STOP_CONTEXT);
    assert_int_equal(out.n_ids, 6); /* five fit, and the last is not fed back */
    assert_string_equal(out.text, "");
    third = out.ids[2];
    gac_generation_dispose(&out);
    options.eos = &third;
    options.n_eos = 1;
    assert_ok(gac_engine_generate(engine, NULL, prompt, 3, &options, &out, err));
    assert_int_equal(out.stop, GAC_STOP_EOS);
    assert_int_equal(out.n_ids, 2);
    gac_generation_dispose(&out);
    options.eos = (int32_t[]){ 0, third }; /* any of them ends the text */
    options.n_eos = 2;
    assert_ok(gac_engine_generate(engine, NULL, prompt, 3, &options, &out, err));
    assert_int_equal(out.stop, GAC_STOP_EOS);
    assert_int_equal(out.n_ids, 2);
    gac_generation_dispose(&out);
    options.n_eos = 0;
    options.show = show;
    options.show_context = &s;
    assert_ok(gac_engine_generate(engine, NULL, prompt, 3, &options, &out, err));
    assert_int_equal(out.stop, GAC_STOP_CALLER);
    assert_int_equal(out.n_ids, 2);
    gac_generation_dispose(&out);
    assert_fails(gac_engine_generate(engine, NULL, prompt, 0, NULL, &out, err), GAC_USAGE,
                 "no tokens");
    assert_fails(gac_engine_generate(engine, NULL, prompt, 9, NULL, &out, err), GAC_USAGE,
                 "9 tokens, the context 8");
    assert_fails(gac_engine_generate(engine, NULL, (int32_t[]){ VOCAB }, 1, NULL, &out, err),
                 GAC_USAGE, "token 257");
    gac_generation_dispose(&out);
    options.sampling.top_p = 0;
    assert_fails(gac_engine_generate(engine, NULL, prompt, 1, &options, &out, err), GAC_USAGE,
                 "top-p");
    gac_engine_close(engine);
}

/* Computes the likelihood with one token per byte. */
static double likelihood_of(const char *goal, const char *solution)
{
    char text[512];
    int n_context = snprintf(text, sizeof text, "Question: %s\nAnswer:", goal);
    snprintf(text + n_context, sizeof text - (size_t)n_context, " %s", solution);
    double sum = 0;
    for (size_t i = (size_t)n_context; text[i]; i++)
        sum -= loss_of(VOCAB, (unsigned char)text[i - 1], (unsigned char)text[i]);
    return sum;
}

static void test_piqa(void **state)
{
    (void)state;
    /* The third solution has fewer characters than bytes. */
    static const char *const items[][3] = { { "sit", "On a chair.", "On a cactus, maybe." },
                                            { "eat", "With a spoon, slowly.", "No." },
                                            { "é", "ééééééééé", "eeeeee eeeeee" },
                                            { "rest", "sleep", "a" } };
    enum { N = 4 };
    char lines[2048] = "", labels[32] = "";
    int n_right = 0, n_norm = 0;
    gac_engine *engine = engine_of(VOCAB, 512);
    gac_tokenizer *tokenizer = byte_tokenizer();
    gac_piqa p;
    for (int i = 0; i < N; i++) {
        const char *const *q = items[i];
        int label = i % 2;
        double a = likelihood_of(q[0], q[1]), b = likelihood_of(q[0], q[2]);
        size_t n_a = i == 2 ? 9 : strlen(q[1]), n_b = strlen(q[2]);
        n_right += (b > a) == label;
        n_norm += (b / (double)n_b > a / (double)n_a) == label;
        sprintf(lines + strlen(lines), "{\"goal\": \"%s\", \"sol1\": \"%s\", \"sol2\": \"%s\"}\n",
                q[0], q[1], q[2]);
        sprintf(labels + strlen(labels), "%d\n", label);
    }
    scratch_mkdir("piqa");
    const char *file = scratch_put("piqa/valid.jsonl", lines, strlen(lines));
    scratch_put("piqa/valid-labels.lst", labels, strlen(labels));
    assert_ok(gac_engine_piqa(engine, tokenizer, scratch_path("piqa"), NULL, &p, err));
    assert_int_equal(p.n_questions, N);
    assert_int_equal(p.n_asked, N);
    assert_true(fabs(p.acc - n_right / 4.0) < 1e-12);
    assert_true(fabs(p.acc_norm - n_norm / 4.0) < 1e-12);
    assert_true(fabs(p.acc_error - sqrt(p.acc * (1 - p.acc) / 3)) < 1e-12);
    assert_true(p.acc != p.acc_norm); /* otherwise the test could not distinguish them */
    gac_piqa_options options = { .limit = 1 };
    assert_ok(gac_engine_piqa(engine, tokenizer, file, &options, &p, err));
    assert_int_equal(p.n_asked, 1);
    assert_true(p.acc_error == 0);
    gac_tokenizer_close(tokenizer);
    gac_engine_close(engine);
}

/* A question longer than the context is truncated on the left; the answer stays. */
static void test_piqa_long(void **state)
{
    (void)state;
    static const char goal[] = "tell a goal that is longer than the context of this engine";
    const char *solutions[2] = { "on a chair", "on a couch" };
    char line[256];
    gac_engine *engine = engine_of(VOCAB, 20);
    gac_tokenizer *tokenizer = byte_tokenizer();
    gac_piqa p;
    if (likelihood_of(goal, solutions[0]) > likelihood_of(goal, solutions[1])) {
        const char *likelier = solutions[0];
        solutions[0] = solutions[1];
        solutions[1] = likelier;
    }
    snprintf(line, sizeof line,
             "{\"goal\": \"%s\", \"sol1\": \"%s\", \"sol2\": \"%s\", \"label\": 1}\n", goal,
             solutions[0], solutions[1]);
    const char *file = scratch_put("long.jsonl", line, strlen(line));
    assert_ok(gac_engine_piqa(engine, tokenizer, file, NULL, &p, err));
    assert_true(p.acc == 1 && p.acc_norm == 1);
    gac_tokenizer_close(tokenizer);
    gac_engine_close(engine);
}

static void test_piqa_bad(void **state)
{
    (void)state;
    gac_engine *engine = engine_of(VOCAB, 512);
    gac_tokenizer *tokenizer = byte_tokenizer();
    gac_piqa p;
    static const struct {
        const char *lines, *labels, *why;
    } cases[] = {
        { "{\"goal\":\"a\",\"sol1\":\"b\"}\n", "0\n", "line 1: \"sol2\" must be a string" },
        { "{\"goal\":\"a\",\"sol1\":\"b\",\"sol2\":\"c\"}\n[\n", "0\n", "line 2" },
        { "{\"goal\":\"a\",\"sol1\":\"b\",\"sol2\":\"c\"}\n", "2\n", "label 1 is neither" },
        { "{\"goal\":\"a\",\"sol1\":\"b\",\"sol2\":\"c\"}\n", "0 1\n", "2 labels for 1" },
        { "{\"goal\":\"a\",\"sol1\":\"b\",\"sol2\":\"c\",\"label\":2}\n", "", "must be 0 or 1" },
        { "\n\n", "", "holds no questions" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *file = scratch_put("q.jsonl", cases[i].lines, strlen(cases[i].lines));
        scratch_put("q-labels.lst", cases[i].labels, strlen(cases[i].labels));
        assert_fails(gac_engine_piqa(engine, tokenizer, file, NULL, &p, err), GAC_BAD_INPUT,
                     cases[i].why);
    }
    assert_fails(gac_engine_piqa(engine, tokenizer, scratch_path("none"), NULL, &p, err),
                 GAC_BAD_INPUT, "none");
    gac_tokenizer_close(tokenizer);
    gac_engine_close(engine);
}

static void test_compare(void **state)
{
    (void)state;
    small_llama shape = SMALL_LLAMA_INIT;
    gac_logit_comparison out;
    gac_compare_options options = GAC_COMPARE_OPTIONS_INIT;
    small_llama_write("a", &shape);
    shape.vocab = 96;
    small_llama_write("b", &shape);
    shape = (small_llama)SMALL_LLAMA_INIT;
    shape.n_layers = 3;
    small_llama_write("odd", &shape);
    small_model a = small_open("a"), b = small_open("b"), odd = small_open("odd");
    options.n_ids = 37;
    assert_ok(gac_engine_compare(a.model, a.model, &options, &out, err));
    assert_true(out.bit_exact && out.finite);
    assert_int_equal(out.position, -1);
    assert_int_equal(out.n_ids, 37);
    assert_int_equal(out.vocab, 80);
    assert_fails(gac_engine_compare(a.model, b.model, &options, &out, err), GAC_BAD_INPUT,
                 "96 tokens, but the first model's has 80");
    assert_ok(gac_engine_compare(a.model, odd.model, &options, &out, err));
    assert_true(!out.bit_exact && out.finite);
    assert_true(out.max_abs_diff == 0.5);
    assert_int_equal(out.position, 21);
    assert_int_equal(out.token, 7);
    assert_true(out.relative > 0 && out.relative < 1e-2);
    options.ids = (int32_t[]){ 3, 80 };
    options.n_ids = 2;
    assert_fails(gac_engine_compare(a.model, a.model, &options, &out, err), GAC_USAGE, "token 80");
    options.n_ids = 0;
    assert_fails(gac_engine_compare(a.model, a.model, &options, &out, err), GAC_USAGE, "no tokens");
    small_close(&a);
    small_close(&b);
    small_close(&odd);
}

static void test_prefill(void **state)
{
    (void)state;
    gac_engine *engine = engine_of(40, 64);
    gac_pass_timing out;
    gac_timing_rules rules = { 0, 0, 7, 7, 0, 0, 0, 0 };
    assert_ok(gac_engine_time_prefill(engine, 3, 10, &rules, NULL, &out, err));
    assert_int_equal(out.timing.n_samples, 7);
    assert_int_equal(fake_engine_look(engine)->n_passes, 8); /* one warm-up pass */
    assert_int_equal(fake_engine_look(engine)->n_tokens, 8 * 30);
    assert_int_equal(fake_engine_look(engine)->room_batch, 3);
    assert_int_equal(fake_engine_look(engine)->room_context, 10);
    assert_true(fabs(out.tokens_per_s * out.timing.median_us / 1e6 - 30) < 1e-6);
    json_t *json = gac_pass_timing_json(&out, "length");
    assert_int_equal(json_integer_value(json_object_get(json, "length")), 10);
    assert_int_equal(json_array_size(json_object_get(json, "samples_ms")), 7);
    json_decref(json);
    assert_fails(gac_engine_time_prefill(engine, 1, 65, &rules, NULL, &out, err), GAC_USAGE,
                 "65 tokens");
    assert_fails(gac_engine_time_prefill(engine, 0, 6, &rules, NULL, &out, err), GAC_USAGE,
                 "0 sequences");
    rules.max_samples = GAC_MAX_SAMPLES + 1;
    assert_fails(gac_engine_time_prefill(engine, 1, 6, &rules, NULL, &out, err), GAC_USAGE,
                 "samples");
    gac_engine_close(engine);
}

/* The fake refuses gaps in its cache, which proves that the steps are in order. */
static void test_decode(void **state)
{
    (void)state;
    fake_engine settings = { .vocab = 40, .max_context = 100, .max_new = 16, .nan_at = -1 };
    gac_engine *engine = fake_engine_create(&settings);
    gac_pass_timing out;
    gac_timing_rules rules = { 0, 0, 9, 64, INFINITY, 1e9, 0, 0 };
    assert_ok(gac_engine_time_decode(engine, 2, 40, 16, &rules, NULL, &out, err));
    assert_int_equal(out.timing.n_samples, GAC_DECODE_STEPS); /* a whole cycle */
    assert_int_equal(fake_engine_look(engine)->n_cached, 39 + GAC_DECODE_STEPS);
    assert_int_equal(fake_engine_look(engine)->room_batch, 2);
    assert_int_equal(fake_engine_look(engine)->room_context, 39 + GAC_DECODE_STEPS);
    assert_int_equal(fake_engine_look(engine)->n_passes, 3 + 1 + GAC_DECODE_STEPS);
    assert_int_equal(fake_engine_look(engine)->n_tokens, 2 * (39 + 1 + GAC_DECODE_STEPS));
    rules.max_noise = -1; /* never steady: up to max_samples */
    assert_ok(gac_engine_time_decode(engine, 1, 100, 16, &rules, NULL, &out, err));
    assert_int_equal(out.timing.n_samples, 64); /* always at the last context */
    assert_int_equal(fake_engine_look(engine)->n_cached, 100);
    assert_ok(gac_engine_time_decode(engine, 1, 1, 16, &rules, NULL, &out, err));
    assert_fails(gac_engine_time_decode(engine, 1, 101, 16, &rules, NULL, &out, err), GAC_USAGE,
                 "101 tokens");
    gac_engine_close(engine);
}

static void test_long_passes(void **state)
{
    (void)state;
    fake_engine settings = {
        .vocab = 40, .max_context = 100, .max_new = 100, .delay_us = GAC_LONG_PASS_US, .nan_at = -1
    };
    gac_engine *engine = fake_engine_create(&settings);
    gac_pass_timing out;
    assert_ok(gac_engine_time_prefill(engine, 1, 4, NULL, NULL, &out, err));
    assert_int_equal(out.timing.n_samples, GAC_LONG_PASSES);
    gac_engine_close(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_perplexity),     cmocka_unit_test(test_perplexity_bad),
        cmocka_unit_test(test_greedy),         cmocka_unit_test(test_sampled),
        cmocka_unit_test(test_seeds),          cmocka_unit_test(test_sampling_bad),
        cmocka_unit_test(test_text_stream),    cmocka_unit_test(test_generate),
        cmocka_unit_test(test_generate_stops), cmocka_unit_test(test_piqa),
        cmocka_unit_test(test_piqa_long),      cmocka_unit_test(test_piqa_bad),
        cmocka_unit_test(test_compare),        cmocka_unit_test(test_prefill),
        cmocka_unit_test(test_decode),         cmocka_unit_test(test_long_passes),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
