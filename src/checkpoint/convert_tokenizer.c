/* Writes a vocabulary as tokenizer.json and tokenizer_config.json. */
#include <stdlib.h>
#include <string.h>

#include "base/namemap.h"
#include "checkpoint/convert_internal.h"

#define MARK "\xe2\x96\x81" /* SentencePiece's sign for a space */

static const char llama3_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}{1,3}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char qwen2_pattern[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
static const char tekken_pattern[] =
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]*[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]+|"
    "[^\\r\\n\\p{L}\\p{N}]?[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]+[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]*|"
    "\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* The split rules by their names in llama.cpp. */
static const struct rule {
    const char *name;
    const char *pattern; /* NULL: GPT-2's pattern, which ByteLevel has built in */
    bool digits;         /* every digit is a word of its own */
    bool nfc, ignore_merges, adds_bos;
} rules[] = {
    { "gpt-2", NULL, false, false, false, false },
    { "olmo", NULL, false, false, false, false },
    { "smollm", NULL, true, false, false, false },
    { "starcoder", NULL, true, false, false, false },
    { "llama-bpe", llama3_pattern, false, false, true, true },
    { "llama3", llama3_pattern, false, false, true, true },
    { "llama-v3", llama3_pattern, false, false, true, true },
    { "falcon3", llama3_pattern, false, false, true, true },
    { "qwen2", qwen2_pattern, false, true, false, false },
    { "deepseek-r1-qwen", qwen2_pattern, false, true, false, true },
    { "tekken", tekken_pattern, false, false, true, true },
};

static const struct rule *find_rule(const char *name)
{
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (strcmp(rules[i].name, name) == 0)
            return &rules[i];
    return NULL;
}

bool gac_convert_split_known(const char *name)
{
    return find_rule(name) != NULL;
}

static json_t *byte_level(bool use_regex)
{
    return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 0,
                     "trim_offsets", 1, "use_regex", use_regex);
}

convert_split gac_convert_split(const char *name)
{
    const struct rule *rule = find_rule(name);
    convert_split split = { NULL, rule->nfc, rule->ignore_merges, rule->adds_bos };
    if (rule->pattern)
        split.pre_tokenizer =
            json_pack("{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, o]}", "type", "Sequence", "pretokenizers",
                      "type", "Split", "pattern", "Regex", rule->pattern, "behavior", "Isolated",
                      "invert", 0, byte_level(false));
    else if (rule->digits)
        split.pre_tokenizer =
            json_pack("{s:s, s:[{s:s, s:b}, o]}", "type", "Sequence", "pretokenizers", "type",
                      "Digits", "individual_digits", 1, byte_level(true));
    else
        split.pre_tokenizer = byte_level(true);
    return split;
}

/* Lists the tokens that are found in text before anything else. */
static json_t *added_tokens(const convert_vocab *v)
{
    json_t *list = json_array();
    for (int64_t i = 0; i < v->n; i++) {
        bool special = v->types[i] == TOKEN_CONTROL || v->types[i] == TOKEN_UNKNOWN;
        if (!special && v->types[i] != TOKEN_USER)
            continue;
        json_array_append_new(list,
                              json_pack("{s:I, s:s, s:b, s:b, s:b, s:b, s:b}", "id", (json_int_t)i,
                                        "content", v->tokens[i], "single_word", 0, "lstrip", 0,
                                        "rstrip", 0, "normalized", 0, "special", special));
    }
    return list;
}

static void add_special(json_t *single, json_t *pair, json_t *specials, const convert_vocab *v,
                        int64_t id, int type_id)
{
    const char *text = v->tokens[id];
    json_t *item = json_pack("{s:{s:s, s:i}}", "SpecialToken", "id", text, "type_id", type_id);
    if (type_id == 0)
        json_array_append(single, item);
    json_array_append_new(pair, item);
    json_object_set_new(
        specials, text,
        json_pack("{s:s, s:[I], s:[s]}", "id", text, "ids", (json_int_t)id, "tokens", text));
}

static json_t *sequence(const char *name, int type_id)
{
    return json_pack("{s:{s:s, s:i}}", "Sequence", "id", name, "type_id", type_id);
}

/* Makes the post-processor that adds the tokens of start and end to a text.
 * NULL if there are none. */
static json_t *template_processor(const convert_vocab *v)
{
    json_t *single = json_array(), *pair = json_array(), *specials = json_object();
    for (int i = 0; i < 2; i++) {
        if (v->add_bos)
            add_special(single, pair, specials, v, v->bos, i);
        if (i == 0)
            json_array_append_new(single, sequence("A", 0));
        json_array_append_new(pair, sequence(i ? "B" : "A", i));
        if (v->add_eos)
            add_special(single, pair, specials, v, v->eos, i);
    }
    return json_pack("{s:s, s:o, s:o, s:o}", "type", "TemplateProcessing", "single", single, "pair",
                     pair, "special_tokens", specials);
}

static json_t *post_processor(const convert_vocab *v)
{
    bool marks = v->add_bos || v->add_eos;
    if (v->kind == VOCAB_SCORED)
        return marks ? template_processor(v) : json_null();
    json_t *bytes = json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1,
                              "trim_offsets", 0, "use_regex", 1);
    return marks ? json_pack("{s:s, s:[o, o]}", "type", "Sequence", "processors", bytes,
                             template_processor(v))
                 : bytes;
}

static json_t *replace(const char *from, const char *to)
{
    return json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern", "String", from, "content",
                     to);
}

