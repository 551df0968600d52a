#include <gac/base.h>

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#include "base/arguments.h"
#include "base/json_parse.h"
#include "base/json_walk.h"
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

static _Thread_local bool memory_lost;

void gac_memory_lost(void)
{
    memory_lost = true;
}

gac_status gac_memory_check(gac_error *err)
{
    bool lost = memory_lost;
    memory_lost = false;
    return lost ? gac_error_no_memory(err) : GAC_OK;
}

static json_malloc_t real_malloc;

static void *watched_malloc(size_t n_bytes)
{
    void *block = real_malloc(n_bytes);
    if (!block)
        gac_memory_lost();
    return block;
}

/* Most callers ignore what jansson's setters return. This allocator notes
 * failed allocations instead, and gac_memory_check reports them. */
__attribute__((constructor)) static void watch_jansson(void)
{
    json_free_t real_free;
    json_get_alloc_funcs(&real_malloc, &real_free);
    json_set_alloc_funcs(watched_malloc, real_free);
}

static gac_status parse(const char *text, size_t n_bytes, const char *source, bool exact,
                        json_t **out, gac_error *err)
{
    gac_json_walk walk = { .text = text, .n_bytes = n_bytes, .source = source, .exact = exact };
    json_t *value = NULL;
    skip_space(&walk);
    char first = walk.position < n_bytes ? text[walk.position] : 0;
    gac_status status = first == '{' || first == '['
                            ? gac_json_walk_value(&walk, n_bytes, &value, err)
                            : unexpected(&walk, "an object or an array", err);
    if (status == GAC_OK) {
        skip_space(&walk);
        if (walk.position < n_bytes)
            status = unexpected(&walk, "nothing after the value", err);
    }
    gac_json_walk_dispose(&walk);
    if (status != GAC_OK) {
        json_decref(value);
        return status;
    }
    *out = value;
    return GAC_OK;
}

gac_status gac_json_parse(const char *text, size_t n_bytes, const char *source, struct json_t **out,
                          gac_error *err)
{
    GAC_REFUSE_NULL(err, text, source, out);
    return parse(text, n_bytes, source, false, out, err);
}

gac_status gac_json_parse_exact(const char *text, size_t n_bytes, const char *source,
                                struct json_t **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, text, source, out);
    return parse(text, n_bytes, source, true, out, err);
}

const char *gac_json_digits(const struct json_t *value)
{
    const char *text = json_string_value(value);
    return text && !*text && json_string_length(value) > 1 ? text + 1 : NULL;
}

struct json_t *gac_json_rounded(const struct json_t *exact)
{
    size_t i;
    const char *key;
    json_t *child, *same = (json_t *)(uintptr_t)exact;
    const char *digits = gac_json_digits(exact);
    if (digits) {
        double value = gac_json_digits_value(digits);
        return isfinite(value) ? json_real(value) : json_null();
    }
    if (!json_is_object(exact) && !json_is_array(exact))
        return json_incref(same);
    json_t *copy = json_is_object(exact) ? json_object() : json_array();
    bool ok = copy != NULL;
    json_object_foreach(same, key, child)
        ok = ok && json_object_set_new_nocheck(copy, key, gac_json_rounded(child)) == 0;
    json_array_foreach(same, i, child)
        ok = ok && json_array_append_new(copy, gac_json_rounded(child)) == 0;
    if (ok)
        return copy;
    json_decref(copy);
    return NULL;
}

gac_status gac_json_load(gac_file *file, size_t max_bytes, struct json_t **out, gac_error *err)
{
    GAC_REFUSE_NULL(err, file, out);
    char *text;
    size_t n_bytes;
    gac_status status = gac_file_slurp(file, max_bytes, &text, &n_bytes, err);
    if (status != GAC_OK)
        return status;
    status = gac_json_parse(text, n_bytes, gac_file_path(file), out, err);
    free(text);
    return status;
}

