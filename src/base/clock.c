#include <gac/base.h>

#include <time.h>

int64_t gac_now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

double gac_now_s(void)
{
    return 1e-9 * (double)gac_now_ns();
}
