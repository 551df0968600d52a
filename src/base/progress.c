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

/* Writes ", 12.5 windows/s, 1:05 left". */
static void put_rate(const gac_progress *progress, uint64_t n_done, double now)
{
    static const char *const prefixes[] = { "", "k", "M", "G", "T" };
    const double rate = (double)n_done / (now - progress->started_s);
    double shown = rate;
    int i = 0;
    if (!(rate > 0))
        return;
    for (; shown >= 10000 && i < 4; i++)
        shown /= 1000;
    fprintf(progress->stream, ", %.*f %s%s/s",
            shown < 10    ? 2
            : shown < 100 ? 1
                          : 0,
            shown, prefixes[i], progress->unit);
    const double left_s = (double)(progress->total - n_done) / rate;
    if (left_s >= 3600)
        fprintf(progress->stream, ", %.0f:%02d:%02d left", floor(left_s / 3600),
                (int)(fmod(left_s, 3600) / 60), (int)fmod(left_s, 60));
    else
        fprintf(progress->stream, ", %d:%02d left", (int)(left_s / 60), (int)fmod(left_s, 60));
}

static void draw_bar(const gac_progress *progress, uint64_t n_done, double fraction, double now)
{
    enum { WIDTH = 30 };
    char bar[WIDTH + 1];
    int filled = (int)(fraction * (double)WIDTH);
    memset(bar, '#', (size_t)filled);
    memset(bar + filled, '.', (size_t)(WIDTH - filled));
    bar[WIDTH] = 0;
    fprintf(progress->stream, "\r%s [%s] %3.0f %% of %llu %s", progress->what, bar,
            100.0 * fraction, (unsigned long long)progress->total, progress->unit);
    put_rate(progress, n_done, now);
    fputs("\033[K", progress->stream); /* what was longer before */
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
    /* A terminal shows a bar after half a second. A log gets a line every two
     * seconds. */
    if (progress->terminal && now - progress->started_s > 0.5 && now - progress->last_s > 0.1) {
        draw_bar(progress, n_done, fraction, now);
    } else if (!progress->terminal && now - progress->last_s > 2.0) {
        fprintf(progress->stream, "%s: %llu of %llu %s (%.0f %%)", progress->what,
                (unsigned long long)n_done, (unsigned long long)progress->total, progress->unit,
                100.0 * fraction);
        put_rate(progress, n_done, now);
        fputc('\n', progress->stream);
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
