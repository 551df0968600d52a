/* Tests the tokenizer's interface, and tokenizer.json files that must be
 * refused. tests/engine compares ids with Hugging Face's tokenizers. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/namemap.h"
#include "scratch.h"

#include <gac/engine.h>

#define VOCAB "{\"a\":0,\"b\":1,\"ab\":2,\"\\u0120\":3,\"<s>\":4}"
#define MODEL "{\"type\":\"BPE\",\"vocab\":" VOCAB ",\"merges\":[\"a b\"]}"
#define BYTE_LEVEL \
    "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"trim_offsets\":true," \
    "\"use_regex\":true}"
#define TOKEN(content, flags) "{\"id\":9,\"content\":\"" content "\"," flags "}"
#define PLAIN \
    "\"single_word\":false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":" \
    "true"

/* Members of tokenizer.json for a small byte-level tokenizer. */
#define GOOD \
    "\"pre_tokenizer\":" BYTE_LEVEL ",\"decoder\":" BYTE_LEVEL \
    ",\"added_tokens\":[" TOKEN("<s>", PLAIN) "," TOKEN( \
        "<new>", \
        PLAIN) "]," \
               "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{" \
               "\"SpecialToken\":" \
               "{\"id\":\"<s>\",\"type_id\":0}},{\"Sequence\":{\"id\":\"A\",\"type_id\":0}}]," \
               "\"pair\":[],\"special_tokens\":{\"<s>\":{\"id\":\"<s>\",\"ids\":[4],\"tokens\":[" \
               "\"<s>\"]}}}"

static int next_directory;

static const char *directory_with(const char *json)
{
    char name[32], file[64];
    snprintf(name, sizeof name, "t%d", next_directory++);
    snprintf(file, sizeof file, "%s/tokenizer.json", name);
    const char *path = scratch_mkdir(name);
    scratch_put(file, json, strlen(json));
    return path;
}

static gac_tokenizer *opened(const char *json)
{
    gac_tokenizer *t = NULL;
    assert_ok(gac_tokenizer_open(directory_with(json), &t, err));
    return t;
}

static void refused(const char *json, const char *why)
{
    gac_tokenizer *t = NULL;
    assert_fails(gac_tokenizer_open(directory_with(json), &t, err), GAC_BAD_INPUT, why);
    assert_fails(gac_tokenizer_open(directory_with(json), &t, err), GAC_BAD_INPUT,
                 "tokenizer.json");
    assert_null(t);
}

static void assert_ids(gac_tokenizer *t, const char *text, size_t n, bool special,
                       const char *wanted)
{
    int32_t *ids = NULL;
    size_t n_ids = 0;
    char got[256] = "";
    assert_ok(gac_tokenizer_encode(t, text, n, special, &ids, &n_ids, err));
    assert_non_null(ids);
    for (size_t i = 0; i < n_ids; i++)
        snprintf(got + strlen(got), sizeof got - strlen(got), i ? " %d" : "%d", (int)ids[i]);
    assert_string_equal(got, wanted);
    free(ids);
}

static void text_becomes_ids(void **state)
{
    (void)state;
    gac_tokenizer *t = opened("{\"model\":" MODEL "," GOOD "}");
    assert_ids(t, "abba ab", 7, false, "2 1 0 3 2");
    assert_ids(t, "abba ab", 7, true, "4 2 1 0 3 2");
    assert_ids(t, "", 0, false, "");
    assert_ids(t, NULL, 0, true, "4");
    assert_ids(t, "a<s>b<new>", 10, false, "0 4 1 5");
    assert_ids(t, "a\0xyz\xff", 6, false, "0"); /* no unk_token: unknown bytes are dropped */
    gac_tokenizer_close(t);
    gac_tokenizer_close(NULL);
}

/* A tokenizer of single letters with additional members. */
#define LETTERS(merges, more) \
    "{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"b\":1,\"aa\":2,\"\\u2581\":3,\"e\":4," \
    "\"\\u00e9\":5,\"\\u0301\":6,\"a__\":7},\"merges\":[" merges "]}," more "}"

/* The leftmost of equal merges comes first. */
static void merges_begin_at_the_left(void **state)
{
    (void)state;
    gac_tokenizer *t = opened(LETTERS("\"a a\"", "\"added_tokens\":[]"));
    assert_ids(t, "aaa", 3, false, "2 0");
    assert_ids(t, "baaaaab", 7, false, "1 2 2 0 1");
    gac_tokenizer_close(t);
}

