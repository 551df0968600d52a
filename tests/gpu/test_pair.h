/* Shared by the tests that compare a GPU with the CPU. */
#ifndef TEST_PAIR_H
#define TEST_PAIR_H

#include <gac/device.h>

/* The two devices. */
typedef struct pair {
    gac_compute cpu, gpu;
    gac_dtype dtype;
} pair;

extern int n_ok, n_failed;
extern uint64_t random_state;

/* dtype is that of the GPU's rows. close_pair also takes a pair that could not be opened. */
gac_status open_pair(pair *p, gac_dtype dtype, gac_error *err);
void close_pair(pair *p);

double random_number(void); /* from -1 to 1 */
/* Both end the program without memory. */
void *need(void *memory);
void *zeros(int64_t n, size_t element);
/* Verdicts: ok itself; whether value is at most limit; whether status is an error. */
void judge(bool ok, const char *name, double value, double limit);
void below(const char *name, double value, double limit);
bool failed(gac_status status, const char *name, const gac_error *err);
/* |a - b| / |b|. */
double distance_floats(const float *a, const float *b, int64_t n);
double distance_doubles(const double *a, const double *b, int64_t n);

#endif
