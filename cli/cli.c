#include "cli.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

const command *const cli_commands[] = { &cmd_inspect,  &cmd_plan,     &cmd_repair,
                                        &cmd_verify,   &cmd_compress, &cmd_eval,
                                        &cmd_generate, &cmd_convert,  &cmd_dim,
                                        &cmd_contract, &cmd_probe,    &cmd_experiment,
                                        &cmd_report,   &cmd_help,     NULL };

static const opt_choice colours[] = { { "auto", COLOUR_AUTO, false },
                                      { "always", COLOUR_ALWAYS, false },
                                      { "never", COLOUR_NEVER, false },
                                      { 0 } };

static const opt_choice formats[] = { { "text", CLI_FORMAT_TEXT, false },
                                      { "md", CLI_FORMAT_MD, false },
                                      { "csv", CLI_FORMAT_CSV, false },
                                      { "json", CLI_FORMAT_JSON, false },
                                      { 0 } };

#define AT(member) .at = offsetof(cli, member)
const opt cli_common_options[] = {
    { "json", 'j', NULL, "print the result as JSON", OPT_FLAG, AT(json) },
    { "format", 0, "FORMAT", "how to print the result: text (the default), md, csv or json",
      OPT_CHOICE, AT(format), .choices = formats },
    { "quiet", 'q', NULL, "no progress and no notes", OPT_FLAG, AT(quiet) },
    { "verbose", 'v', NULL, "say more", OPT_FLAG, AT(verbose) },
    { "color", 0, "WHEN", "when to use colour: auto (the default), always or never", OPT_CHOICE,
      AT(colour), .choices = colours, .old = "colour" },
    { "help", 'h', NULL, "print this", OPT_FLAG, AT(help), .ends = true },
    { 0 }
};
#undef AT

#define AT(member) .at = offsetof(cli_target, member)
const opt cli_target_options[] = {
    { "gpu", 0, "NAME", "which GPU (default " CLI_DEFAULT_GPU "; gac contract list)", OPT_TEXT,
      AT(gpu) },
    { "contract", 0, "FILE", "a contract of your own instead", OPT_TEXT, AT(contract) },
    { "dtype", 0, "D", "dtype the model will run in (default: as stored)", OPT_TEXT, AT(dtype) },
    { "workload", 0, "W",
      "what the model will do: prefill:BxS[*weight],decode:B@CONTEXT[*weight] "
      "(default " GAC_DEFAULT_WORKLOAD ")",
      OPT_TEXT, AT(workload) },
    { "tp", 0, "N", "split over N GPUs: what each sees must be aligned too", OPT_INT, AT(n_gpus),
      .least = 1, .most = 4096 },
    { "quant-group", 0, "G", "quantisation groups of G along the input axis must fit", OPT_INT,
      AT(quant_group), .least = 1, .most = 1 << 20 },
    { 0 }
};
#undef AT

const opt_choice cli_strategies[] = { { "minimal", GAC_STRATEGY_MINIMAL, false },
                                      { "multiple-16", GAC_STRATEGY_MULTIPLE_16, false },
                                      { "optimal", GAC_STRATEGY_MULTIPLE_16, true },
                                      { "predefined", GAC_STRATEGY_PREDEFINED, false },
                                      { "tradeoff", GAC_STRATEGY_TRADEOFF, false },
                                      { 0 } };

const opt_choice cli_rescaled[] = { { "rescaled", 1, false }, { 0 } };

const command *cli_find_command(const char *name)
{
    for (int i = 0; cli_commands[i]; i++)
        if (strcmp(cli_commands[i]->name, name) == 0)
            return cli_commands[i];
    return NULL;
}

gac_status cli_unknown_command(const char *name, gac_error *err)
{
    char q[80];
    int distance = INT_MAX;
    const char *best = NULL;
    for (int i = 0; cli_commands[i]; i++)
        if (options_is_closer(name, cli_commands[i]->name, &distance))
            best = cli_commands[i]->name;
    gac_quote(q, sizeof q, name);
    if (best)
        return gac_error_set(err, GAC_USAGE, "unknown command %s; did you mean %s?", q, best);
    return gac_error_set(err, GAC_USAGE, "unknown command %s; see gac --help", q);
}

bool cli_given(const cli *c, const char *name)
{
    return options_given(&c->parsed, name);
}

