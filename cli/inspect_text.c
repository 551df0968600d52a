#include "inspect.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SIZES = 12, MAX_OFFENDERS = 10, MAX_UNEXPLAINED = 10 };

double inspect_pct(int32_t part, int32_t whole)
{
    return whole ? 100.0 * part / whole : 0;
}

static void print_head(const inspection *x)
{
    char q[512], a[32], b[32];
    const gac_checkpoint *c = x->checkpoint;
    const char *compressor = gac_model_compressor(x->model);
    gac_dtype stored = gac_model_dtype(x->model);
    bool provisional = x->contract->provisional;
    char understood[32];
    printf("%s\n", gac_quote(q, sizeof q, gac_checkpoint_path(c)));
    printf("  model       %s, %s, %d layers\n", gac_model_family(x->model), compressor,
           gac_model_n_layers(x->model));
    printf("  weights     %s parameters, %s, %s, %d tensors in %d file%s\n",
           cli_count(a, gac_checkpoint_n_params(c)), cli_bytes(b, gac_checkpoint_size_bytes(c)),
           gac_dtype_name(stored), gac_checkpoint_n_tensors(c), gac_checkpoint_n_files(c),
           gac_checkpoint_n_files(c) == 1 ? "" : "s");
    printf("  understood  %s of the parameters outside the vocabulary\n",
           cli_understood(understood, x->found->understood_pct));
    printf("  contract    %s (%s)%s, rules of %s", gac_contract_name(x->contract),
           gac_contract_gpu(x->contract), provisional ? ", provisional: not measured by gac" : "",
           gac_dtype_name(x->found->target.dtype));
    if (x->found->target.dtype != x->found->wanted)
        printf(" in place of %s", gac_dtype_name(x->found->wanted));
    printf("\n");
    printf("  workload    %s", x->workload_text);
    if (x->found->target.n_gpus > 1)
        printf(", split over %lld GPUs", (long long)x->found->target.n_gpus);
    if (x->found->target.quant_group)
        printf(", quantisation groups of %lld", (long long)x->found->target.quant_group);
    printf("\n");
}

/* Returns the smallest count that is still among the MAX_SIZES largest. */
static int32_t least_shown(const gac_role_sizes *r)
{
    int32_t largest[MAX_SIZES] = { 0 }; /* largest first */
    for (int32_t i = 0; i < r->n_sizes; i++) {
        int at = MAX_SIZES;
        while (at > 0 && r->sizes[i].count > largest[at - 1])
            at--;
        for (int j = MAX_SIZES - 1; j > at; j--)
            largest[j] = largest[j - 1];
        if (at < MAX_SIZES)
            largest[at] = r->sizes[i].count;
    }
    return r->n_sizes <= MAX_SIZES ? 1 : largest[MAX_SIZES - 1];
}

static void print_bins(const gac_role_sizes *r)
{
    int32_t shown = 0, least = least_shown(r);
    for (int32_t i = 0; i < r->n_sizes && shown < MAX_SIZES; i++) {
        if (r->sizes[i].count < least)
            continue;
        colour shade = r->sizes[i].aligned ? COLOUR_NONE : COLOUR_WARN;
        printf(" %s%lld%s%s x%d", colour_on(stdout, shade), (long long)r->sizes[i].size,
               r->sizes[i].aligned ? "" : "!", colour_off(stdout, shade), r->sizes[i].count);
        shown++;
    }
    if (r->n_sizes > shown)
        printf(" and %d more sizes", r->n_sizes - shown);
    printf("\n");
}

static void print_roles(const inspection *x)
{
    printf("\n%-14s %5s  %-16s %s\n", "sizes", "dims", "misaligned", "size x count (! misaligned)");
    for (int i = 0; i < GAC_ROLE_COUNT; i++) {
        const gac_role_sizes *r = &x->found->roles[i];
        if (r->n_dims == 0)
            continue;
        printf("  %-12s %5d  %5d %5.1f %%   ", gac_role_name((gac_role)i), r->n_dims,
               r->n_misaligned, inspect_pct(r->n_misaligned, r->n_dims));
        print_bins(r);
    }
    printf("  %s: %d of %d misaligned (%.1f %%)\n",
           x->found->n_chosen ? "chosen by the compressor" : "together", x->n_misaligned, x->n_dims,
           inspect_pct(x->n_misaligned, x->n_dims));
}

