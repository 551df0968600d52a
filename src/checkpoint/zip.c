/* Reads zip archives from their end: the end record, its 64-bit version, the
 * list of members (the central directory), and the local header of each. */
#include "checkpoint/zip.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <gac/checkpoint.h>

enum {
    END_BYTES = 22,
    LOCATOR_BYTES = 20,
    END64_BYTES = 56,
    TAIL_BYTES = END_BYTES + LOCATOR_BYTES + END64_BYTES,
    ENTRY_BYTES = 46,
    LOCAL_BYTES = 30,
    WINDOW_BYTES = 4096,
    FLAG_ENCRYPTED = 1 << 0,
    FLAG_SIZES_BEHIND = 1 << 3 /* the local header has no sizes */
};

typedef struct reader {
    zip *out;
    gac_arena *arena;
    gac_file *file;
    uint8_t tail[WINDOW_BYTES]; /* the end of the file */
    size_t n_tail;
    uint64_t list, list_bytes, n_entries; /* the central directory */
    gac_error *err;
} reader;

static gac_status bad(const reader *r, uint64_t offset, const char *format, ...) GAC_PRINTF(3, 4);

static gac_status bad(const reader *r, uint64_t offset, const char *format, ...)
{
    char q[256], what[300];
    va_list args;
    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    return gac_error_set(r->err, GAC_BAD_INPUT, "%s: offset %llu: %s",
                         gac_quote(q, sizeof q, gac_file_path(r->file)), (unsigned long long)offset,
                         what);
}

static uint64_t little(const uint8_t *bytes, size_t n)
{
    uint64_t value = 0;
    for (size_t i = n; i-- > 0;)
        value = value << 8 | bytes[i];
    return value;
}

/* Reads bytes of the file, from the tail if they are there. Small archives are
 * read often: a large model has hundreds. */
static gac_status read_at(const reader *r, uint64_t offset, void *buffer, size_t n_bytes)
{
    uint64_t start = gac_file_size(r->file) - r->n_tail;
    if (offset < start || n_bytes > r->n_tail - (offset - start))
        return gac_file_read(r->file, offset, buffer, n_bytes, r->err);
    memcpy(buffer, r->tail + (offset - start), n_bytes);
    return GAC_OK;
}

/* The end. */

/* Reads the 64-bit end record, which lies before its locator. */
static gac_status read_end64(reader *r, const uint8_t *end64, uint64_t at, uint64_t stated)
{
    if (stated != at || little(end64, 4) != 0x06064b50 || little(end64 + 4, 8) != END64_BYTES - 12)
        return bad(r, at, "no 64-bit end record of a zip file where its locator says");
    if (little(end64 + 16, 8) != 0 || little(end64 + 24, 8) != little(end64 + 32, 8))
        return bad(r, at, "a zip file in several parts");
    r->n_entries = little(end64 + 32, 8);
    r->list_bytes = little(end64 + 40, 8);
    r->list = little(end64 + 48, 8);
    return GAC_OK;
}

/* Returns whether a field of the end record agrees with the 64-bit one. */
static bool agrees(uint64_t field, uint64_t full, uint64_t unset)
{
    return field == full || field == unset;
}

static gac_status read_end(reader *r)
{
    uint64_t size = gac_file_size(r->file);
    size_t n = size < WINDOW_BYTES ? (size_t)size : WINDOW_BYTES;
    /* Where the file is shorter, zeros precede it. */
    const uint8_t *end = r->tail + WINDOW_BYTES - END_BYTES, *locator = end - LOCATOR_BYTES;
    gac_status status = gac_file_read(r->file, size - n, r->tail + WINDOW_BYTES - n, n, r->err);
    if (status != GAC_OK)
        return status;
    uint64_t at = size - END_BYTES;
    if (n < END_BYTES || little(end, 4) != 0x06054b50 || little(end + 20, 2) != 0)
        return bad(r, size,
                   "the zip file does not end with its end record: it was cut or has "
                   "something behind it");
    uint64_t n_entries = little(end + 10, 2), list_bytes = little(end + 12, 4);
    uint64_t list = little(end + 16, 4);
    if (little(end + 4, 4) != 0 || little(end + 8, 2) != n_entries)
        return bad(r, at, "a zip file in several parts");
    r->n_entries = n_entries;
    r->list_bytes = list_bytes;
    r->list = list;
    if (n >= END_BYTES + LOCATOR_BYTES && little(locator, 4) == 0x07064b50) {
        if (n < TAIL_BYTES)
            return bad(r, 0, "no 64-bit end record of a zip file where its locator says");
        at = size - TAIL_BYTES;
        status = read_end64(r, locator - END64_BYTES, at, little(locator + 8, 8));
        if (status == GAC_OK &&
            !(agrees(n_entries, r->n_entries, 0xffff) &&
              agrees(list_bytes, r->list_bytes, 0xffffffff) && agrees(list, r->list, 0xffffffff)))
            return bad(r, at, "the two end records of the zip file differ");
    }
    if (status == GAC_OK && (r->list > at || r->list_bytes != at - r->list))
        return bad(r, at, "the list of members does not end where the end record starts");
    return status;
}