static json_t *normalizer(const convert_vocab *v, bool nfc)
{
    if (v->kind == VOCAB_BYTE_LEVEL)
        return nfc ? json_pack("{s:s}", "type", "NFC") : json_null();
    if (!v->add_space)
        return replace(" ", MARK);
    return json_pack("{s:s, s:[{s:s, s:s}, o]}", "type", "Sequence", "normalizers", "type",
                     "Prepend", "prepend", MARK, replace(" ", MARK));
}

static json_t *decoder(const convert_vocab *v)
{
    if (v->kind == VOCAB_BYTE_LEVEL)
        return json_pack("{s:s, s:b, s:b, s:b}", "type", "ByteLevel", "add_prefix_space", 1,
                         "trim_offsets", 1, "use_regex", 1);
    json_t *steps =
        json_pack("[o, {s:s}, {s:s}]", replace(MARK, " "), "type", "ByteFallback", "type", "Fuse");
    if (steps && v->add_space)
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                               " ", "start", 1, "stop", 0));
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

/* Makes the map from tokens to ids. A duplicate token keeps its first id. */
static gac_status vocab_json(const convert_model *m, json_t **out, gac_error *err)
{
    json_t *map = json_object();
    bool ok = map != NULL;
    for (int64_t i = 0; i < m->vocab.n && ok; i++)
        ok = json_object_get(map, m->vocab.tokens[i]) ||
             json_object_set_new(map, m->vocab.tokens[i], json_integer(i)) == 0;
    if (!ok) {
        json_decref(map);
        return gac_error_no_memory(err);
    }
    *out = map;
    return GAC_OK;
}

/* Checks that a merge joins two tokens to a third. Readers refuse other merges. */
static gac_status check_merge(const convert_model *m, int64_t index, const json_t *vocab,
                              gac_error *err)
{
    const char *merge = m->vocab.merges[index], *space = merge[0] ? strchr(merge + 1, ' ') : NULL;
    char q[120];
    bool fits = false;
    if (space && space[1]) {
        size_t n_left = (size_t)(space - merge), n_right = strlen(space + 1);
        char *joined = malloc(n_left + n_right + 1);
        if (!joined)
            return gac_error_no_memory(err);
        memcpy(joined, merge, n_left);
        joined[n_left] = 0;
        fits = json_object_get(vocab, joined) && json_object_get(vocab, space + 1);
        memcpy(joined + n_left, space + 1, n_right + 1);
        fits = fits && json_object_get(vocab, joined);
        free(joined);
    }
    if (fits)
        return GAC_OK;
    return gac_convert_bad(m, err, "merge %lld \"%s\" does not join two tokens to a third",
                           (long long)index, gac_quote(q, sizeof q, merge));
}

static gac_status given_merges(const convert_model *m, const json_t *vocab, json_t **out,
                               gac_error *err)
{
    json_t *list = json_array();
    gac_status status = list ? GAC_OK : gac_error_no_memory(err);
    for (int64_t i = 0; i < m->vocab.n_merges && status == GAC_OK; i++) {
        status = check_merge(m, i, vocab, err);
        if (status == GAC_OK && json_array_append_new(list, json_string(m->vocab.merges[i])) != 0)
            status = gac_error_no_memory(err);
    }
    if (status == GAC_OK)
        *out = list;
    else
        json_decref(list);
    return status;
}

gac_status gac_convert_tokenizer_json(const convert_model *m, json_t **out, gac_error *err)
{
    const convert_vocab *v = &m->vocab;
    bool scored = v->kind == VOCAB_SCORED;
    convert_split split = { json_null(), false, false, false };
    json_t *vocab = NULL, *merges = NULL;
    gac_status status = vocab_json(m, &vocab, err);
    if (status == GAC_OK)
        status =
            scored ? gac_convert_merges(m, &merges, err) : given_merges(m, vocab, &merges, err);
    if (status != GAC_OK) {
        json_decref(vocab);
        return status;
    }
    if (!scored)
        split = gac_convert_split(v->split);
    json_t *model = json_pack(
        "{s:s, s:n, s:s?, s:n, s:n, s:b, s:b, s:b, s:o, s:o}", "type", "BPE", "dropout",
        "unk_token", scored && v->unknown >= 0 ? v->tokens[v->unknown] : NULL,
        "continuing_subword_prefix", "end_of_word_suffix", "fuse_unk", scored, "byte_fallback",
        scored, "ignore_merges", split.ignore_merges, "vocab", vocab, "merges", merges);
    *out = json_pack("{s:s, s:n, s:n, s:o, s:o, s:o, s:o, s:o, s:o}", "version", "1.0",
                     "truncation", "padding", "added_tokens", added_tokens(v), "normalizer",
                     normalizer(v, split.nfc), "pre_tokenizer", split.pre_tokenizer,
                     "post_processor", post_processor(v), "decoder", decoder(v), "model", model);
    return *out ? GAC_OK : gac_error_no_memory(err);
}

static void set_token(json_t *config, const char *key, const convert_vocab *v, int64_t id)
{
    if (id >= 0)
        json_object_set_new(config, key, json_string(v->tokens[id]));
}

json_t *gac_convert_tokenizer_config(const convert_model *m)
{
    const convert_vocab *v = &m->vocab;
    json_t *config =
        json_pack("{s:s, s:b, s:b, s:b, s:I}", "tokenizer_class", "PreTrainedTokenizerFast",
                  "clean_up_tokenization_spaces", 0, "add_bos_token", v->add_bos, "add_eos_token",
                  v->add_eos, "model_max_length", (json_int_t)m->context);
    if (!config)
        return NULL;
    set_token(config, "bos_token", v, v->bos);
    set_token(config, "eos_token", v, v->eos);
    set_token(config, "unk_token", v, v->unknown);
    set_token(config, "pad_token", v, v->pad);
    if (v->chat_template)
        json_object_set_new(config, "chat_template", json_string(v->chat_template));
    return config;
}
