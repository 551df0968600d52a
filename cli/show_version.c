#include "version.h"

#include <gac/contract.h>
#include <gac/device.h>

#include <dlfcn.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistring/version.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <xxhash.h>

#include "commit.h"

static void print_plugin(FILE *stream)
{
    static const char prefix[] = "no GPU plug-in: ";
    char q[512];
    char *path = NULL;
    gac_error why = GAC_ERROR_INIT;
    if (gac_device_find_plugin(&path, &why) == GAC_OK)
        fprintf(stream, "GPU plug-in   %s\n", gac_quote(q, sizeof q, path));
    else
        fprintf(stream, "GPU plug-in   none: %s\n",
                why.text + (strncmp(why.text, prefix, strlen(prefix)) == 0 ? strlen(prefix) : 0));
    free(path);
}

/* Prints the first two words of OpenBLAS's own description: OpenBLAS 0.3.21. */
static void print_openblas(FILE *stream)
{
    char *(*config)(void) = NULL;
    setenv("OPENBLAS_NUM_THREADS", "1", 1); /* so that asking for its version starts no threads */
    void *library = dlopen("libopenblas.so.0", RTLD_LAZY | RTLD_LOCAL);
    void *symbol = library ? dlsym(library, "openblas_get_config") : NULL;
    memcpy(&config, &symbol, sizeof symbol);
    const char *text = config ? config() : "";
    const char *space = strchr(text, ' ');
    if (!library)
        fprintf(stream, "OpenBLAS      none: libopenblas.so.0 cannot be loaded\n");
    else
        fprintf(stream, "OpenBLAS      %.*s\n", space ? (int)strcspn(space + 1, " ") : 5,
                space ? space + 1 : "found");
}

void version_print(FILE *stream)
{
    char pcre2[64] = "";
    unsigned xxhash = XXH_versionNumber();
    fprintf(stream, "gac " GAC_VERSION " (commit " GAC_COMMIT ")\n");
    print_plugin(stream);
    print_openblas(stream);
    pcre2_config(PCRE2_CONFIG_VERSION, pcre2);
    fprintf(stream, "jansson       %s\n", jansson_version_str());
    fprintf(stream, "PCRE2         %.*s\n", (int)strcspn(pcre2, " "), pcre2);
    fprintf(stream, "xxHash        %u.%u.%u\n", xxhash / 10000, xxhash / 100 % 100, xxhash % 100);
    fprintf(stream, "libunistring  %d.%d\n", _libunistring_version >> 16 & 255,
            _libunistring_version >> 8 & 255);
    fprintf(stream, "contracts     ");
    for (int i = 0; i < gac_contract_n_bundled(); i++)
        fprintf(stream, "%s%s", i ? ", " : "", gac_contract_bundled_name(i));
    fputc('\n', stream);
}
