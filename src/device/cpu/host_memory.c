/* How much memory this process may still take. Linux promises more than it has
 * and ends the process that believes it, so asking malloc is no answer. */
#include "device/cpu/compute_internal.h"

#include <stdio.h>
#include <unistd.h>

/* The number that format finds on a line of a file, or most. */
static int64_t read_number(const char *path, const char *format, int64_t most)
{
    char line[128];
    long long found;
    FILE *file = fopen(path, "re");
    while (file && fgets(line, sizeof line, file))
        if (sscanf(line, format, &found) == 1 && found >= 0) {
            most = found;
            break;
        }
    if (file)
        fclose(file);
    return most;
}

int64_t gac_host_free_bytes(void)
{
    const int64_t pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    int64_t least = pages > 0 && page > 0 ? pages * page : INT64_MAX;
    int64_t kib = read_number("/proc/meminfo", "MemAvailable: %lld kB", least / 1024);
    least = kib < least / 1024 ? kib * 1024 : least;
    /* What a container is allowed, by both versions of its groups. */
    int64_t v2 = read_number("/sys/fs/cgroup/memory.max", "%lld", INT64_MAX);
    int64_t v1 = read_number("/sys/fs/cgroup/memory/memory.limit_in_bytes", "%lld", INT64_MAX);
    least = v2 < least ? v2 : least;
    return v1 < least ? v1 : least;
}