/* Misaligned dimensions of one pattern and size. The same problem in every
 * layer is one line. */
typedef struct offender {
    char pattern[128]; /* the name with * instead of numbers */
    int32_t dim;       /* index of one of them */
    int32_t count;
    double lost_ms;
} offender;

static int by_pattern(const void *a, const void *b, void *model)
{
    const offender *x = a, *y = b;
    int order = strcmp(x->pattern, y->pattern);
    int64_t s = gac_model_dim(model, x->dim)->size;
    int64_t t = gac_model_dim(model, y->dim)->size;
    return order ? order : s < t ? -1 : s > t;
}

static int worse_first(const void *a, const void *b, void *model)
{
    const offender *x = a, *y = b;
    if (x->lost_ms > y->lost_ms || x->lost_ms < y->lost_ms) /* both are false if no time is known */
        return x->lost_ms > y->lost_ms ? -1 : 1;
    return by_pattern(a, b, model);
}

/* Merges equal neighbours. Returns the number that remain. */
static int32_t merge(gac_model *model, offender *list, int32_t n)
{
    int32_t kept = 0;
    for (int32_t i = 0; i < n; i++) {
        if (kept && by_pattern(&list[kept - 1], &list[i], model) == 0) {
            list[kept - 1].count++;
            list[kept - 1].lost_ms += list[i].lost_ms;
        } else {
            list[kept++] = list[i];
        }
    }
    return kept;
}

static void print_offender(const inspection *x, const offender *o)
{
    const gac_dim *d = gac_model_dim(x->model, o->dim);
    const gac_dim_advice *a = &x->found->advice[o->dim];
    char to[24] = "-";
    if (a->suggest != d->size && d->exactness != GAC_REFUSED)
        snprintf(to, sizeof to, "%lld", (long long)a->suggest);
    printf("  %-38s %5d %8lld %8s  %-8s", o->count == 1 ? d->name : o->pattern, o->count,
           (long long)d->size, to, gac_exactness_name(d->exactness));
    /* Print a loss below half of the last digit as 0, not -0. */
    double lost_ms = fabs(o->lost_ms) < 0.0005 ? 0 : o->lost_ms;
    bool contract = strcmp(a->rule, "contract") == 0;
    char as[32] = "";
    if (a->runs_as < GAC_DTYPE_COUNT && a->runs_as != x->found->target.dtype)
        snprintf(as, sizeof as, " as %s", gac_dtype_name(a->runs_as));
    if (a->axis != GAC_OP_AXIS_COUNT && isnan(lost_ms))
        printf("  %-8s %9s  %-9s %s%s%s%s\n", "-", "-", gac_op_axis_name(a->axis),
               cli_or_dash(a->family), as, contract ? "" : ", ", contract ? "" : a->rule);
    else if (a->axis != GAC_OP_AXIS_COUNT)
        printf("  × %-6.2f %9.3f  %-9s %s%s%s%s\n", a->penalty, lost_ms, gac_op_axis_name(a->axis),
               cli_or_dash(a->family), as, contract ? "" : ", ", contract ? "" : a->rule);
    else
        printf("  %-8s %9.3f  %-9s %s\n", "", lost_ms, "", contract ? "" : a->rule);
}

/* Says why refused sizes cannot be padded: each reason once. */
static void print_reasons(const inspection *x, const offender *list, int32_t n)
{
    for (int32_t i = 0; i < n; i++) {
        const gac_dim *d = gac_model_dim(x->model, list[i].dim);
        bool known = d->exactness != GAC_REFUSED || !d->reason;
        for (int32_t k = 0; k < i && !known; k++) {
            const gac_dim *other = gac_model_dim(x->model, list[k].dim);
            known = other->exactness == GAC_REFUSED && other->reason &&
                    strcmp(other->reason, d->reason) == 0;
        }
        if (!known)
            printf("  refused: %s: %s\n", list[i].count == 1 ? d->name : list[i].pattern,
                   d->reason);
    }
}

