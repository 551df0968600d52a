#include "cli.h"

#include <string.h>

static const char help[] =
    "usage: gac convert FILE.gguf -o DIR [options]\n"
    "       gac convert MODEL.bin -o DIR --tokenizer TOKENIZER.bin\n"
    "\n"
    "Writes a Hugging Face directory (config, tensors, tokenizer) from a GGUF file of a llama,\n"
    "mistral, qwen2 or qwen3 model, quantised weights as floats, or from llama2.c's first format.\n"
    "\n"
    "  -o DIR               the new directory\n"
    "  --dtype D            F16, BF16 or F32 (default: what most weights are stored in, F16\n"
    "                       where they are quantised)\n"
    "  --tokenizer FILE     llama2.c's tokenizer\n"
    "  --max-shard-size N   bytes per file, as 500MB or 5GB (default 5GB)\n"
    "  --force              replace an existing DIR\n"
    "  --no-sync            do not wait until DIR is on disk: faster, and lost in a power cut\n"
    "  --json, -q, -v, --help\n"
    "\n"
    "example: gac convert SmolLM2-135M.Q4_1.gguf -o ./smollm2\n";

typedef struct convert_command {
    const char *from, *out;
    gac_convert_options options;
} convert_command;

static gac_status report(cli *c, const convert_command *o, const gac_convert_result *r)
{
    char bytes[32], count[32];
    if (c->json) {
        json_t *result = gac_json_result("gac.convert/1", c->argc, c->argv);
        json_t *body =
            json_pack("{s:s, s:s, s:i, s:I, s:I, s:s?, s:I}", "model_type", r->model_type, "dtype",
                      gac_dtype_name(r->dtype), "n_tensors", r->n_tensors, "n_params",
                      (json_int_t)r->n_params, "bytes", (json_int_t)r->size_bytes, "tokenizer",
                      r->tokenizer, "n_tokens", (json_int_t)r->n_tokens);
        json_object_update(result, body);
        json_decref(body);
        gac_status status = gac_json_print(stdout, result, &c->error);
        json_decref(result);
        return status;
    }
    printf("model      %s, %s parameters in %d tensors\n", r->model_type,
           cli_count(count, r->n_params), r->n_tensors);
    if (r->tokenizer)
        printf("tokenizer  %s of %lld tokens\n", r->tokenizer, (long long)r->n_tokens);
    else
        printf("tokenizer  none\n");
    printf("written    %s: %s in %s\n", o->out, cli_bytes(bytes, r->size_bytes),
           gac_dtype_name(r->dtype));
    return GAC_OK;
}

static gac_status take_dtype(cli *c, const char *name, gac_dtype *out)
{
    char q[80];
    if (gac_dtype_parse(name, out) &&
        (*out == GAC_DTYPE_F16 || *out == GAC_DTYPE_BF16 || *out == GAC_DTYPE_F32))
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE, "--dtype: \"%s\" is not F16, BF16 or F32",
                         gac_quote(q, sizeof q, name));
}

static gac_status take_options(cli *c, int argc, char **argv, convert_command *o, bool *done)
{
    enum { DTYPE = 256, TOKENIZER, SHARD, FORCE, NO_SYNC };
    static const struct option options[] = { { "output", required_argument, NULL, 'o' },
                                             { "dtype", required_argument, NULL, DTYPE },
                                             { "tokenizer", required_argument, NULL, TOKENIZER },
                                             { "max-shard-size", required_argument, NULL, SHARD },
                                             { "force", no_argument, NULL, FORCE },
                                             { "no-sync", no_argument, NULL, NO_SYNC },
                                             CLI_COMMON_OPTIONS };
    gac_status status = GAC_OK;
    int letter;
    while (status == GAC_OK &&
           (letter = cli_next_option(c, &cmd_convert, argc, argv, options, done)) != -1) {
        if (letter == '?')
            return *done ? GAC_OK : c->error.status;
        if (letter == 'o')
            o->out = optarg;
        else if (letter == DTYPE)
            status = take_dtype(c, optarg, &o->options.dtype);
        else if (letter == TOKENIZER)
            o->options.tokenizer = optarg;
        else if (letter == FORCE)
            o->options.replace = true;
        else if (letter == NO_SYNC)
            o->options.no_sync = true;
        else
            status = cli_size(c, "--max-shard-size", optarg, &o->options.max_shard_bytes);
    }
    return status;
}

/* llama2.c's files have no mark of their own; the name has to tell. */
static bool is_llama2c(const char *path)
{
    size_t n = strlen(path);
    return n > 4 && strcmp(path + n - 4, ".bin") == 0;
}

static gac_status run(cli *c, int argc, char **argv)
{
    convert_command o = { .options = GAC_CONVERT_OPTIONS_INIT };
    gac_convert_result result;
    bool done = false;
    gac_status status = take_options(c, argc, argv, &o, &done);
    if (status != GAC_OK || done)
        return status;
    if (argc - optind != 1 || !o.out)
        return gac_error_set(&c->error, GAC_USAGE,
                             "convert takes one file and -o DIR; see gac convert --help");
    o.from = argv[optind];
    bool llama2c = is_llama2c(o.from);
    if (llama2c != (o.options.tokenizer != NULL))
        return gac_error_set(&c->error, GAC_USAGE,
                             llama2c ? "--tokenizer FILE is needed for a model of llama2.c"
                                     : "--tokenizer is for a .bin file of llama2.c");
    o.options.progress = c->progress;
    o.options.log = &c->log;
    o.options.cancel = cli_catch_signals();
    status = llama2c ? gac_convert_llama2c(o.from, o.out, &o.options, &result, &c->error)
                     : gac_convert_gguf(o.from, o.out, &o.options, &result, &c->error);
    return status == GAC_OK ? report(c, &o, &result) : status;
}

const command cmd_convert = { "convert", "GGUF or llama2.c to a Hugging Face directory", help,
                              run };
