/* Reads the normalizer, pre_tokenizer, decoder and post_processor of
 * tokenizer.json. Unknown kinds are refused, because the ids would be wrong. */
#include "tokenizer/tokenizer_internal.h"

#include <string.h>

enum { MAX_DEPTH = 4 };

#define GPT2_PATTERN \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"

typedef bool part_reader(gac_tokenizer *t, gac_reader *r, const json_t *value, const char *type);

/* Reads one component, or each component of a Sequence. */
static bool read_parts(gac_tokenizer *t, gac_reader *r, const json_t *value, const char *list_key,
                       int depth, part_reader *read)
{
    char rule[160], q[64];
    json_t *list;
    size_t i, before;
    const char *type = json_string_value(json_object_get(value, "type"));
    if (!json_is_object(value))
        return gac_reader_fault(r, "must be an object or null");
    if (!type)
        return gac_reader_fault_at(r, "type", "must be a string");
    if (strcmp(type, "Sequence") != 0) {
        if (read(t, r, value, type))
            return true;
        if (r->status != GAC_OK)
            return false;
        snprintf(rule, sizeof rule, "%s is not supported here", gac_quote(q, sizeof q, type));
        return gac_reader_fault_at(r, "type", rule);
    }
    if (depth == MAX_DEPTH)
        return gac_reader_fault(r, "is nested too deeply");
    if (!gac_reader_array(r, value, list_key, MAX_STEPS, &list))
        return false;
    for (i = 0; i < json_array_size(list); i++) {
        before = gac_reader_enter(r, ".%s[%zu]", list_key, i);
        if (!read_parts(t, r, json_array_get(list, i), list_key, depth + 1, read))
            return false;
        gac_reader_leave(r, before);
    }
    return true;
}

/* Copies a string of at most MAX_STEP_BYTES. */
static bool read_text(gac_tokenizer *t, gac_reader *r, const json_t *value, const char *key,
                      const char **out, size_t *n)
{
    const json_t *text = json_object_get(value, key);
    *n = json_string_length(text);
    if (!json_is_string(text) || *n > MAX_STEP_BYTES)
        return gac_reader_fault_at(r, key, "must be a string of at most 256 bytes");
    *out = gac_arena_strdup(&t->arena, json_string_value(text));
    return *out || gac_reader_no_memory(r);
}

static bool compile(gac_reader *r, const char *text, size_t n, bool literal, gac_pattern **out)
{
    char why[256];
    gac_status status = gac_pattern_compile(text, n, literal, out, why, sizeof why);
    if (status == GAC_NO_RESOURCE)
        return gac_reader_no_memory(r);
    return status == GAC_OK || gac_reader_fault(r, why);
}

/* {"String": text} or {"Regex": pattern}. */
static bool read_pattern(gac_reader *r, const json_t *value, gac_pattern **out)
{
    json_t *pattern;
    if (!gac_reader_object(r, value, "pattern", &pattern))
        return false;
    const json_t *literal = json_object_get(pattern, "String");
    const json_t *text = literal ? literal : json_object_get(pattern, "Regex");
    size_t before = gac_reader_enter(r, ".pattern");
    if (!json_is_string(text) || json_object_size(pattern) != 1)
        return gac_reader_fault(r, "must have a String or a Regex");
    if (!compile(r, json_string_value(text), json_string_length(text), literal != NULL, out))
        return false;
    gac_reader_leave(r, before);
    return true;
}

/* Reads a boolean that may be absent. */
static bool read_flag(gac_reader *r, const json_t *value, const char *key, bool fallback, bool *out)
{
    *out = fallback;
    return !json_object_get(value, key) || gac_reader_bool(r, value, key, out);
}

static bool read_normal(gac_tokenizer *t, gac_reader *r, const json_t *value, const char *type)
{
    static const char *const names[] = { "NFC", "NFD", "NFKC", "NFKD", "Prepend", "Replace" };
    int kind = 0;
    while (kind < 6 && strcmp(names[kind], type) != 0)
        kind++;
    if (kind == 6)
        return false;
    if (t->normal.n_steps == MAX_STEPS)
        return gac_reader_fault(r, "exceeds the limit of steps");
    normal_step *step = &t->normal.steps[t->normal.n_steps++];
    step->kind = (normal_kind)kind;
    if (kind == NORMAL_PREPEND)
        return read_text(t, r, value, "prepend", &step->content, &step->n_content);
    if (kind == NORMAL_REPLACE)
        return read_text(t, r, value, "content", &step->content, &step->n_content) &&
               read_pattern(r, value, &step->pattern);
    return true;
}

bool gac_tokenizer_read_normalizer(gac_tokenizer *t, gac_reader *r, const json_t *value)
{
    return json_is_null(value) || read_parts(t, r, value, "normalizers", 0, read_normal);
}