/* Words that share a slot of the cache keep their own ids. */
static void words_of_one_slot_keep_their_ids(void **state)
{
    (void)state;
    enum { LENGTH = 7, N_WORDS = 3 * 3 * 3 * 3 * 3 * 3 * 3 };
    gac_tokenizer *t = opened(LETTERS("", "\"added_tokens\":[]"));
    for (int word = 0; word < N_WORDS; word++) {
        char text[LENGTH], wanted[2 * LENGTH];
        for (int i = 0, rest = word; i < LENGTH; i++, rest /= 3) {
            text[i] = "abe"[rest % 3];
            wanted[2 * i] = "014"[rest % 3];
            wanted[2 * i + 1] = i + 1 < LENGTH ? ' ' : '\0';
        }
        assert_ids(t, text, LENGTH, false, wanted);
    }
    gac_tokenizer_close(t);
}

/* NFC composes an accent with the character before it, if there is such a
 * character. */
static void accents_are_composed(void **state)
{
    (void)state;
    gac_tokenizer *t = opened(LETTERS("", "\"added_tokens\":[],\"normalizer\":{\"type\":\"NFC\"}"));
    assert_ids(t, "e\xcc\x81", 3, false, "5");
    assert_ids(t, "\xc3\xa9", 2, false, "5");
    assert_ids(t, "b\xcc\x81", 3, false, "1 6"); /* no such character */
    gac_tokenizer_close(t);
}

/* With the scheme "first" the mark goes before the text, but not after an added
 * token. */
static void marks_go_before_the_text(void **state)
{
    (void)state;
    gac_tokenizer *t = opened(LETTERS(
        "",
        "\"added_tokens\":[" TOKEN(
            "<s>", PLAIN) "],\"pre_tokenizer\":{\"type\":"
                          "\"Metaspace\",\"replacement\":\"\\u2581\",\"prepend_scheme\":\"first\","
                          "\"split\":true}"));
    assert_ids(t, "a<s>a b", 7, false, "3 0 8 0 3 1");
    gac_tokenizer_close(t);
}

#define WORD \
    "\"single_word\":true,\"lstrip\":false,\"rstrip\":false,\"normalized\":false,\"special\":" \
    "false"

/* The longest added token wins. A single_word token has no letters beside it. */
static void added_tokens_are_whole(void **state)
{
    (void)state;
    gac_tokenizer *t = opened(LETTERS("", "\"added_tokens\":[" TOKEN("<s>", PLAIN) "," TOKEN(
                                              "<s>>", PLAIN) "," TOKEN("bb", WORD) "]"));
    assert_ids(t, "a<s>b", 5, false, "0 8 1");
    assert_ids(t, "a<s>>b", 6, false, "0 9 1");
    assert_ids(t, "bb", 2, false, "10");
    assert_ids(t, "<s>bb<s>", 8, false, "8 10 8");
    assert_ids(t, "bba", 3, false, "1 1 0");
    assert_ids(t, "abb", 3, false, "0 1 1");
    gac_tokenizer_close(t);
}

/* A decoder strips at most as many characters as it states. */
static void decoders_strip_what_they_say(void **state)
{
    (void)state;
    const char *bytes;
    size_t n;
    gac_tokenizer *t =
        opened(LETTERS("", "\"added_tokens\":[],\"decoder\":{\"type\":\"Sequence\",\"decoders\":"
                           "[{\"type\":\"Strip\",\"content\":\"_\",\"start\":0,\"stop\":1}]}"));
    assert_ok(gac_tokenizer_decode_one(t, 7, false, &bytes, &n, err));
    assert_true(n == 2 && memcmp(bytes, "a_", 2) == 0);
    gac_tokenizer_close(t);
}

