#include <gac/base.h>

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct gac_progress {
    FILE *stream;
    bool terminal;
    bool shown;
    const char *what;
    const char *unit;
    uint64_t total;
    double started_s;
    double last_s;
};

gac_progress *gac_progress_create(FILE *stream)
{
    gac_progress *progress = calloc(1, sizeof *progress);
    if (!progress)
        return NULL;
    progress->stream = stream;
    progress->terminal = isatty(fileno(stream));
    return progress;
}

void gac_progress_free(gac_progress *progress)
{
    free(progress);
}

void gac_progress_start(gac_progress *progress, const char *what, const char *unit, uint64_t total)
{
    if (!progress)
        return;
    progress->what = what;
    progress->unit = unit;
    progress->total = total;
    progress->shown = false;
    progress->started_s = progress->last_s = gac_now_s();
}

/* How long the rest takes if it goes on as fast: ", 3 min left". */
static void describe_rest(const gac_progress *progress, double fraction, double now, char out[32])
{
    const double left_s = ceil((now - progress->started_s) * (1 - fraction) / fraction);
    if (!(fraction > 0))
        out[0] = 0;
    else if (left_s < 100)
        snprintf(out, 32, ", %.0f s left", left_s);
    else if (left_s < 6000)
        snprintf(out, 32, ", %.0f min left", left_s / 60);
    else
        snprintf(out, 32, ", %.1f h left", fmin(left_s / 3600, 1e6));
}

static void draw_bar(const gac_progress *progress, double fraction, const char *rest)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    int filled = (int)(fraction * (double)WIDTH);
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(WIDTH - filled));
    bar[WIDTH] = 0;
    fprintf(progress->stream, "\r%s [%s] %3.0f %% of %llu %s%s\033[K", progress->what, bar,
            100.0 * fraction, (unsigned long long)progress->total, progress->unit, rest);
    fflush(progress->stream);
}

void gac_progress_step(gac_progress *progress, uint64_t n_done)
{
    if (!progress || progress->total == 0)
        return;
    if (n_done > progress->total) /* the total was an estimate */
        progress->total = n_done;
    double now = gac_now_s();
    double fraction = (double)n_done / (double)progress->total;
    char rest[32];
    describe_rest(progress, fraction, now, rest);
    /* A terminal shows a bar after half a second. A log gets a line every two
     * seconds. */
    if (progress->terminal && now - progress->started_s > 0.5 && now - progress->last_s > 0.1) {
        draw_bar(progress, fraction, rest);
    } else if (!progress->terminal && now - progress->last_s > 2.0) {
        fprintf(progress->stream, "%s: %llu of %llu %s (%.0f %%%s)\n", progress->what,
                (unsigned long long)n_done, (unsigned long long)progress->total, progress->unit,
                100.0 * fraction, rest);
    } else {
        return;
    }
    progress->last_s = now;
    progress->shown = true;
}

void gac_progress_finish(gac_progress *progress)
{
    if (!progress)
        return;
    if (progress->shown && progress->terminal)
        fprintf(progress->stream, "\r\033[K");
    progress->shown = false;
    progress->total = 0;
}

void gac_log_write(const gac_log *log, int level, const char *format, ...)
{
    if (!log || level > log->level)
        return;
    va_list args;
    va_start(args, format);
    vfprintf(log->stream, format, args);
    va_end(args);
    fputc('\n', log->stream);
}
