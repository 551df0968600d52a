/* Compiles contracts into the library: reads contract files and writes a C file of
 * constant structures, so that loading one at run time costs nothing.
 *
 *   gac_bundle OUTPUT.c CONTRACT.json... */
#include "contract/contract_internal.h"
#include "contract/contract_schema.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* The library's own table is what this program makes. */
const gac_contract *const gac_bundled_contracts[] = { NULL };
const int gac_n_bundled_contracts = 0;

static int n_names; /* of structures and lists written so far: x1, x2, … */

static int write_struct(FILE *to, const gac_struct *s, const void *at, size_t n);

static void write_string(FILE *to, const char *text)
{
    fputc('"', to);
    for (; *text; text++)
        if (*text < ' ' || *text > '~' || strchr("\"\\?", *text))
            fprintf(to, "\\%03o", (unsigned char)*text);
        else
            fputc(*text, to);
    fputc('"', to);
}

static void write_number(FILE *to, double value)
{
    if (isnan(value))
        fputs("NAN", to);
    else
        fprintf(to, "%.17g", value);
}

/* Writes a list of plain values, as numbers or as texts; returns its name. */
static int write_plain(FILE *to, const gac_field *field, const void *list, size_t n)
{
    static const char *const types[] = { [GAC_FIELD_MAP] = "gac_contract_text",
                                         [GAC_FIELD_TEXTS] = "char *const",
                                         [GAC_FIELD_DTYPES] = "gac_dtype",
                                         [GAC_FIELD_SIZES] = "int64_t",
                                         [GAC_FIELD_TIMES] = "double" };
    const gac_contract_text *texts = list;
    fprintf(to, "static const %s x%d[] = {", types[field->kind], ++n_names);
    for (size_t i = 0; i < n; i++) {
        fputs(i % 16 ? "," : i ? ",\n" : "\n", to);
        if (field->kind == GAC_FIELD_MAP) {
            fputs("{", to);
            write_string(to, texts[i].key);
            fputs(",", to);
            write_string(to, texts[i].value);
            fputs("}", to);
        } else if (field->kind == GAC_FIELD_TEXTS) {
            write_string(to, ((const char *const *)list)[i]);
        } else if (field->kind == GAC_FIELD_DTYPES) {
            fprintf(to, "%d", (int)((const gac_dtype *)list)[i]);
        } else if (field->kind == GAC_FIELD_SIZES) {
            fprintf(to, "%lld", (long long)((const int64_t *)list)[i]);
        } else {
            write_number(to, ((const double *)list)[i]);
        }
    }
    fputs("};\n", to);
    return n_names;
}

/* Writes what a field points to, and into init how the field is initialised. */
static void write_field(FILE *to, FILE *init, const gac_field *field, const void *structure)
{
    const void *at = gac_field_in(field, structure);
    const void *pointer = NULL;
    bool is_plain = field->kind == GAC_FIELD_BOOL || field->kind == GAC_FIELD_INTEGER ||
                    field->kind == GAC_FIELD_NUMBER || field->kind == GAC_FIELD_DTYPE;
    size_t n;
    if (!is_plain)
        pointer = *(const void *const *)at;
    switch (field->kind) {
    case GAC_FIELD_TEXT:
    case GAC_FIELD_BASIS:
        if (pointer) {
            fprintf(init, ".%s=", field->member);
            write_string(init, pointer);
            fputc(',', init);
        }
        return;
    case GAC_FIELD_BOOL:
        fprintf(init, ".%s=%d,", field->member, *(const bool *)at);
        return;
    case GAC_FIELD_INTEGER:
        fprintf(init, ".%s=%lld,", field->member, (long long)*(const int64_t *)at);
        return;
    case GAC_FIELD_NUMBER:
        fprintf(init, ".%s=", field->member);
        write_number(init, *(const double *)at);
        fputc(',', init);
        return;
    case GAC_FIELD_DTYPE:
        fprintf(init, ".%s=%d,", field->member, (int)*(const gac_dtype *)at);
        return;
    case GAC_FIELD_OBJECT:
        if (pointer)
            fprintf(init, ".%s=x%d,", field->member, write_struct(to, field->of, pointer, 1));
        return;
    case GAC_FIELD_BY_DTYPE:
        for (int i = 0; i < GAC_DTYPE_COUNT; i++)
            if (((const void *const *)at)[i])
                fprintf(init, ".%s[%d]=x%d,", field->member, i,
                        write_struct(to, field->of, ((const void *const *)at)[i], 1));
        return;
    default:
        n = gac_field_count(field, structure);
        if (n > 0)
            fprintf(init, ".%s=%zu,.%s=x%d,", field->n_member, n, field->member,
                    field->kind == GAC_FIELD_LIST ? write_struct(to, field->of, pointer, n)
                                                  : write_plain(to, field, pointer, n));
    }
}

/* Writes n structures as an array, after what they point to; returns its name. */
static int write_struct(FILE *to, const gac_struct *s, const void *at, size_t n)
{
    char *text = NULL;
    size_t n_bytes;
    FILE *init = open_memstream(&text, &n_bytes);
    if (!init)
        exit(1);
    for (size_t i = 0; i < n; i++) {
        fputs(i > 0 ? ",\n{" : "{", init);
        for (int f = 0; f < s->n_fields; f++)
            write_field(to, init, &s->fields[f], (const char *)at + i * s->n_bytes);
        fputs("}", init);
    }
    fclose(init);
    fprintf(to, "static const %s x%d[] = {%s};\n", s->type, ++n_names, text);
    free(text);
    return n_names;
}

int main(int argc, char **argv)
{
    gac_error err = GAC_ERROR_INIT;
    FILE *to = argc > 2 ? fopen(argv[1], "w") : NULL;
    int *names = calloc((size_t)argc, sizeof *names);
    if (!to || !names) {
        fprintf(stderr, "usage: gac_bundle OUTPUT.c CONTRACT.json...\n");
        return 1;
    }
    fputs("/* Written by tools/contract/bundle.c. */\n#include \"contract/contract_internal.h\"\n"
          "\n#include <math.h>\n\n",
          to);
    for (int i = 2; i < argc; i++) {
        gac_contract *contract = NULL;
        if (gac_contract_load(argv[i], &contract, &err) != GAC_OK) {
            fprintf(stderr, "gac_bundle: %s\n", err.text);
            return 1;
        }
        names[i] = write_struct(to, &gac_contract_struct, contract, 1);
        gac_contract_free(contract);
    }
    fputs("\nconst gac_contract *const gac_bundled_contracts[] = {", to);
    for (int i = 2; i < argc; i++)
        fprintf(to, "%sx%d", i > 2 ? ", " : "", names[i]);
    fprintf(to, "};\nconst int gac_n_bundled_contracts = %d;\n", argc - 2);
    free(names);
    return fclose(to) == 0 ? 0 : 1;
}
