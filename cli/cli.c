#include "cli.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Only a command that lists --output takes -o, because tables use the letter for
 * other options too. */
static const char *short_options(const struct option *options)
{
    for (; options->name; options++)
        if (strcmp(options->name, "output") == 0)
            return ":jqvho:";
    return ":jqvh";
}

/* What getopt refused, as it was given. In the middle of "-oX" optind still stands
 * before that argument, and optopt has the letter. */
static gac_status refuse_option(cli *c, const command *self, const char *given,
                                const struct option *options, const char *why)
{
    char q[120], letter[3] = { '-', (char)optopt, 0 };
    bool is_long = optopt == 0;
    for (; options->name && !is_long; options++)
        is_long = strncmp(given, "--", 2) == 0 && options->val == optopt;
    return gac_error_set(&c->error, GAC_USAGE, "%s: option \"%s\" %s; see gac %s --help",
                         self->name, gac_quote(q, sizeof q, is_long ? given : letter), why,
                         self->name);
}

int cli_next_option(cli *c, const command *self, int argc, char **argv,
                    const struct option *options, bool *done)
{
    opterr = 0;
    for (;;) {
        int letter = getopt_long(argc, argv, short_options(options), options, NULL);
        switch (letter) {
        case 'j':
            c->json = true;
            break;
        case 'q':
            c->log.level = -1;
            gac_progress_free(c->progress);
            c->progress = NULL;
            break;
        case 'v':
            c->log.level++;
            break;
        case 'h':
            fputs(self->help, stdout);
            *done = true;
            return '?';
        case ':':
        case '?':
            refuse_option(c, self, argv[optind > 1 ? optind - 1 : 1], options,
                          letter == ':' ? "needs a value" : "is not known, or takes no value");
            return '?';
        default:
            return letter;
        }
    }
}

gac_status cli_number(cli *c, const char *option, const char *text, int64_t minimum, int64_t *out)
{
    char q[80];
    char *end;
    errno = 0;
    long long n = strtoll(text, &end, 10);
    if (errno || end == text || *end || n < minimum)
        return gac_error_set(
            &c->error, GAC_USAGE, "%s: \"%s\" is not a whole number from %lld to %lld", option,
            gac_quote(q, sizeof q, text), (long long)minimum, (long long)INT64_MAX);
    *out = n;
    return GAC_OK;
}

gac_status cli_real(cli *c, const char *option, const char *text, double *out)
{
    char q[80];
    char *end;
    double value = strtod(text, &end);
    if (end == text || *end || !isfinite(value))
        return gac_error_set(&c->error, GAC_USAGE, "%s: \"%s\" is not a number", option,
                             gac_quote(q, sizeof q, text));
    *out = value;
    return GAC_OK;
}

gac_status cli_size(cli *c, const char *option, const char *text, uint64_t *out)
{
    static const struct {
        const char *unit;
        double factor;
    } units[] = {
        { "", 1 }, { "B", 1 }, { "KB", 1e3 }, { "MB", 1e6 }, { "GB", 1e9 }, { "TB", 1e12 }
    };
    char q[80];
    char *end;
    double value = strtod(text, &end);
    for (size_t i = 0; i < sizeof units / sizeof *units && end != text; i++)
        if (strcasecmp(end, units[i].unit) == 0 && value * units[i].factor >= 1 &&
            value * units[i].factor < 1e18) {
            *out = (uint64_t)(value * units[i].factor);
            return GAC_OK;
        }
    return gac_error_set(&c->error, GAC_USAGE, "%s: \"%s\" is not a size as 5GB", option,
                         gac_quote(q, sizeof q, text));
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

gac_status cli_check_target(cli *c, const char *path, bool force)
{
    gac_new_file *file = NULL;
    gac_status status = gac_new_file_create(path, force, &file, &c->error);
    gac_new_file_discard(file);
    return status;
}

/* value as three digits with the largest prefix that fits. */
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

static void note_signal(int number)
{
    (void)number;
    interrupted = 1;
}

const volatile int *cli_catch_signals(void)
{
    struct sigaction action = { .sa_handler = note_signal, .sa_flags = (int)SA_RESETHAND };
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    sigaction(SIGHUP, &action, NULL);
    return &interrupted;
}
