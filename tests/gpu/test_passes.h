/* Shared by the checks and the timing of forward passes on a GPU: random tensors, modules
 * made of them, and the device. */
#ifndef TEST_PASSES_H
#define TEST_PASSES_H

#include <gac/device.h>

/* A compute of the plug-in. ops is NULL if there is no GPU. */
typedef struct bench {
    const gac_backend *backend;
    void *device, *state;
    const gac_compute_ops *ops;
    gac_compute_options options;
    gac_device_info info;
} bench;

/* Returns GAC_NO_RESOURCE if there is no plug-in or no GPU. */
gac_status bench_open_device(bench *b, gac_error *err);
gac_status bench_open(bench *b, gac_dtype dtype, bool no_pad, int64_t max_rows, gac_error *err);
void bench_close(bench *b);
void bench_close_device(bench *b);

/* Verdicts. */

extern int n_ok, n_failed;
extern uint64_t random_state;

double random_number(void); /* from -1 to 1 */
double tolerance_of(gac_dtype dtype);
void *need(void *memory); /* ends the program if memory is NULL */
/* Compares actual (n) with expected (n) by their relative distance. */
void judge(const char *name, const float *actual, const double *expected, int64_t n,
           double tolerance);
bool failed(gac_status status, const char *name, const gac_error *err);

/* Random tensors and modules. */

#define EPS 1e-5

enum { MAX_PARTS = 8, MAX_MODULES = 3 };

typedef struct tensor {
    void *data;
    double *values;
    gac_host_tensor host;
} tensor;

/* How a module is stored. rank 0: dense. Otherwise n_parts parts, each with its own slice
 * of rank columns or all with one shared slice. */
typedef struct module_spec {
    gac_axis out;
    int64_t rank;
    int n_parts;
    bool shared, bias;
} module_spec;

typedef struct module {
    module_spec spec;
    tensor first, first_bias, weight[MAX_PARTS], bias[MAX_PARTS];
    gac_linear_part parts[MAX_PARTS];
    gac_linear_module host;
} module;

tensor make_tensor(gac_dtype dtype, int64_t n_rows, int64_t n_cols, double scale);
void free_tensor(tensor *t);
void make_module(module *m, module_spec spec, int64_t n_in, gac_dtype dtype);
void free_module(module *m);
/* Computes one row of a module. x and y have stored (padded) axes. */
void apply_module(const module *m, const gac_axis *in, const double *x, double *y);
void norm_row(double *x, int64_t n, const float *norm, double eps);

/* Residual rows of random numbers, from an embedding of VOCAB tokens. */
enum { VOCAB = 61 };

typedef struct stream {
    tensor table;
    gac_matrix *embedding;
    gac_rows *rows;
    int32_t *ids;
    float *values; /* (n, hidden), as read back from the device */
} stream;

gac_status open_stream(bench *b, int64_t hidden, int64_t batch, int64_t n_new, stream *s,
                       gac_error *err);
void close_stream(bench *b, stream *s);

/* Checks. */

void check_attentions(bench *b, bool small);
void check_model(bench *b);
void check_refusals(bench *b);
void check_variations(bench *b, bool small);
/* words: empty for everything, or decode with batch sizes, or prefill. */
int run_timing(bench *b, int n_words, char **words);

#endif
