/* How much memory this process may still allocate. malloc cannot tell: Linux overcommits,
 * and later kills a process that uses what it was promised. */
#include "device/cpu/compute_internal.h"

#include <stdio.h>
#include <unistd.h>

/* Returns the number that format matches on a line of the file, or fallback. */
static int64_t read_number(const char *path, const char *format, int64_t fallback)
{
    char line[128];
    long long found;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, format, &found) == 1 && found >= 0) {
            fallback = found;
            break;
        }
    if (file)
        fclose(file);
    return fallback;
}

int64_t gac_host_free_bytes(void)
{
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t least = pages > 0 && page > 0 ? pages * page : INT64_MAX;
    int64_t kib = read_number("/proc/meminfo", "MemAvailable: %lld kB", least / 1024);
    least = kib < least / 1024 ? kib * 1024 : least;
    /* Memory limits of containers: cgroup v2, then v1. */
    int64_t v2 = read_number("/sys/fs/cgroup/memory.max", "%lld", INT64_MAX);
    int64_t v1 = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "%lld", INT64_MAX);
    least = v2 < least ? v2 : least;
    return v1 < least ? v1 : least;
}