gac_status cli_take_dtype(void *member, const char *text, gac_error *err)
{
    char q[80];
    if (gac_dtype_parse(text, member))
        return GAC_OK;
    return gac_error_set(err, GAC_USAGE, "\"%s\" is not a dtype, such as F16, BF16, F8_E4M3",
                         gac_quote(q, sizeof q, text));
}

gac_status cli_take_device(void *member, const char *text, gac_error *err)
{
    char q[80];
    size_t n = strncmp(text, "cuda:", 5) == 0 ? strspn(text + 5, "0123456789") : 0;
    *(const char **)member = text;
    if (strcmp(text, "reference") == 0 || strcmp(text, "cpu") == 0 || strcmp(text, "cuda") == 0 ||
        (n > 0 && n < 5 && text[5 + n] == 0))
        return GAC_OK;
    return gac_error_set(err, GAC_USAGE, "\"%s\" is not reference, cpu, cuda or cuda:N",
                         gac_quote(q, sizeof q, text));
}

gac_status cli_number(cli *c, const char *option, const char *text, int64_t minimum, int64_t *out)
{
    char q[80];
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < minimum)
        return gac_error_set(&c->error, GAC_USAGE,
                             "%s: \"%s\" is not a whole number of at least %lld", option,
                             gac_quote(q, sizeof q, text), (long long)minimum);
    *out = n;
    return GAC_OK;
}

gac_status cli_contract(cli *c, const char *gpu, const char *file, gac_contract **out)
{
    if (gpu && file)
        return gac_error_set(&c->error, GAC_USAGE, "--gpu and --contract exclude each other");
    if (file)
        return gac_contract_load(file, out, &c->error);
    gac_status status = gac_contract_load_bundled(gpu ? gpu : CLI_DEFAULT_GPU, out, &c->error);
    if (status == GAC_OK && !gac_contract_has_times(*out, (*out)->dtypes[0]))
        gac_log_write(&c->log, 0,
                      "contract %s is assumed from the architecture, nothing was measured; on such "
                      "a GPU, gac probe -o contract.json measures it",
                      (*out)->name);
    return status;
}

bool cli_is_file(const char *name)
{
    return strchr(name, '/') || strchr(name, '.');
}

gac_status cli_contract_named(cli *c, const char *name, gac_contract **out)
{
    bool file = cli_is_file(name);
    return cli_contract(c, file ? NULL : name, file ? name : NULL, out);
}

gac_status cli_open_gpu(cli *c, const char *name, gac_device **out)
{
    if (strcmp(name, "cpu") == 0)
        return gac_error_set(&c->error, GAC_USAGE,
                             "--device: cpu is no GPU, and only these are measured: cuda, cuda:N");
    return gac_device_open(name, out, &c->error);
}

/* Writes value with three digits and the largest prefix that fits. */
static char *scaled(char buffer[32], double value, const char *unit, const char *const *prefixes)
{
    int i = 0;
    while (value >= 999.5 && prefixes[i + 1]) {
        value /= 1000;
        i++;
    }
    int decimals = i == 0 ? 0 : value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
    snprintf(buffer, 32, "%.*f %s%s", decimals, value, prefixes[i], unit);
    return buffer;
}

char *cli_bytes(char buffer[32], uint64_t n_bytes)
{
    static const char *const prefixes[] = { "", "k", "M", "G", "T", "P", NULL };
    return scaled(buffer, (double)n_bytes, "B", prefixes);
}

char *cli_count(char buffer[32], int64_t n)
{
    static const char *const prefixes[] = {
        "", "thousand", "million", "billion", "trillion", NULL
    };
    return scaled(buffer, (double)n, "", prefixes);
}

char *cli_understood(char buffer[32], double pct)
{
    if (pct >= 100)
        snprintf(buffer, 32, "100 %%");
    else
        snprintf(buffer, 32, "%.1f %%", pct > 99.9 ? 99.9 : pct);
    return buffer;
}

const char *cli_or_dash(const char *text)
{
    return text ? text : "-";
}

json_t *cli_number_or_null(double value)
{
    return isfinite(value) ? json_real(value) : json_null();
}

json_t *cli_or_null(const char *text)
{
    return text ? json_string(text) : json_null();
}

void cli_pattern(char *out, size_t size, const char *name)
{
    size_t used = 0;
    while (*name && used + 1 < size) {
        bool digit = *name >= '0' && *name <= '9';
        if (digit && (used == 0 || out[used - 1] == '.')) {
            out[used++] = '*';
            while (*name >= '0' && *name <= '9')
                name++;
        } else {
            out[used++] = *name++;
        }
    }
    out[used] = 0;
}

