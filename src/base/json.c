#include <gac/base.h>

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

static gac_status parse_error(const json_error_t *e, const char *source, uint64_t base_offset,
                              gac_error *err)
{
    char qs[256], qt[200];
    if (json_error_code(e) == json_error_out_of_memory)
        return gac_error_no_memory(err);
    uint64_t offset = base_offset + (e->position > 0 ? (uint64_t)e->position : 0);
    return gac_error_set(err, GAC_BAD_INPUT, "%s: offset %llu: bad JSON: %s",
                         gac_quote(qs, sizeof qs, source), (unsigned long long)offset,
                         gac_quote(qt, sizeof qt, e->text));
}

gac_status gac_json_parse(const char *text, size_t n_bytes, const char *source, struct json_t **out,
                          gac_error *err)
{
    json_error_t e;
    json_t *value = json_loadb(text, n_bytes, JSON_REJECT_DUPLICATES, &e);
    if (!value)
        return parse_error(&e, source, 0, err);
    *out = value;
    return GAC_OK;
}

gac_status gac_json_load(gac_file *file, size_t max_bytes, struct json_t **out, gac_error *err)
{
    char *text;
    size_t n_bytes;
    gac_status status = gac_file_slurp(file, max_bytes, &text, &n_bytes, err);
    if (status != GAC_OK)
        return status;
    status = gac_json_parse(text, n_bytes, gac_file_path(file), out, err);
    free(text);
    return status;
}

gac_status gac_json_print(FILE *stream, const struct json_t *value, gac_error *err)
{
    /* In one piece: jansson would write to the stream token by token. */
    char *text = json_dumps(value, JSON_INDENT(1) | JSON_REAL_PRECISION(9));
    if (!text)
        return gac_error_no_memory(err);
    bool written = fputs(text, stream) >= 0 && fputc('\n', stream) != EOF && fflush(stream) == 0;
    free(text);
    return written ? GAC_OK : gac_error_set(err, GAC_FAILED, "cannot write the result");
}

struct json_t *gac_json_result(const char *schema, int argc, char **argv)
{
    char when[32];
    char q[512];
    struct utsname uts;
    time_t now = time(NULL);
    struct tm utc;
    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &utc));
    if (uname(&uts) != 0)
        memset(&uts, 0, sizeof uts);
    json_t *arguments = json_array();
    for (int i = 1; i < argc; i++)
        json_array_append_new(arguments, json_string(gac_quote(q, sizeof q, argv[i])));
    return json_pack("{s:s, s:{s:s, s:s}, s:s, s:{s:s, s:s, s:s, s:I}, s:o}", "schema", schema,
                     "tool", "name", "gac", "version", GAC_VERSION, "time", when, "machine",
                     "system", uts.sysname, "release", uts.release, "arch", uts.machine, "cores",
                     (json_int_t)sysconf(_SC_NPROCESSORS_ONLN), "arguments", arguments);
}

static void skip_space(gac_json_walk *walk)
{
    while (walk->position < walk->n_bytes && walk->text[walk->position] &&
           strchr(" \t\r\n", walk->text[walk->position]))
        walk->position++;
}

static gac_status unexpected(const gac_json_walk *walk, const char *wanted, gac_error *err)
{
    char q[256];
    gac_quote(q, sizeof q, walk->source);
    unsigned long long offset = gac_json_walk_offset(walk);
    if (walk->position >= walk->n_bytes)
        return gac_error_set(err, GAC_BAD_INPUT, "%s: offset %llu: bad JSON: ends before %s", q,
                             offset, wanted);
    return gac_error_set(err, GAC_BAD_INPUT, "%s: offset %llu: bad JSON: expected %s", q, offset,
                         wanted);
}

/* Passes the byte c after white space. */
static gac_status expect(gac_json_walk *walk, char c, const char *wanted, gac_error *err)
{
    skip_space(walk);
    if (walk->position >= walk->n_bytes || walk->text[walk->position] != c)
        return unexpected(walk, wanted, err);
    walk->position++;
    return GAC_OK;
}

uint64_t gac_json_walk_offset(const gac_json_walk *walk)
{
    return walk->base_offset + walk->position;
}

gac_status gac_json_walk_start(gac_json_walk *walk, const char *text, size_t n_bytes,
                               const char *source, uint64_t base_offset, gac_error *err)
{
    *walk = (gac_json_walk){ .text = text,
                             .n_bytes = n_bytes,
                             .source = source,
                             .base_offset = base_offset,
                             .depth = 1,
                             .fresh = true };
    return expect(walk, '{', "'{'", err);
}

/* Parses the value at the current position with jansson, from at most
 * max_bytes of text, and moves behind it. */
