/* A preloaded library that makes mmap fail: GAC_MMAP_AT=N the N-th call from 1,
 * with GAC_MMAP_ON=1 every later one too. GAC_MMAP_COUNT=FILE gets the number of
 * calls. The C library's own calls do not come by here. */
#include <dlfcn.h>
#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static atomic_long n_calls;

__attribute__((destructor)) static void tell(void)
{
    const char *path = getenv("GAC_MMAP_COUNT");
    FILE *file = path ? fopen(path, "w") : NULL;
    if (file) {
        fprintf(file, "%ld", (long)n_calls);
        fclose(file);
    }
}

void *mmap(void *address, size_t n, int protection, int flags, int fd, off_t offset)
{
    __typeof__(&mmap) next;
    void *symbol = dlsym(RTLD_NEXT, "mmap");
    const char *at = getenv("GAC_MMAP_AT");
    long first = at ? atol(at) : 0, call = atomic_fetch_add(&n_calls, 1) + 1;
    memcpy(&next, &symbol, sizeof next);
    if (first > 0 && (call == first || (call > first && getenv("GAC_MMAP_ON")))) {
        errno = ENOMEM;
        return MAP_FAILED;
    }
    return next(address, n, protection, flags, fd, offset);
}
