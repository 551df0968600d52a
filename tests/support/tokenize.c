/* tokenize: what the library's tokenizer makes of a file, for tests.
 *
 *     tokenize [--special] [--round] [--time N] DIR FILE
 *
 * FILE holds texts, each a length of four bytes, little-endian, and that many
 * bytes. Prints a line of ids for every text. With --round, the ids are turned
 * back into bytes instead, all at once and one by one, which must agree, and
 * these are written in FILE's format. With --time, everything is encoded N
 * times and the seconds of each time are printed. The exit status is the
 * library's gac_status. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <gac/engine.h>

typedef struct arguments {
    bool special, round;
    int n_times;
    const char *directory, *file;
} arguments;

static double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static size_t get_length(const unsigned char *b)
{
    return (size_t)b[0] | (size_t)b[1] << 8 | (size_t)b[2] << 16 | (size_t)b[3] << 24;
}

static void put_length(size_t n)
{
    for (int i = 0; i < 4; i++)
        putchar((int)(n >> (8 * i) & 0xff));
}

/* decode against decode_one, and the result to stdout. */
static gac_status print_round(gac_tokenizer *t, const int32_t *ids, size_t n_ids, bool skip,
                              gac_error *err)
{
    char *all;
    const char *bytes;
    size_t n_all, n, at = 0;
    bool first = true;
    gac_status status = gac_tokenizer_decode(t, ids, n_ids, skip, &all, &n_all, err);
    if (status != GAC_OK)
        return status;
    for (size_t i = 0; i < n_ids && status == GAC_OK; i++) {
        if (skip && gac_tokenizer_is_special(t, ids[i]))
            continue;
        status = gac_tokenizer_decode_one(t, ids[i], first, &bytes, &n, err);
        first = false;
        if (status == GAC_OK && (n > n_all - at || memcmp(all + at, bytes, n) != 0))
            status = gac_error_set(err, GAC_CHECK, "id %zu decodes differently alone", i);
        at += n;
    }
    if (status == GAC_OK && at != n_all)
        status = gac_error_set(err, GAC_CHECK, "the ids decode to less one by one");
    put_length(n_all);
    fwrite(all, 1, n_all, stdout);
    free(all);
    return status;
}

static gac_status do_text(gac_tokenizer *t, const arguments *a, const char *text, size_t n,
                          bool quiet, gac_error *err)
{
    int32_t *ids;
    size_t n_ids;
    /* A copy of its own, so that the sanitizer sees reads beyond its end. */
    char *copy = malloc(n ? n : 1);
    if (!copy)
        return gac_error_no_memory(err);
    if (n)
        memcpy(copy, text, n);
    gac_status status = gac_tokenizer_encode(t, copy, n, a->special, &ids, &n_ids, err);
    free(copy);
    if (status != GAC_OK)
        return status;
    if (a->round && !quiet)
        status = print_round(t, ids, n_ids, !a->special, err);
    for (size_t i = 0; i < n_ids && !a->round && !quiet; i++)
        printf(i ? " %d" : "%d", (int)ids[i]);
    if (!a->round && !quiet)
        putchar('\n');
    free(ids);
    return status;
}

static gac_status do_file(gac_tokenizer *t, const arguments *a, const char *data, size_t size,
                          bool quiet, gac_error *err)
{
    gac_status status = GAC_OK;
    for (size_t at = 0; at < size && status == GAC_OK;) {
        size_t n = size - at < 4 ? SIZE_MAX : get_length((const unsigned char *)data + at);
        at += 4;
        if (n > size - at)
            return gac_error_set(err, GAC_BAD_INPUT, "a text goes beyond the file");
        status = do_text(t, a, data + at, n, quiet, err);
        at += n;
    }
    return status;
}

static gac_status run(const arguments *a, gac_error *err)
{
    gac_tokenizer *t = NULL;
    gac_file *file = NULL;
    char *data = NULL;
    size_t size = 0;
    gac_status status = gac_tokenizer_open(a->directory, &t, err);
    if (status == GAC_OK)
        status = gac_file_open(a->file, &file, err);
    if (status == GAC_OK)
        status = gac_file_slurp(file, (size_t)1 << 30, &data, &size, err);
    for (int i = 0; status == GAC_OK && i < a->n_times; i++) {
        double start = now_s();
        status = do_file(t, a, data, size, true, err);
        printf("%.9f\n", now_s() - start);
    }
    if (status == GAC_OK && a->n_times == 0)
        status = do_file(t, a, data, size, false, err);
    free(data);
    gac_file_close(file);
    gac_tokenizer_close(t);
    return status;
}

int main(int argc, char **argv)
{
    arguments a = { 0 };
    gac_error err = GAC_ERROR_INIT;
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        if (strcmp(argv[i], "--special") == 0)
            a.special = true;
        else if (strcmp(argv[i], "--round") == 0)
            a.round = true;
        else if (strcmp(argv[i], "--time") == 0 && i + 1 < argc)
            a.n_times = atoi(argv[++i]);
        else
            break;
    }
    if (argc - i != 2) {
        fprintf(stderr, "usage: tokenize [--special] [--round] [--time N] DIR FILE\n");
        return GAC_USAGE;
    }
    a.directory = argv[i];
    a.file = argv[i + 1];
    gac_status status = run(&a, &err);
    if (status != GAC_OK)
        fprintf(stderr, "tokenize: %s\n", err.text);
    return (int)status;
}