static gac_status take_value(gac_json_walk *walk, size_t max_bytes, json_t **out, gac_error *err)
{
    char q[256];
    json_error_t e;
    skip_space(walk);
    size_t left = walk->n_bytes - walk->position;
    size_t n = left < max_bytes ? left : max_bytes;
    json_t *value =
        json_loadb(walk->text + walk->position, n,
                   JSON_DECODE_ANY | JSON_DISABLE_EOF_CHECK | JSON_REJECT_DUPLICATES, &e);
    /* A value that the limit cut off: unfinished, or a number that goes on. */
    bool cut = n < left && (value ? (size_t)e.position == n &&
                                        !strchr(" \t\r\n,]}", walk->text[walk->position + n])
                                  : json_error_code(&e) == json_error_premature_end_of_input ||
                                        (size_t)e.position >= n);
    if (cut) {
        json_decref(value);
        return gac_error_set(err, GAC_BAD_INPUT, "%s: offset %llu: value of more than %zu bytes",
                             gac_quote(q, sizeof q, walk->source),
                             (unsigned long long)gac_json_walk_offset(walk), max_bytes);
    }
    if (!value)
        return parse_error(&e, walk->source, gac_json_walk_offset(walk), err);
    walk->position += (size_t)e.position;
    *out = value;
    return GAC_OK;
}

/* Makes room for a string of n_bytes and its end. */
static bool reserve(gac_json_walk *walk, size_t n_bytes)
{
    if (n_bytes < walk->string_bytes)
        return true;
    size_t size = n_bytes * 2 + 64;
    char *bigger = realloc(walk->string, size);
    if (!bigger)
        return false;
    walk->string = bigger;
    walk->string_bytes = size;
    return true;
}

/* The string at the current position, which is a quote. One of plain ASCII is
 * its own text, which is nearly every one; jansson decodes the rest. */
static gac_status take_string(gac_json_walk *walk, size_t max_bytes, gac_error *err)
{
    const char *from = walk->text + walk->position + 1;
    size_t left = walk->n_bytes - walk->position - 1, n = 0;
    size_t limit = left < max_bytes ? left : max_bytes;
    while (n < limit && from[n] >= 0x20 && from[n] < 0x7f && from[n] != '"' && from[n] != '\\')
        n++;
    if (n < limit && from[n] == '"') {
        if (!reserve(walk, n))
            return gac_error_no_memory(err);
        memcpy(walk->string, from, n);
        walk->string[n] = 0;
        walk->position += n + 2;
        return GAC_OK;
    }
    json_t *value;
    gac_status status = take_value(walk, max_bytes, &value, err);
    if (status != GAC_OK)
        return status;
    n = json_string_length(value);
    if (reserve(walk, n))
        memcpy(walk->string, json_string_value(value), n + 1);
    else
        status = gac_error_no_memory(err);
    json_decref(value);
    return status;
}

/* Leaves the current object; behind the outermost only white space may come. */
static gac_status leave(gac_json_walk *walk, gac_error *err)
{
    walk->depth--;
    walk->fresh = false;
    if (walk->depth > 0)
        return GAC_OK;
    skip_space(walk);
    return walk->position == walk->n_bytes ? GAC_OK
                                           : unexpected(walk, "nothing after the object", err);
}

gac_status gac_json_walk_next(gac_json_walk *walk, const char **key, gac_error *err)
{
    /* A key is a tensor or shard name: far below this, or an attack. */
    enum { MAX_KEY_BYTES = 64 << 10 };
    gac_status status;
    *key = NULL;
    skip_space(walk);
    if (walk->position < walk->n_bytes && walk->text[walk->position] == '}') {
        walk->position++;
        return leave(walk, err);
    }
    if (!walk->fresh) {
        if ((status = expect(walk, ',', "',' or '}'", err)) != GAC_OK)
            return status;
        skip_space(walk);
    }
    walk->fresh = false;
    if (walk->position >= walk->n_bytes || walk->text[walk->position] != '"')
        return unexpected(walk, "a name in quotes", err);
    if ((status = take_string(walk, MAX_KEY_BYTES, err)) != GAC_OK)
        return status;
    *key = walk->string;
    status = expect(walk, ':', "':'", err);
    skip_space(walk);
    return status;
}

gac_status gac_json_walk_value(gac_json_walk *walk, size_t max_bytes, struct json_t **out,
                               gac_error *err)
{
    return take_value(walk, max_bytes, out, err);
}

gac_status gac_json_walk_string(gac_json_walk *walk, size_t max_bytes, const char **out,
                                gac_error *err)
{
    skip_space(walk);
    if (walk->position >= walk->n_bytes || walk->text[walk->position] != '"')
        return unexpected(walk, "a string", err);
    gac_status status = take_string(walk, max_bytes, err);
    *out = walk->string;
    return status;
}

gac_status gac_json_walk_enter(gac_json_walk *walk, gac_error *err)
{
    gac_status status = expect(walk, '{', "an object", err);
    if (status == GAC_OK) {
        walk->depth++;
        walk->fresh = true;
    }
    return status;
}

gac_status gac_json_walk_enter_array(gac_json_walk *walk, gac_error *err)
{
    gac_status status = expect(walk, '[', "an array", err);
    if (status == GAC_OK) {
        walk->depth++;
        walk->fresh = true;
    }
    return status;
}

gac_status gac_json_walk_element(gac_json_walk *walk, bool *more, gac_error *err)
{
    gac_status status = GAC_OK;
    *more = false;
    skip_space(walk);
    if (walk->position < walk->n_bytes && walk->text[walk->position] == ']') {
        walk->position++;
        return leave(walk, err);
    }
    if (!walk->fresh)
        status = expect(walk, ',', "',' or ']'", err);
    walk->fresh = false;
    *more = status == GAC_OK;
    skip_space(walk);
    return status;
}

void gac_json_walk_dispose(gac_json_walk *walk)
{
    free(walk->string);
    walk->string = NULL;
}