static void ids_become_bytes(void **state)
{
    (void)state;
    const int32_t ids[] = { 4, 2, 3, 0, 77, -1, 5, 2147483647 };
    const char *bytes;
    char *text = NULL;
    size_t n;
    gac_tokenizer *t = opened("{\"model\":" MODEL "," GOOD "}");
    assert_ok(gac_tokenizer_decode(t, ids, 8, false, &text, &n, err));
    assert_string_equal(text, "<s>ab a<new>");
    assert_int_equal(n, 12);
    free(text);
    assert_ok(gac_tokenizer_decode(t, ids, 8, true, &text, &n, err));
    assert_string_equal(text, "ab a");
    free(text);
    assert_ok(gac_tokenizer_decode(t, NULL, 0, true, &text, &n, err));
    assert_string_equal(text, "");
    free(text);
    assert_ok(gac_tokenizer_decode_one(t, 3, true, &bytes, &n, err));
    assert_true(n == 1 && bytes[0] == ' ');
    assert_ok(gac_tokenizer_decode_one(t, 77, true, &bytes, &n, err));
    assert_true(n == 0 && bytes);
    gac_tokenizer_close(t);
}

static void pieces_and_special_tokens(void **state)
{
    (void)state;
    gac_tokenizer *t = NULL;
    const char *directory = directory_with("{\"model\":" MODEL "," GOOD "}");
    char path[PATH_MAX];
    assert_ok(gac_tokenizer_open(directory, &t, err));
    assert_int_equal(gac_tokenizer_n_ids(t), 6);
    assert_string_equal(gac_tokenizer_piece(t, 3), "\xc4\xa0");
    assert_string_equal(gac_tokenizer_piece(t, 5), "<new>");
    assert_null(gac_tokenizer_piece(t, 6));
    assert_null(gac_tokenizer_piece(t, -1));
    assert_int_equal(gac_tokenizer_find(t, "ab"), 2);
    assert_int_equal(gac_tokenizer_find(t, "<new>"), 5);
    assert_int_equal(gac_tokenizer_find(t, "abc"), -1);
    assert_true(gac_tokenizer_is_special(t, 4) && !gac_tokenizer_is_special(t, 0));
    assert_false(gac_tokenizer_is_special(t, -1) || gac_tokenizer_is_special(t, 99));
    assert_int_equal(gac_tokenizer_bos(t), -1);
    assert_int_equal(gac_tokenizer_eos(t), -1);
    gac_tokenizer_close(t);

    snprintf(path, sizeof path, "%s/tokenizer_config.json", strrchr(directory, '/') + 1);
    const char *config = "{\"bos_token\":{\"content\":\"<s>\"},\"eos_token\":null}";
    scratch_put(path, config, strlen(config));
    snprintf(path, sizeof path, "%s/special_tokens_map.json", strrchr(directory, '/') + 1);
    config = "{\"bos_token\":\"a\",\"eos_token\":\"<new>\"}";
    scratch_put(path, config, strlen(config));
    assert_ok(gac_tokenizer_open(directory, &t, err));
    assert_int_equal(gac_tokenizer_bos(t), 4);
    assert_int_equal(gac_tokenizer_eos(t), 5);
    gac_tokenizer_close(t);
    scratch_put(path, "{", 1);
    assert_fails(gac_tokenizer_open(directory, &t, err), GAC_BAD_INPUT, "special_tokens_map.json");
}

static void bad_models_are_refused(void **state)
{
    (void)state;
    gac_tokenizer *t = NULL;
    assert_fails(gac_tokenizer_open(scratch_path("none"), &t, err), GAC_BAD_INPUT, "none");
    refused("", "offset 0: bad JSON");
    refused("[]", "expected '{'");
    refused("{}", "$.model: must be an object");
    refused("{\"model\":[]}", "expected an object");
    refused("{\"model\":{}}", "$.model: must have vocab and merges");
    refused("{\"model\":{\"type\":\"Unigram\"}}", "$.model.type: must be BPE");
    refused("{\"model\":" MODEL ",\"model\":" MODEL "}", "$.model: is there twice");
    refused("{\"model\":{\"vocab\":{\"a\":-1}}}", "$.model.vocab: the id of \"a\" must be");
    refused("{\"model\":{\"vocab\":{\"a\":4194304}}}", "from 0 to 4194303");
    refused("{\"model\":{\"vocab\":{\"a\":1.5}}}", "must be an integer");
    refused("{\"model\":{\"vocab\":{\"a\":99999999999999999999}}}", "must be an integer from 0 to");
    refused("{\"model\":{\"vocab\":{\"a\":{\"b\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[", "bytes");
    refused("{\"model\":{\"vocab\":{\"a\":1,\"b\":1}}}", "\"b\" has the id of another piece, 1");
    refused("{\"model\":{\"vocab\":{\"a\":1,\"a\":2}}}", "\"a\" is there twice");
    refused("{\"model\":{\"vocab\":{\"a\\u0000\":1}}}", "NUL");
    refused("{\"model\":{\"vocab\":{\"\xff\":1}}}", "not UTF-8");
    refused("{\"model\":{\"vocab\":{\"a\\ud800\":1}}}", "bad JSON");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":{}}}", "expected an array");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a\"]}}", "$.model.merges[0]: must be");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a a\"]}}", "$.model.merges[0]");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\"]]}}", "must be two pieces");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",\"a\",\"a\"]]}}", "two pieces");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[[\"a\",1]]}}", "expected a string");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\"a a\"]}}",
            "$.model.merges[0]: names a piece that is not in the vocabulary");
    refused("{\"model\":{\"vocab\":{\"a\":0},\"merges\":[\" \"]}}",
            "$.model.merges[0]: names a piece that is not in the vocabulary");
    refused("{\"model\":{\"dropout\":0.1}}", "$.model.dropout");
    refused("{\"model\":{\"end_of_word_suffix\":\"</w>\"}}", "$.model.end_of_word_suffix: is not");
    refused("{\"model\":{\"byte_fallback\":3}}", "$.model.byte_fallback: must be true or false");
    refused("{\"model\":{\"unk_token\":3}}", "$.model.unk_token: must be a string");
    refused("{\"model\":" MODEL "} x", "expected nothing after the object");
    refused("{\"model\":" MODEL, "bad JSON: ends before");
}