/* Makes the end of the file available to read_at. */
static void keep_tail(reader *r)
{
    uint64_t size = gac_file_size(r->file);
    r->n_tail = size < WINDOW_BYTES ? (size_t)size : WINDOW_BYTES;
    memmove(r->tail, r->tail + WINDOW_BYTES - r->n_tail, r->n_tail);
}

/* The list of members. */

/* Takes sizes and offset from the 64-bit extra field, where the entry's own
 * fields are full. */
static gac_status read_extra(const reader *r, const uint8_t *extra, size_t n_extra, uint64_t at,
                             uint64_t *const fields[3])
{
    while (n_extra >= 4) {
        size_t id = (size_t)little(extra, 2), n = (size_t)little(extra + 2, 2);
        if (n > n_extra - 4)
            return bad(r, at, "an extra field of a zip entry is longer than all of them");
        const uint8_t *value = extra + 4;
        for (int i = 0; i < 3 && id == 1; i++) {
            if (*fields[i] != 0xffffffff)
                continue;
            if (n < 8)
                return bad(r, at, "a zip entry has no 64-bit size");
            *fields[i] = little(value, 8);
            value += 8;
            n -= 8;
        }
        if (id == 1)
            return GAC_OK;
        extra += 4 + n;
        n_extra -= 4 + n;
    }
    return GAC_OK;
}

static gac_status take_name(reader *r, const uint8_t *text, size_t n, uint64_t at, zip_member *m)
{
    if (n == 0 || n > GAC_MAX_NAME_BYTES || !gac_is_utf8((const char *)text, n))
        return bad(r, at, "a member's name of %zu bytes is empty, too long or no UTF-8", n);
    char *name = gac_arena_alloc(r->arena, n + 1);
    if (!name)
        return gac_error_no_memory(r->err);
    memcpy(name, text, n);
    m->name = name;
    return GAC_OK;
}

/* Takes one entry of the list. *n_used is its length. */
static gac_status take_entry(reader *r, const uint8_t *entry, size_t n_left, uint64_t at,
                             size_t *n_used)
{
    char q[160];
    zip *z = r->out;
    if (n_left < ENTRY_BYTES || little(entry, 4) != 0x02014b50)
        return bad(r, at, "no entry of a member where the list has one");
    size_t n_name = (size_t)little(entry + 28, 2), n_extra = (size_t)little(entry + 30, 2);
    *n_used = ENTRY_BYTES + n_name + n_extra + (size_t)little(entry + 32, 2);
    if (*n_used > n_left)
        return bad(r, at, "an entry is longer than the list of members");
    uint64_t packed = little(entry + 20, 4);
    if (!gac_grow((void **)&z->members, z->n_members, &z->capacity, sizeof *z->members))
        return gac_error_no_memory(r->err);
    zip_member *m = &z->members[z->n_members];
    *m = (zip_member){ .size_bytes = little(entry + 24, 4), .header = little(entry + 42, 4) };
    gac_status status = take_name(r, entry + ENTRY_BYTES, n_name, at, m);
    if (status != GAC_OK)
        return status;
    z->n_members++;
    status = read_extra(r, entry + ENTRY_BYTES + n_name, n_extra, at,
                        (uint64_t *const[]){ &m->size_bytes, &packed, &m->header });
    if (status == GAC_OK && little(entry + 8, 2) & FLAG_ENCRYPTED)
        return bad(r, at, "member \"%s\" is encrypted", gac_quote(q, sizeof q, m->name));
    if (status == GAC_OK && (little(entry + 10, 2) != 0 || packed != m->size_bytes))
        return bad(r, at, "member \"%s\" is packed; torch.save stores members as they are",
                   gac_quote(q, sizeof q, m->name));
    return status;
}

