/* Shared by the checks of Gram matrices and of factors on a GPU. */
#ifndef TEST_FACTOR_GPU_H
#define TEST_FACTOR_GPU_H

#include <gac/device.h>

/* The two devices. */
typedef struct pair {
    gac_compute cpu, gpu;
    gac_dtype dtype;
} pair;

extern int n_ok, n_failed;
extern uint64_t random_state;

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

void check_grams(pair *p, bool small);

#endif