static bool read_split(gac_reader *r, const json_t *value, split_step *step)
{
    static const char *const names[] = { "Isolated", "Removed", "Contiguous", "MergedWithPrevious",
                                         "MergedWithNext" };
    const char *name = json_string_value(json_object_get(value, "behavior"));
    int behavior = 0;
    while (behavior < 5 && (!name || strcmp(names[behavior], name) != 0))
        behavior++;
    if (behavior == 5)
        return gac_reader_fault_at(r, "behavior", "is not a known behavior");
    step->kind = SPLIT_PATTERN;
    step->behavior = (split_behavior)behavior;
    return read_pattern(r, value, &step->pattern) &&
           gac_reader_bool(r, value, "invert", &step->invert);
}

static bool read_byte_level(gac_reader *r, const json_t *value, split_step *step)
{
    bool use_regex;
    step->kind = SPLIT_BYTE_LEVEL;
    if (!gac_reader_bool(r, value, "add_prefix_space", &step->prefix_space) ||
        !read_flag(r, value, "use_regex", true, &use_regex))
        return false;
    return !use_regex || compile(r, GPT2_PATTERN, strlen(GPT2_PATTERN), false, &step->pattern);
}

/* Reads replacement and prepend_scheme of a Metaspace, which may be a
 * pre-tokenizer or a decoder. */
static bool read_metaspace(gac_tokenizer *t, gac_reader *r, const json_t *value, const char **mark,
                           size_t *n_mark, prepend_scheme *scheme)
{
    static const char *const names[] = { "always", "first", "never" };
    const json_t *given = json_object_get(value, "prepend_scheme");
    const char *name = given ? json_string_value(given) : "always";
    int found = 0;
    size_t length = 0;
    bool prefix;
    if (!read_text(t, r, value, "replacement", mark, n_mark) ||
        !read_flag(r, value, "add_prefix_space", true, &prefix))
        return false;
    if (*n_mark > 0)
        gac_utf8_get(*mark, &length);
    if (length == 0 || length != *n_mark)
        return gac_reader_fault_at(r, "replacement", "must be one character");
    while (found < 3 && (!name || strcmp(names[found], name) != 0))
        found++;
    if (found == 3 || (!prefix && found != PREPEND_NEVER))
        return gac_reader_fault_at(r, "prepend_scheme",
                                   "must be always, first or never, and agree with "
                                   "add_prefix_space");
    *scheme = (prepend_scheme)found;
    return true;
}

static bool read_metaspace_step(gac_tokenizer *t, gac_reader *r, const json_t *value,
                                split_step *step)
{
    size_t n;
    bool split;
    step->kind = SPLIT_METASPACE;
    step->behavior = BEHAVIOR_WITH_NEXT;
    if (!read_metaspace(t, r, value, &step->replacement, &n, &step->scheme) ||
        !read_flag(r, value, "split", true, &split))
        return false;
    return !split || compile(r, step->replacement, n, true, &step->pattern);
}

static bool read_pre(gac_tokenizer *t, gac_reader *r, const json_t *value, const char *type)
{
    if (t->pre.n_steps == MAX_STEPS)
        return gac_reader_fault(r, "exceeds the limit of steps");
    split_step *step = &t->pre.steps[t->pre.n_steps];
    bool individual;
    bool known = true, read = false;
    if (strcmp(type, "Split") == 0) {
        read = read_split(r, value, step);
    } else if (strcmp(type, "ByteLevel") == 0) {
        read = read_byte_level(r, value, step);
    } else if (strcmp(type, "Metaspace") == 0) {
        read = read_metaspace_step(t, r, value, step);
    } else if (strcmp(type, "Digits") == 0) {
        read = gac_reader_bool(r, value, "individual_digits", &individual);
        step->kind = SPLIT_DIGITS;
        step->behavior = individual ? BEHAVIOR_ISOLATED : BEHAVIOR_CONTIGUOUS;
    } else {
        known = false;
    }
    t->pre.n_steps += known; /* counted even after a failure, so that its pattern is freed */
    return read;
}

bool gac_tokenizer_read_pre(gac_tokenizer *t, gac_reader *r, const json_t *value)
{
    return json_is_null(value) || read_parts(t, r, value, "pretokenizers", 0, read_pre);
}

static bool read_strip(gac_tokenizer *t, gac_reader *r, const json_t *value, decode_step *step)
{
    double start, stop;
    step->kind = DECODE_STRIP;
    if (!read_text(t, r, value, "content", &step->content, &step->n_content) ||
        !gac_reader_number(r, value, "start", 0, 1024, &start) ||
        !gac_reader_number(r, value, "stop", 0, 1024, &stop))
        return false;
    if (step->n_content == 0)
        return gac_reader_fault_at(r, "content", "must be one character");
    step->start = (int32_t)start;
    step->stop = (int32_t)stop;
    return true;
}