static gac_status print_offenders(const inspection *x, gac_error *err)
{
    int32_t n = 0;
    if (x->found->n_misaligned == 0)
        return GAC_OK;
    offender *list = calloc((size_t)x->found->n_misaligned, sizeof *list);
    if (!list)
        return gac_error_no_memory(err);
    for (int32_t i = 0; i < x->found->n_dims; i++)
        if (!x->found->advice[i].aligned) {
            list[n] = (offender){ .dim = i, .count = 1, .lost_ms = x->found->advice[i].lost_ms };
            cli_pattern(list[n].pattern, sizeof list[n].pattern, gac_model_dim(x->model, i)->name);
            n++;
        }
    qsort_r(list, (size_t)n, sizeof *list, by_pattern, x->model);
    n = merge(x->model, list, n);
    qsort_r(list, (size_t)n, sizeof *list, worse_first, x->model);
    printf("\n%-40s %5s %8s %8s  %-8s  %-8s %9s  %-9s %s\n", "worst", "dims", "size", "to",
           "padding", "slower", "lost ms", "seen as", "kernel, rule");
    for (int32_t i = 0; i < n && i < MAX_OFFENDERS; i++)
        print_offender(x, &list[i]);
    if (n > MAX_OFFENDERS)
        printf("  and %d more lines (--json lists every dimension)\n", n - MAX_OFFENDERS);
    print_reasons(x, list, n < MAX_OFFENDERS ? n : MAX_OFFENDERS);
    free(list);
    return GAC_OK;
}

static void print_files(const inspection *x)
{
    int32_t n_files = gac_checkpoint_n_files(x->checkpoint);
    printf("\nfile offsets  ");
    if (x->found->files.n_off_element)
        printf("%d of %d tensors start off a multiple of their element size: loaders must copy",
               x->found->files.n_off_element, gac_checkpoint_n_tensors(x->checkpoint));
    else
        printf("every tensor starts on a multiple of its element size");
    printf("; data starts on a 4096-byte boundary in %d of %d file%s\n",
           n_files - x->found->files.n_files_off_4096, n_files, n_files == 1 ? "" : "s");
}

/* Writes " prefill:1x2048 ×0.31, decode:1@2048 ×0.95". */
static void list_ratios(const gac_inspection *f, bool rescaled, char *text, size_t size)
{
    text[0] = 0;
    for (int i = 0; i < f->workload.n_phases; i++)
        snprintf(text + strlen(text), size - strlen(text), "%s %s ×%.2f", i ? "," : "",
                 f->phases[i].label,
                 rescaled ? f->phases[i].rescaled_ratio : f->phases[i].exact_ratio);
}

void inspect_advice(const gac_inspection *f, char *out, size_t size)
{
    char exact[640], rescaled[640], understood[32];
    cli_understood(understood, f->understood_pct);
    list_ratios(f, false, exact, sizeof exact);
    list_ratios(f, true, rescaled, sizeof rescaled);
    switch (f->verdict) {
    case GAC_VERDICT_ALIGNED:
        if (f->understood_pct < 100)
            snprintf(out, size, "no gain: every size that was understood (%s) is aligned",
                     understood);
        else
            snprintf(out, size, "no gain: every size is aligned");
        break;
    case GAC_VERDICT_NOT_JUDGED:
        snprintf(out, size, "not judged: only %s of the parameters were understood", understood);
        break;
    case GAC_VERDICT_REFUSED:
        snprintf(out, size, "no gain: what is misaligned cannot be padded (refused)");
        break;
    case GAC_VERDICT_NO_TIMES:
        snprintf(out, size,
                 "repair aligns the sizes, %+.2f %% bytes; whether it pays is not known: no times "
                 "were measured",
                 f->overhead_pct);
        break;
    case GAC_VERDICT_PAYS:
        snprintf(out, size, "repair pays:%s; %+.2f %% bytes%s%s", exact, f->overhead_pct,
                 f->rescaled_gains ? "; allowing rescaled sizes:" : "",
                 f->rescaled_gains ? rescaled : "");
        break;
    case GAC_VERDICT_PAYS_RESCALED:
        snprintf(out, size, "repair pays only with rescaled sizes allowed:%s", rescaled);
        break;
    case GAC_VERDICT_SLOWER:
        snprintf(out, size, "no gain: the aligned sizes are predicted to be slower (%s)",
                 exact + 1);
        break;
    default:
        snprintf(out, size, "no gain: misaligned sizes cost less than %.0f %% here (%s)",
                 100 * (1 - GAC_WORTH_IT), exact + 1);
    }
}

