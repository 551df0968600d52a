/* The input is a whole file of torch.save; or, after a first byte of 0, a pickle
 * that is put into an archive with two storages. */
#include <stdlib.h>
#include <string.h>

#include "fuzz_checks.h"
#include "fuzz_folder.h"

enum { N_MEMBERS = 3, MAX_BYTES = 40000 };

static void put_number(uint8_t **to, uint64_t value, int n_bytes)
{
    for (int i = 0; i < n_bytes; i++, value >>= 8)
        *(*to)++ = (uint8_t)value;
}

/* Writes the header of a member: the local one, or the one in the list. */
static void put_header(uint8_t **to, bool in_list, const char *name, size_t n_bytes, size_t at)
{
    size_t n_name = strlen(name);
    put_number(to, in_list ? 0x02014b50 : 0x04034b50, 4);
    put_number(to, 20, in_list ? 4 : 2); /* versions */
    put_number(to, 0, 12);               /* flags, method, time, checksum: nobody looks */
    put_number(to, n_bytes, 4);
    put_number(to, n_bytes, 4);
    put_number(to, n_name, 2);
    put_number(to, 0, in_list ? 14 : 2); /* extra fields and attributes */
    if (in_list)
        put_number(to, at, 4);
    memcpy(*to, name, n_name);
    *to += n_name;
}

static size_t wrap(const uint8_t *pickle, size_t n_pickle, uint8_t *file)
{
    static const uint8_t zeros[64];
    static const char *const names[N_MEMBERS] = { "a/data.pkl", "a/data/0", "a/data/1" };
    const uint8_t *data[N_MEMBERS] = { pickle, zeros, zeros };
    size_t sizes[N_MEMBERS] = { n_pickle, 64, 24 }, at[N_MEMBERS];
    uint8_t *to = file;
    for (int i = 0; i < N_MEMBERS; i++) {
        at[i] = (size_t)(to - file);
        put_header(&to, false, names[i], sizes[i], 0);
        if (sizes[i])
            memcpy(to, data[i], sizes[i]);
        to += sizes[i];
    }
    size_t list = (size_t)(to - file);
    for (int i = 0; i < N_MEMBERS; i++)
        put_header(&to, true, names[i], sizes[i], at[i]);
    size_t end = (size_t)(to - file);
    put_number(&to, 0x06054b50, 4);
    put_number(&to, 0, 4);
    put_number(&to, N_MEMBERS, 2);
    put_number(&to, N_MEMBERS, 2);
    put_number(&to, end - list, 4);
    put_number(&to, list, 4);
    put_number(&to, 0, 2);
    return (size_t)(to - file);
}

/* Reading and mapping give the same bytes. */
static void check_data(gac_checkpoint *c)
{
    gac_error err = GAC_ERROR_INIT;
    for (int32_t i = 0; i < gac_checkpoint_n_tensors(c); i++) {
        size_t n = (size_t)gac_checkpoint_tensor(c, i)->size_bytes;
        const void *mapped = NULL;
        void *buffer = malloc(n + 1);
        FUZZ_CHECK(buffer && gac_checkpoint_read(c, i, 0, buffer, n, &err) == GAC_OK);
        FUZZ_CHECK(gac_checkpoint_map(c, i, &mapped, &err) == GAC_OK);
        FUZZ_CHECK(n == 0 || memcmp(mapped, buffer, n) == 0);
        free(buffer);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n_bytes)
{
    static char *path;
    static uint8_t file[MAX_BYTES];
    gac_error err = GAC_ERROR_INIT;
    gac_checkpoint *checkpoint = NULL;

    if (!path)
        path = fuzz_path("in.pt");
    if (n_bytes > 0 && data[0] == 0 && n_bytes < MAX_BYTES - 1000)
        fuzz_put("in.pt", file, wrap(data + 1, n_bytes - 1, file));
    else
        fuzz_put("in.pt", data, n_bytes);
    gac_status status = gac_checkpoint_open(path, NULL, &checkpoint, &err);
    if (status == GAC_OK) {
        fuzz_check_checkpoint(checkpoint);
        check_data(checkpoint);
    } else {
        fuzz_check_refusal(status, &err);
    }
    gac_checkpoint_close(checkpoint);
    return 0;
}
