#include "cli.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>

typedef struct convert_command {
    const char *out;
    gac_convert_options options;
} convert_command;

static const convert_command initial = { .options = GAC_CONVERT_OPTIONS_INIT };

static const opt_choice dtypes[] = { { "F16", GAC_DTYPE_F16, false },
                                     { "BF16", GAC_DTYPE_BF16, false },
                                     { "F32", GAC_DTYPE_F32, false },
                                     { 0 } };

#define AT(member) .at = offsetof(convert_command, member)
static const opt options[] = {
    { "output", 'o', "DIR", "the new directory", OPT_TEXT, AT(out) },
    { "dtype", 0, "D",
      "dtype to write: F16, BF16 or F32 (default: what most weights are stored in, F16 where they "
      "are quantised)",
      OPT_CHOICE, AT(options.dtype), .choices = dtypes },
    { "tokenizer", 0, "FILE", "llama2.c's tokenizer", OPT_TEXT, AT(options.tokenizer) },
    { "max-shard-size", 0, "N", "bytes per file, as 500MB or 5GB (default 5GB)", OPT_BYTES,
      AT(options.max_shard_bytes) },
    { "force", 0, NULL, "replace an existing DIR", OPT_FLAG, AT(options.replace) },
    { "no-sync", 0, NULL, "do not wait until DIR is on disk: faster, and lost in a power cut",
      OPT_FLAG, AT(options.no_sync) },
    { 0 }
};

static gac_status report(cli *c, const convert_command *o, const gac_convert_result *r)
{
    char bytes[32], count[32];
    if (c->json) {
        json_t *result = gac_json_result("gac.convert/1", c->argc, c->argv);
        json_t *body =
            json_pack("{s:s?, s:s, s:i, s:I, s:I, s:s?, s:I}", "model_type", r->model_type, "dtype",
                      gac_dtype_name(r->dtype), "n_tensors", r->n_tensors, "n_params",
                      (json_int_t)r->n_params, "bytes", (json_int_t)r->size_bytes, "tokenizer",
                      r->tokenizer, "n_tokens", (json_int_t)r->n_tokens);
        json_object_update(result, body);
        json_decref(body);
        gac_status status = cli_print_result(c, result);
        json_decref(result);
        return status;
    }
    printf("model      %s%s%s parameters in %d tensors\n", r->model_type ? r->model_type : "",
           r->model_type ? ", " : "", cli_count(count, r->n_params), r->n_tensors);
    if (!r->model_type) {
        printf("written    %s: %s, mostly %s\n", o->out, cli_bytes(bytes, r->size_bytes),
               gac_dtype_name(r->dtype));
        return GAC_OK;
    }
    if (r->tokenizer)
        printf("tokenizer  %s of %lld tokens\n", r->tokenizer, (long long)r->n_tokens);
    else
        printf("tokenizer  none\n");
    printf("written    %s: %s in %s\n", o->out, cli_bytes(bytes, r->size_bytes),
           gac_dtype_name(r->dtype));
    return GAC_OK;
}

typedef gac_status convert_format(const char *from, const char *to,
                                  const gac_convert_options *options, gac_convert_result *result,
                                  gac_error *err);

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), m = strlen(end);
    return n > m && strcmp(text + n - m, end) == 0;
}

/* Returns whether a file starts as those of torch.save do: as a zip archive or
 * as a pickle. llama2.c's start with a size, and have the same ending. */
static bool is_torch_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    int first = file ? fgetc(file) : EOF;
    if (file)
        fclose(file);
    return first == 'P' || first == 0x80;
}

/* Recognises the format. */
static convert_format *format_of(const char *path, bool folder, const convert_command *o)
{
    if (o->options.tokenizer || (ends_with(path, ".bin") && !folder && !is_torch_file(path)))
        return gac_convert_llama2c;
    return folder || ends_with(path, ".bin") || ends_with(path, ".pt") || ends_with(path, ".pth")
               ? gac_convert_torch
               : gac_convert_gguf;
}

static gac_status run(cli *c, void *filled, int n, const char **arguments)
{
    convert_command *o = filled;
    gac_convert_result result;
    const char *from = arguments[0];
    struct stat s;
    (void)n;
    bool found = stat(from, &s) == 0;
    if (!found && errno != ENOENT)
        return gac_error_errno(&c->error, from);
    convert_format *convert = format_of(from, found && S_ISDIR(s.st_mode), o);
    if (!o->out)
        return gac_error_set(&c->error, GAC_USAGE, "convert needs -o DIR; see gac convert --help");
    if (convert == gac_convert_llama2c && !(o->options.tokenizer && ends_with(from, ".bin")))
        return gac_error_set(&c->error, GAC_USAGE,
                             o->options.tokenizer
                                 ? "--tokenizer is for a .bin file of llama2.c"
                                 : "--tokenizer FILE is needed for a model of llama2.c");
    if (convert == gac_convert_torch && cli_given(c, "dtype"))
        return gac_error_set(&c->error, GAC_USAGE,
                             "--dtype is not for torch files, which keep their dtypes");
    o->options.progress = c->progress;
    o->options.log = &c->log;
    o->options.cancel = cli_catch_signals();
    gac_status status = convert(from, o->out, &o->options, &result, &c->error);
    return status == GAC_OK ? report(c, o, &result) : status;
}

const command cmd_convert = {
    .name = "convert",
    .summary = "GGUF, torch or llama2.c files to a Hugging Face directory",
    .usage = "FILE.gguf -o DIR [options]\nTORCH_DIR|FILE.pt -o DIR [options]\n"
             "MODEL.bin -o DIR --tokenizer TOKENIZER.bin",
    .about = "Writes a Hugging Face directory (config, tensors, tokenizer) from a GGUF file of a "
             "llama, mistral, qwen2 or qwen3 model, quantised weights as floats, or from "
             "llama2.c's first format. Writes files of torch.save (.bin, .pt, .pth) as safetensors "
             "with the same bytes; other commands read them without that.",
    .example = "SmolLM2-135M.Q4_1.gguf -o ./smollm2",
    COMMAND_RUNS(1, 1, "one file"),
};