void inspect_reason(const gac_inspection *f, char *out, size_t size)
{
    out[0] = 0;
    if (f->stuck_width)
        snprintf(out, size,
                 "experts of width %lld do not run at all in the default path of transformers 5 "
                 "(grouped_mm needs rows of a multiple of 16 bytes); repaired ones do",
                 (long long)f->stuck_width);
}

static void print_reason(const inspection *x)
{
    char reason[256];
    inspect_reason(x->found, reason, sizeof reason);
    if (reason[0])
        printf("reason        %s\n", reason);
}

static void print_advice(const inspection *x)
{
    char q[256], advice[1536];
    inspect_advice(x->found, advice, sizeof advice);
    if (!gac_contract_has_times(x->contract, x->found->target.dtype)) {
        printf("\ntimes         not measured\nadvice        %s\n", advice);
        print_reason(x);
        return;
    }
    printf("\npredicted     %-18s %10s %12s %14s\n", "", "now", "repaired", "with rescaled");
    for (int i = 0; i < x->found->workload.n_phases; i++) {
        const gac_phase_times *t = &x->found->phases[i];
        printf("              %-18s %7.3f ms %9.3f ms %11.3f ms\n", t->label, t->now_ms,
               t->exact_ms, t->rescaled_ms);
    }
    gac_runtime runtime;
    if (gac_contract_runtime(x->contract, &runtime))
        printf("              GEMM and attention calls, and what %s adds\n",
               gac_quote(q, sizeof q, runtime.name));
    else
        printf("              sums of GEMM and attention calls; other kernels are left out\n");
    bool pays =
        x->found->verdict == GAC_VERDICT_PAYS || x->found->verdict == GAC_VERDICT_PAYS_RESCALED;
    colour shade = pays ? COLOUR_GOOD : COLOUR_NONE;
    printf("advice        %s%s%s\n", colour_on(stdout, shade), advice, colour_off(stdout, shade));
    print_reason(x);
}

static void print_rest(const inspection *x)
{
    char q[512];
    int32_t n = gac_model_n_unexplained(x->model);
    for (int32_t i = 0; i < n && i < MAX_UNEXPLAINED; i++) {
        const gac_tensor *t =
            gac_checkpoint_tensor(x->checkpoint, gac_model_unexplained(x->model, i));
        printf("unexplained   %s\n", gac_quote(q, sizeof q, t->name));
    }
    if (n > MAX_UNEXPLAINED)
        printf("unexplained   and %d more tensors (--json lists all)\n", n - MAX_UNEXPLAINED);
    if (x->found->rough[0])
        printf("note          %s\n", x->found->rough);
    for (int32_t i = 0; i < gac_checkpoint_n_notes(x->checkpoint); i++)
        printf("note          %s\n", gac_checkpoint_note(x->checkpoint, i));
    for (int32_t i = 0; i < gac_model_n_notes(x->model); i++)
        printf("note          %s\n", gac_model_note(x->model, i));
}

gac_status inspect_print(const inspection *x, gac_error *err)
{
    print_head(x);
    print_roles(x);
    gac_status status = print_offenders(x, err);
    print_files(x);
    print_advice(x);
    print_rest(x);
    return status;
}