typedef struct growing_text {
    char *bytes;
    size_t n_bytes, capacity;
} growing_text;

static int append(const char *bytes, size_t n_bytes, void *user)
{
    growing_text *t = user;
    if (t->n_bytes + n_bytes + 1 > t->capacity) {
        size_t capacity = (t->n_bytes + n_bytes) * 2 + 256;
        char *bigger = realloc(t->bytes, capacity);
        if (!bigger) {
            gac_memory_lost();
            return -1;
        }
        t->bytes = bigger;
        t->capacity = capacity;
    }
    memcpy(t->bytes + t->n_bytes, bytes, n_bytes);
    t->n_bytes += n_bytes;
    t->bytes[t->n_bytes] = 0;
    return 0;
}

/* Turns strings of a NUL and digits into the numbers that they stand for. */
static void put_digits(growing_text *t)
{
    static const char mark[] = "\"\\u0000";
    char *to = t->bytes;
    const char *from = to, *at;
    while ((at = strstr(from, mark))) {
        const char *digits = at + sizeof mark - 1;
        size_t n_before = (size_t)(at - from), n_digits = strcspn(digits, "\"");
        memmove(to, from, n_before);
        memmove(to + n_before, digits, n_digits);
        to += n_before + n_digits;
        from = digits + n_digits + 1;
    }
    size_t n = t->n_bytes - (size_t)(from - t->bytes);
    memmove(to, from, n + 1);
    t->n_bytes = (size_t)(to - t->bytes) + n;
}

gac_status gac_json_text(const struct json_t *value, size_t flags, char **text, size_t *n_bytes,
                         gac_error *err)
{
    GAC_REFUSE_NULL(err, text);
    growing_text t = { NULL, 0, 0 };
    gac_status status = gac_memory_check(err);
    if (status == GAC_OK && (!value || json_dump_callback(value, append, &t, flags) != 0 ||
                             gac_memory_check(NULL) != GAC_OK))
        status = gac_error_no_memory(err);
    if (status != GAC_OK) {
        free(t.bytes);
        return status;
    }
    put_digits(&t);
    *text = t.bytes;
    if (n_bytes)
        *n_bytes = t.n_bytes;
    return GAC_OK;
}

gac_status gac_json_print(FILE *stream, const struct json_t *value, gac_error *err)
{
    GAC_REFUSE_NULL(err, stream);
    char *text;
    gac_status status =
        gac_json_text(value, JSON_INDENT(1) | JSON_REAL_PRECISION(9), &text, NULL, err);
    if (status != GAC_OK)
        return status;
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

/* Skips white space and the byte c. */
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

/* Gives the parser a view of the walk's text. */
static gac_json_source borrow(const gac_json_walk *walk)
{
    return (gac_json_source){ .text = walk->text,
                              .n_bytes = walk->n_bytes,
                              .position = walk->position,
                              .source = walk->source,
                              .base_offset = walk->base_offset,
                              .exact = walk->exact,
                              .buffer = walk->string,
                              .buffer_bytes = walk->string_bytes };
}

/* Reads the string at the current position, which is a quote. */
static gac_status take_string(gac_json_walk *walk, size_t max_bytes, gac_error *err)
{
    size_t n;
    gac_json_source t = borrow(walk);
    gac_status status = gac_json_take_string(&t, max_bytes, &n, err);
    walk->position = t.position;
    walk->string = t.buffer;
    walk->string_bytes = t.buffer_bytes;
    return status;
}

/* Leaves the current object. Only white space may follow the outermost one. */
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
    /* Keys are names of tensors or shards. Longer ones are an attack. */
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
    skip_space(walk);
    gac_json_source t = borrow(walk);
    t.buffer = NULL; /* the walk's buffer holds the key */
    t.buffer_bytes = 0;
    gac_status status = gac_json_take_value(&t, max_bytes, out, err);
    walk->position = t.position;
    free(t.buffer);
    return status;
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