gac_status cli_dtype(cli *c, const char *name, const gac_model *model, const gac_contract *contract,
                     gac_dtype *wanted, gac_dtype *out)
{
    char q[80];
    *wanted = gac_model_dtype(model);
    if (name && !gac_dtype_parse(name, wanted))
        return gac_error_set(&c->error, GAC_USAGE,
                             "--dtype: \"%s\" is not a dtype, such as F16, BF16, F8_E4M3",
                             gac_quote(q, sizeof q, name));
    if (gac_contract_dtype(contract, *wanted, out))
        return GAC_OK;
    return gac_error_set(&c->error, GAC_USAGE,
                         "contract %s says nothing of %s; --dtype F16 judges the sizes as if run "
                         "in F16",
                         gac_contract_name(contract), gac_dtype_name(*wanted));
}

static volatile int interrupted;
static const int caught[] = { SIGINT, SIGTERM, SIGHUP };
enum { N_CAUGHT = sizeof caught / sizeof *caught };
static struct sigaction uncaught[N_CAUGHT]; /* the handlers before cli_catch_signals */

static void note_signal(int number)
{
    (void)number;
    interrupted = 1;
}

bool cli_has_parent;

/* A second signal ends the program at once, except where a parent has it: each thread of a parent
 * that is killed may send one. */
const volatile int *cli_catch_signals(void)
{
    struct sigaction action = { .sa_handler = note_signal,
                                .sa_flags = cli_has_parent ? 0 : (int)SA_RESETHAND };
    for (int i = 0; i < N_CAUGHT; i++) {
        sigaction(caught[i], NULL, &uncaught[i]);
        if (uncaught[i].sa_handler != SIG_IGN) /* nohup ignores SIGHUP; that stays */
            sigaction(caught[i], &action, NULL);
    }
    return &interrupted;
}

/* Restores the handlers. An interrupt that came meanwhile is a failure. */
static gac_status release_signals(cli *c, gac_status status, const char *what)
{
    for (int i = 0; i < N_CAUGHT; i++)
        sigaction(caught[i], &uncaught[i], NULL);
    return status == GAC_OK && interrupted
               ? gac_error_set(&c->error, GAC_FAILED, "interrupted; %s", what)
               : status;
}

gac_status cli_new_file(cli *c, const char *path, bool force, gac_new_file **out)
{
    cli_catch_signals();
    gac_status status = gac_new_file_create(path, force, out, &c->error);
    return status == GAC_OK ? GAC_OK : release_signals(c, status, "");
}

gac_status cli_finish_file(cli *c, gac_new_file *file, gac_status status)
{
    bool wanted = status == GAC_OK && !interrupted;
    if (wanted)
        status = gac_new_file_commit(file, &c->error);
    else
        gac_new_file_discard(file);
    return release_signals(c, status,
                           wanted ? "what was written is complete" : "nothing was left behind");
}

static gac_status write_bytes(cli *c, const char *path, bool force, const char *text,
                              size_t n_bytes)
{
    gac_new_file *file = NULL;
    gac_status status = cli_new_file(c, path, force, &file);
    if (status != GAC_OK)
        return status;
    return cli_finish_file(c, file, gac_new_file_write(file, text, n_bytes, &c->error));
}

gac_status cli_write_file(cli *c, const char *path, bool force, const char *text)
{
    return write_bytes(c, path, force, text, strlen(text));
}

gac_status cli_write_json(cli *c, const char *path, bool force, const json_t *value, size_t flags)
{
    char *text = NULL;
    size_t n_bytes;
    gac_status status = gac_json_text(value, flags, &text, &n_bytes, &c->error);
    if (status == GAC_OK) {
        text[n_bytes] = '\n'; /* in place of the NUL */
        status = write_bytes(c, path, force, text, n_bytes + 1);
    }
    free(text);
    return status;
}

gac_status cli_report_failed(cli *c, const char *path, gac_status status)
{
    char q[256], why[400];
    snprintf(why, sizeof why, "%s", c->error.text);
    return gac_error_set(&c->error, status, "%s is complete, but its report failed: %s",
                         gac_quote(q, sizeof q, path), why);
}

gac_status cli_check_target(cli *c, const char *path, bool force)
{
    gac_new_file *file = NULL;
    gac_status status = cli_new_file(c, path, force, &file);
    if (status != GAC_OK)
        return status;
    gac_new_file_discard(file);
    return release_signals(c, GAC_OK, "nothing was left behind");
}