static bool read_decode_kind(gac_tokenizer *t, gac_reader *r, const json_t *value, const char *type,
                             decode_step *step)
{
    if (strcmp(type, "ByteLevel") == 0) {
        step->kind = DECODE_BYTE_LEVEL;
        return true;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        step->kind = DECODE_BYTE_FALLBACK;
        return true;
    }
    if (strcmp(type, "Strip") == 0)
        return read_strip(t, r, value, step);
    if (strcmp(type, "Metaspace") == 0) {
        step->kind = DECODE_METASPACE;
        return read_metaspace(t, r, value, &step->content, &step->n_content, &step->scheme);
    }
    if (strcmp(type, "Replace") != 0)
        return false;
    step->kind = DECODE_REPLACE;
    return read_text(t, r, value, "content", &step->content, &step->n_content) &&
           read_pattern(r, value, &step->pattern);
}

/* After ByteLevel, ByteFallback or Fuse only Strip may follow: the tokens are
 * bytes by then, which need not be whole characters. */
static bool read_decode(gac_tokenizer *t, gac_reader *r, const json_t *value, const char *type)
{
    decoder *dec = &t->dec;
    decode_kind last = dec->n_steps ? dec->steps[dec->n_steps - 1].kind : DECODE_REPLACE;
    bool bytes = dec->fused || last == DECODE_BYTE_LEVEL || last == DECODE_BYTE_FALLBACK;
    if (strcmp(type, "Fuse") == 0) {
        dec->fused = true;
        return true;
    }
    if (bytes && strcmp(type, "Strip") != 0)
        return gac_reader_fault(r, "comes after the tokens have become bytes");
    if (dec->fused) {
        if (dec->strip.n_content > 0 || !read_strip(t, r, value, &dec->strip))
            return r->status == GAC_OK && gac_reader_fault(r, "strips a second time");
        return dec->strip.stop == 0 || gac_reader_fault_at(r, "stop", "must be 0 after Fuse");
    }
    if (dec->n_steps == MAX_STEPS)
        return gac_reader_fault(r, "exceeds the limit of steps");
    decode_step *step = &dec->steps[dec->n_steps++];
    bool read = read_decode_kind(t, r, value, type, step);
    dec->fused = read && step->kind == DECODE_BYTE_LEVEL;
    return read;
}

bool gac_tokenizer_read_decoder(gac_tokenizer *t, gac_reader *r, const json_t *value)
{
    if (json_is_null(value))
        return true;
    t->dec.present = true;
    return read_parts(t, r, value, "decoders", 0, read_decode);
}

/* Appends the ids of one special token of a template. */
static bool read_special(gac_reader *r, const json_t *tokens, const json_t *piece, int32_t *ids,
                         int32_t *n_ids)
{
    const char *name = json_string_value(json_object_get(piece, "id"));
    const json_t *list = name ? json_object_get(json_object_get(tokens, name), "ids") : NULL;
    if (!json_is_array(list) || json_array_size(list) > (size_t)(MAX_TEMPLATE - *n_ids))
        return gac_reader_fault(r, "must name a special token with a short array of ids");
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= GAC_MAX_TOKENS)
            return gac_reader_fault(r, "must name a special token with valid ids");
        ids[(*n_ids)++] = (int32_t)json_integer_value(id);
    }
    return true;
}

/* Reads the tokens around sequence A. They go around those of earlier templates. */
static bool read_template(gac_tokenizer *t, gac_reader *r, const json_t *value)
{
    int32_t prefix[MAX_TEMPLATE], n_prefix = 0;
    json_t *single, *tokens;
    bool seen = false;
    if (!gac_reader_array(r, value, "single", MAX_TEMPLATE, &single) ||
        !gac_reader_object(r, value, "special_tokens", &tokens))
        return false;
    for (size_t i = 0; i < json_array_size(single); i++) {
        const json_t *piece = json_array_get(single, i);
        const json_t *sequence = json_object_get(piece, "Sequence");
        size_t before = gac_reader_enter(r, ".single[%zu]", i);
        if (sequence) {
            const char *id = json_string_value(json_object_get(sequence, "id"));
            if (seen || !id || strcmp(id, "A") != 0)
                return gac_reader_fault(r, "must be sequence A, once");
            seen = true;
        } else if (!read_special(r, tokens, json_object_get(piece, "SpecialToken"),
                                 seen ? t->suffix : prefix, seen ? &t->n_suffix : &n_prefix)) {
            return false;
        }
        gac_reader_leave(r, before);
    }
    if (!seen || n_prefix + t->n_prefix > MAX_TEMPLATE)
        return gac_reader_fault_at(r, "single", "must have sequence A and few special tokens");
    memmove(t->prefix + n_prefix, t->prefix, (size_t)t->n_prefix * sizeof prefix[0]);
    memcpy(t->prefix, prefix, (size_t)n_prefix * sizeof prefix[0]);
    t->n_prefix += n_prefix;
    return true;
}

static bool read_post(gac_tokenizer *t, gac_reader *r, const json_t *value, const char *type)
{
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(t, r, value);
    return strcmp(type, "ByteLevel") == 0; /* it changes offsets only */
}

bool gac_tokenizer_read_post(gac_tokenizer *t, gac_reader *r, const json_t *value)
{
    return json_is_null(value) || read_parts(t, r, value, "processors", 0, read_post);
}
