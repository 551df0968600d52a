/* Helpers of tests that compare a GPU with the CPU. */
#include "test_pair.h"

#include <gac/engine.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

int n_ok, n_failed;
uint64_t random_state;

double random_number(void)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int32_t)(random_state >> 32) / 2147483648.0;
}

void *need(void *memory)
{
    if (!memory) {
        printf("FAIL out of memory\n");
        exit(1);
    }
    return memory;
}

void *zeros(int64_t n, size_t element)
{
    return need(calloc((size_t)n + 1, element));
}

void judge(bool ok, const char *name, double value, double limit)
{
    n_ok += ok;
    n_failed += !ok;
    printf("%s %s %.3g (%.3g)\n", ok ? "ok" : "FAIL", name, value, limit);
    fflush(stdout);
}

void below(const char *name, double value, double limit)
{
    judge(value <= limit, name, value, limit); /* not for NaN */
}

bool failed(gac_status status, const char *name, const gac_error *err)
{
    if (status == GAC_OK)
        return false;
    printf("FAIL %s: %s\n", name, err->text);
    n_failed++;
    return true;
}

double distance_floats(const float *a, const float *b, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += ((double)a[i] - b[i]) * ((double)a[i] - b[i]);
        size += (double)b[i] * b[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

double distance_doubles(const double *a, const double *b, int64_t n)
{
    double difference = 0, size = 0;
    for (int64_t i = 0; i < n; i++) {
        difference += (a[i] - b[i]) * (a[i] - b[i]);
        size += b[i] * b[i];
    }
    return sqrt(difference / (size > 0 ? size : 1));
}

gac_status open_pair(pair *p, gac_dtype dtype, gac_error *err)
{
    gac_compute_options how = GAC_COMPUTE_OPTIONS_INIT;
    *p = (pair){ .cpu = GAC_COMPUTE_INIT, .gpu = GAC_COMPUTE_INIT, .dtype = dtype };
    how.dtype = dtype;
    how.max_rows = 700;
    how.padding = gac_engine_padding;
    gac_status status = gac_compute_open("cuda", &how, &p->gpu, err);
    return status == GAC_OK ? gac_compute_open("cpu", &how, &p->cpu, err) : status;
}

void close_pair(pair *p)
{
    gac_compute_close(&p->gpu);
    gac_compute_close(&p->cpu);
}