static void bad_parts_are_refused(void **state)
{
    (void)state;
#define WITH(part) "{\"model\":" MODEL "," part "}"
#define PRE(part) WITH("\"pre_tokenizer\":" part)
#define SPLIT(pattern) \
    PRE("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"" pattern "\"},\"behavior\":\"Isolated\"," \
        "\"invert\":false}")
    refused(PRE("3"), "$.pre_tokenizer: must be an object or null");
    refused(PRE("{}"), "$.pre_tokenizer.type: must be a string");
    refused(PRE("{\"type\":\"BertPreTokenizer\"}"), "BertPreTokenizer is not supported here");
    refused(PRE("{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"Digits\"}]}"),
            "$.pre_tokenizer.pretokenizers[0].individual_digits: must be true or false");
    refused(PRE("{\"type\":\"Split\",\"behavior\":\"Odd\"}"), "behavior: is not a known behavior");
    refused(PRE("{\"type\":\"Metaspace\",\"replacement\":\"__\"}"), "must be one character");
    refused(PRE("{\"type\":\"Metaspace\",\"replacement\":\"\"}"), "must be one character");
    refused(SPLIT(""), "$.pre_tokenizer.pattern: must have a pattern of 1 to");
    refused(SPLIT("("), "does not compile");
    refused(SPLIT("a{2,1}"), "does not compile");
    refused(SPLIT("\\\\p{Nonsense}"), "does not compile");
    refused(SPLIT("\\\\C"), "an escape");
    refused(SPLIT("\\\\"), "an escape");
    refused(SPLIT("(*UTF)a"), "a verb");
    refused(SPLIT("(?C1)a"), "a kind of group");
    refused(SPLIT("[a&&b]"), "&& inside []");
    refused(SPLIT("[a[b]]"), "a class inside a class");
    refused(SPLIT("a{1,3}+"), "+ after {}");
    refused(WITH("\"normalizer\":{\"type\":\"Lowercase\"}"), "$.normalizer.type: Lowercase");
    refused(WITH("\"normalizer\":{\"type\":\"Replace\",\"content\":\"\",\"pattern\":{}}"),
            "$.normalizer.pattern: must have a String or a Regex");
    refused(WITH("\"decoder\":{\"type\":\"WordPiece\"}"), "$.decoder.type: WordPiece");
    refused(WITH("\"decoder\":{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"ByteFallback\"},"
                 "{\"type\":\"Replace\"}]}"),
            "$.decoder.decoders[1]: comes after the tokens have become bytes");
    refused(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],"
                 "\"special_tokens\":{}}"),
            "$.post_processor.single: must have sequence A");
    refused(WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"special_tokens\":{},"
                 "\"single\":[{\"SpecialToken\":{\"id\":\"x\"}}]}"),
            "$.post_processor.single[0]: must name a special token");
    refused(WITH("\"added_tokens\":[3]"), "$.added_tokens[0].content: must be a string");
    refused(WITH("\"added_tokens\":[{\"content\":\"x\"}]"), "$.added_tokens[0].single_word");
    refused(WITH("\"added_tokens\":[" TOKEN("x", PLAIN) "," TOKEN("x", PLAIN) "]"),
            "$.added_tokens: two tokens are the same");
}