static gac_status take_list(reader *r)
{
    if (r->list_bytes > GAC_MAX_ZIP_LIST_BYTES || r->n_entries > GAC_MAX_ZIP_MEMBERS ||
        r->n_entries > r->list_bytes / ENTRY_BYTES)
        return bad(r, r->list, "a list of %llu members in %llu bytes",
                   (unsigned long long)r->n_entries, (unsigned long long)r->list_bytes);
    uint8_t *list = malloc((size_t)r->list_bytes + 1);
    if (!list)
        return gac_error_no_memory(r->err);
    gac_status status = read_at(r, r->list, list, (size_t)r->list_bytes);
    size_t at = 0, n_used = 0;
    for (uint64_t i = 0; i < r->n_entries && status == GAC_OK; i++, at += n_used)
        status = take_entry(r, list + at, (size_t)r->list_bytes - at, r->list + at, &n_used);
    if (status == GAC_OK && at != r->list_bytes)
        status = bad(r, r->list + at, "more bytes in the list of members than its entries have");
    free(list);
    return status;
}

/* The members. */

/* Finds the bytes of a member behind its local header, which must agree with
 * the list. */
static gac_status locate(const reader *r, zip_member *m)
{
    char q[160];
    uint8_t local[LOCAL_BYTES + GAC_MAX_NAME_BYTES];
    size_t n_name = strlen(m->name);
    gac_quote(q, sizeof q, m->name);
    if (m->header > r->list || r->list - m->header < LOCAL_BYTES + n_name)
        return bad(r, m->header, "member \"%s\" starts outside of the file", q);
    gac_status status = read_at(r, m->header, local, LOCAL_BYTES + n_name);
    if (status != GAC_OK)
        return status;
    bool has_sizes = !(little(local + 6, 2) & FLAG_SIZES_BEHIND);
    if (little(local, 4) != 0x04034b50 || little(local + 26, 2) != n_name ||
        memcmp(local + LOCAL_BYTES, m->name, n_name) != 0 || little(local + 8, 2) != 0 ||
        (has_sizes && !agrees(little(local + 22, 4), m->size_bytes, 0xffffffff)))
        return bad(r, m->header, "the header of member \"%s\" differs from the list of members", q);
    m->offset = m->header + LOCAL_BYTES + n_name + little(local + 28, 2);
    if (m->offset > r->list || m->size_bytes > r->list - m->offset)
        return bad(r, m->header, "member \"%s\" of %llu bytes ends behind the list of members", q,
                   (unsigned long long)m->size_bytes);
    return GAC_OK;
}

static int by_header(const void *a, const void *b)
{
    const zip_member *x = a, *y = b;
    return x->header < y->header ? -1 : x->header > y->header;
}

/* Sorts the members, checks that each ends before the next one starts, and
 * numbers them by name. */
static gac_status check_order(reader *r)
{
    char q[160];
    zip *z = r->out;
    int32_t existing;
    gac_status status = GAC_OK;
    if (z->n_members)
        qsort(z->members, (size_t)z->n_members, sizeof *z->members, by_header);
    for (int32_t i = 0; i < z->n_members && status == GAC_OK; i++) {
        zip_member *m = &z->members[i];
        status = locate(r, m);
        if (status == GAC_OK && i > 0 && m[-1].offset + m[-1].size_bytes > m->header)
            return bad(r, m->header, "member \"%s\" overlaps the one before it",
                       gac_quote(q, sizeof q, m->name));
        if (status == GAC_OK)
            status = gac_namemap_add(&z->by_name, m->name, i, &existing, r->err);
        if (status == GAC_OK && existing >= 0)
            return bad(r, m->header, "member \"%s\" appears twice",
                       gac_quote(q, sizeof q, m->name));
    }
    return status;
}

gac_status gac_zip_read(zip *z, gac_arena *arena, gac_file *file, gac_error *err)
{
    reader r = { .out = z, .arena = arena, .file = file, .err = err };
    *z = (zip){ .members = NULL };
    gac_status status = gac_namemap_init(&z->by_name, err);
    if (status == GAC_OK)
        status = read_end(&r);
    if (status == GAC_OK)
        keep_tail(&r);
    if (status == GAC_OK)
        status = take_list(&r);
    return status == GAC_OK ? check_order(&r) : status;
}

void gac_zip_dispose(zip *z)
{
    gac_namemap_dispose(&z->by_name);
    free(z->members);
    *z = (zip){ .members = NULL };
}

const zip_member *gac_zip_find(const zip *z, const char *name)
{
    int32_t index = gac_namemap_find(&z->by_name, name);
    return index >= 0 ? &z->members[index] : NULL;
}