/* Nested sequences and the number of steps are limited. */
static void nesting_is_bounded(void **state)
{
    (void)state;
    char json[8192] = "{\"model\":" MODEL ",\"normalizer\":";
    for (int i = 0; i < 8; i++)
        strcat(json, "{\"type\":\"Sequence\",\"normalizers\":[");
    refused(strcat(json, "]}]}]}]}]}]}]}]}}"), "is nested too deeply");
    strcpy(json, "{\"model\":" MODEL ",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[");
    for (int half = 0; half < 3; half++) {
        strcat(json, half ? ",{\"type\":\"Sequence\",\"normalizers\":["
                          : "{\"type\":\"Sequence\",\"normalizers\":[");
        for (int i = 0; i < 8; i++)
            strcat(json, i ? ",{\"type\":\"NFC\"}" : "{\"type\":\"NFC\"}");
        strcat(json, "]}");
    }
    refused(strcat(json, "]}}"), "exceeds the limit of steps");
}

/* A pattern that backtracks forever and a normalizer that grows without end
 * give an error. */
static void hostile_texts_and_patterns_end(void **state)
{
    (void)state;
    int32_t *ids = NULL;
    size_t n_ids;
    char text[4096];
    memset(text, 'a', sizeof text);
    gac_tokenizer *t = opened(SPLIT("(a+)+$(?<=b)"));
    assert_fails(gac_tokenizer_encode(t, text, sizeof text, false, &ids, &n_ids, err),
                 GAC_BAD_INPUT, "too many steps");
    gac_tokenizer_close(t);
#define GROW \
    "{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aaaaaaaaaaaaaaaa\"}"
    t = opened(WITH("\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[" GROW "," GROW "," GROW
                    "," GROW "," GROW "," GROW "]}"));
    assert_fails(gac_tokenizer_encode(t, text, sizeof text, false, &ids, &n_ids, err),
                 GAC_BAD_INPUT, "normalizer makes");
    gac_tokenizer_close(t);
    t = opened("{\"model\":{\"unk_token\":\"none\",\"vocab\":{\"a\":0},\"merges\":[]}}");
    assert_fails(gac_tokenizer_encode(t, "b", 1, false, &ids, &n_ids, err), GAC_BAD_INPUT,
                 "unk_token is not in its vocabulary");
    assert_fails(gac_tokenizer_encode(t, text, (size_t)1 << 30, false, &ids, &n_ids, err),
                 GAC_USAGE, "too long");
    gac_tokenizer_close(t);
    assert_null(ids);
}

static void names_of_given_length_are_found(void **state)
{
    (void)state;
    gac_namemap map;
    int32_t existing;
    assert_ok(gac_namemap_init(&map, err));
    assert_ok(gac_namemap_add(&map, "ab", 1, &existing, err));
    assert_ok(gac_namemap_add(&map, "", 2, &existing, err));
    assert_int_equal(gac_namemap_find_n(&map, "abc", 2), 1);
    assert_int_equal(gac_namemap_find_n(&map, "abc", 3), -1);
    assert_int_equal(gac_namemap_find_n(&map, "ab\0c", 4), -1);
    assert_int_equal(gac_namemap_find_n(&map, "x", 0), 2);
    gac_namemap_dispose(&map);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(text_becomes_ids),
        cmocka_unit_test(merges_begin_at_the_left),
        cmocka_unit_test(words_of_one_slot_keep_their_ids),
        cmocka_unit_test(accents_are_composed),
        cmocka_unit_test(marks_go_before_the_text),
        cmocka_unit_test(added_tokens_are_whole),
        cmocka_unit_test(decoders_strip_what_they_say),
        cmocka_unit_test(ids_become_bytes),
        cmocka_unit_test(pieces_and_special_tokens),
        cmocka_unit_test(bad_models_are_refused),
        cmocka_unit_test(bad_parts_are_refused),
        cmocka_unit_test(nesting_is_bounded),
        cmocka_unit_test(hostile_texts_and_patterns_end),
        cmocka_unit_test(names_of_given_length_are_found),
    };
    return cmocka_run_group_tests_name("tokenizer", tests, scratch_create, scratch_remove);
}
