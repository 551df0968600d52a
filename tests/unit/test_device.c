#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include <gac/device.h>

#include "device/plugin.h"
#include "fake_model.h"
#include "op/numbers.h"

#define TEXT_OF_(x) #x
#define TEXT_OF(x) TEXT_OF_(x)

static const gac_task_spec small_gemm = {
    .kind = GAC_TASK_GEMM, .dtype = GAC_DTYPE_F16, .gemm = { 3, 5, 7, false }, .n_sets = 2
};
static const gac_task_spec small_sdpa = { .kind = GAC_TASK_SDPA,
                                          .dtype = GAC_DTYPE_F16,
                                          .sdpa = { .shape = { 2, 4, 2, 5, 9, 7, 11, true },
                                                    .stored_head = 16 },
                                          .n_sets = 1 };

static bool no_proc;

/* Replaces the C library's readlink in this program. */
ssize_t readlink(const char *path, char *to, size_t size)
{
    if (!no_proc || strncmp(path, "/proc/", 6) != 0)
        return readlinkat(AT_FDCWD, path, to, size);
    errno = ENOENT;
    return -1;
}

/* Plug-ins. */

/* Opens name with GAC_BACKEND_PATH and GAC_FAKE set (NULL: unset) and expects a failure.
 * The returned message is valid until the next call. */
static const char *refused(const char *name, const char *path, const char *fake,
                           gac_status expected)
{
    static gac_error err;
    gac_device *device = NULL;
    path ? setenv("GAC_BACKEND_PATH", path, 1) : unsetenv("GAC_BACKEND_PATH");
    fake ? setenv("GAC_FAKE", fake, 1) : unsetenv("GAC_FAKE");
    err = (gac_error)GAC_ERROR_INIT;
    assert_int_equal(gac_device_open(name, &device, &err), expected);
    assert_null(device);
    assert_int_equal(err.status, expected);
    assert_null(strchr(err.text, '\n'));
    unsetenv("GAC_BACKEND_PATH");
    unsetenv("GAC_FAKE");
    return err.text;
}

static gac_device *open_fake(const char *mode)
{
    gac_error err = GAC_ERROR_INIT;
    gac_device *device = NULL;
    setenv("GAC_BACKEND_PATH", FAKE_FOLDER, 1);
    mode ? setenv("GAC_FAKE", mode, 1) : unsetenv("GAC_FAKE");
    if (gac_device_open("cuda", &device, &err) != GAC_OK)
        fail_msg("%s", err.text);
    unsetenv("GAC_BACKEND_PATH");
    unsetenv("GAC_FAKE");
    return device;
}

static gac_device *open_cpu(void)
{
    gac_device *device = NULL;
    gac_error err = GAC_ERROR_INIT;
    if (gac_device_open("cpu", &device, &err) != GAC_OK)
        fail_msg("%s", err.text);
    return device;
}

static void plugins_that_do_not_load(void **state)
{
    (void)state;
    assert_string_equal(refused("cuda", NULL, NULL, GAC_NO_RESOURCE),
                        "no GPU plug-in: libgac_cuda.so was not found beside the program; set "
                        "GAC_BACKEND_PATH or build with -DGAC_CUDA=ON");
    assert_string_equal(refused("cuda", "/nowhere/x.so", NULL, GAC_NO_RESOURCE),
                        "no GPU plug-in: /nowhere/x.so, named by GAC_BACKEND_PATH, does not exist");
    assert_non_null(strstr(refused("cuda", "/", NULL, GAC_NO_RESOURCE), "libgac_cuda.so, named"));
    assert_non_null(strstr(refused("cuda", FAKE_FOLDER "/no-entry", NULL, GAC_NO_RESOURCE),
                           "/libgac_cuda.so: not a GAC plug-in (no gac_backend_entry)"));
    assert_non_null(
        strstr(refused("cuda", FAKE_FOLDER "/abi", NULL, GAC_NO_RESOURCE),
               ": made for another version of gac (plug-in ABI 99, this program " TEXT_OF(
                   GAC_BACKEND_ABI) ")"));
    assert_non_null(strstr(refused("cuda", FAKE_FOLDER "/name", NULL, GAC_NO_RESOURCE),
                           ": a plug-in for metal, not for cuda"));
    assert_non_null(strstr(refused("cuda", "CMakeLists.txt", NULL, GAC_NO_RESOURCE),
                           "the GPU plug-in does not load: "));
    assert_non_null(
        strstr(refused("cuda", FAKE_FOLDER, "no-gpu", GAC_NO_RESOURCE), "no GPU number 0"));
    assert_non_null(strstr(refused("cuda:1", FAKE_FOLDER, NULL, GAC_NO_RESOURCE), "number 1"));
}

static void device_names(void **state)
{
    (void)state;
    static const char *const bad[] = { "",           "gpu",   "CUDA",    "cuda:",
                                       "cuda:x",     "cuda1", "cuda:-1", "cuda:1 ",
                                       "cuda:99999", "cpu:0", "a\nb" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        assert_non_null(strstr(refused(bad[i], FAKE_FOLDER, NULL, GAC_USAGE), "cpu, cuda, cuda:N"));
}

static void plugins_are_looked_for(void **state)
{
    (void)state;
    char root[] = "/tmp/gac-plugin-XXXXXX", path[3][256], bin[256], lib[256], gac[256];
    char *found = NULL;
    gac_error err = GAC_ERROR_INIT;
    assert_non_null(mkdtemp(root));
    snprintf(bin, sizeof bin, "%s/bin", root);
    snprintf(lib, sizeof lib, "%s/lib", root);
    snprintf(gac, sizeof gac, "%s/lib/gac", root);
    assert_int_equal(mkdir(bin, 0700) | mkdir(lib, 0700) | mkdir(gac, 0700), 0);
    snprintf(path[0], sizeof path[0], "%s/libgac_cuda.so", bin);
    snprintf(path[1], sizeof path[1], "%s/libgac_cuda.so", gac);
    snprintf(path[2], sizeof path[2], "%s/libgac_cuda.so", lib);
    for (int i = 0; i < 3; i++)
        assert_int_equal(symlink(FAKE_FOLDER "/libgac_cuda.so", path[i]), 0);
    for (int i = 0; i < 3; i++) { /* the best of the remaining folders */
        char *expected = realpath(path[i], NULL), *is = NULL;
        assert_int_equal(gac_library_find(&gac_cuda_library, "", bin, &found, &err), GAC_OK);
        is = realpath(found, NULL);
        assert_string_equal(is, expected);
        free(is);
        free(expected);
        assert_non_null(strstr(found, i == 0 ? "/bin/lib" : i == 1 ? "../lib/gac/" : "../lib/lib"));
        free(found);
        assert_int_equal(unlink(path[i]), 0);
    }
    assert_int_equal(gac_library_find(&gac_cuda_library, NULL, bin, &found, &err), GAC_NO_RESOURCE);
    assert_int_equal(
        gac_library_find(&gac_cuda_library, FAKE_FOLDER "/libgac_cuda.so", bin, &found, &err),
        GAC_OK);
    assert_string_equal(found, FAKE_FOLDER "/libgac_cuda.so");
    free(found);
    assert_int_equal(rmdir(gac) | rmdir(lib) | rmdir(bin) | rmdir(root), 0);
}

/* Without /proc the program does not know its folder. It must not load a plug-in from the
 * current folder instead. */
static void no_plugin_from_the_current_folder(void **state)
{
    (void)state;
    char root[] = "/tmp/gac-plugin-XXXXXX", path[64], *before = getcwd(NULL, 0);
    assert_non_null(before);
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/libgac_cuda.so", root);
    assert_int_equal(symlink(FAKE_FOLDER "/libgac_cuda.so", path), 0);
    assert_int_equal(chdir(root), 0);
    no_proc = true;
    assert_non_null(strstr(refused("cuda", NULL, NULL, GAC_NO_RESOURCE), "without /proc"));
    no_proc = false;
    assert_int_equal(chdir(before), 0);
    free(before);
    assert_int_equal(unlink(path) | rmdir(root), 0);
}

/* Opening a FIFO would block for ever. */
static void plugins_are_files(void **state)
{
    (void)state;
    char root[] = "/tmp/gac-plugin-XXXXXX", path[64], *found = NULL;
    gac_error err = GAC_ERROR_INIT;
    assert_non_null(mkdtemp(root));
    snprintf(path, sizeof path, "%s/libgac_cuda.so", root);
    assert_int_equal(mkfifo(path, 0600), 0);
    alarm(300); /* ends a test that hangs */
    assert_non_null(strstr(refused("cuda", path, NULL, GAC_NO_RESOURCE), "is not a file"));
    assert_non_null(strstr(refused("cuda", root, NULL, GAC_NO_RESOURCE), "is not a file"));
    alarm(0);
    assert_int_equal(gac_library_find(&gac_cuda_library, NULL, root, &found, &err),
                     GAC_NO_RESOURCE);
    assert_int_equal(unlink(path) | rmdir(root), 0);
}

static void fake_works_and_describes_itself(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    gac_telemetry now;
    gac_device *device = open_fake(NULL), *second = open_fake(NULL);
    assert_string_equal(gac_device_describe(device)->name, "NVIDIA H200 (fake)");
    assert_int_equal(gac_device_describe(device)->n_units, 132);
    assert_int_equal(gac_device_telemetry(device, &now, &err), GAC_OK);
    assert_int_equal(now.throttle, 0);
    gac_device_close(second);
    gac_device_close(device);
    gac_device_close(NULL);
    gac_task_free(NULL);
}

static void declines_and_kernels(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    gac_device *device = open_fake(NULL), *no_fp8 = open_fake("fp8-less"),
               *full = open_fake("out-of-memory");
    gac_task_spec spec = small_sdpa;
    gac_task *task = NULL;
    gac_kernel kernels[2];
    int n = 0;
    assert_int_equal(gac_task_create(device, &spec, &task, &err), GAC_CHECK);
    assert_non_null(strstr(err.text, "cuDNN declined heads of 7 and 11"));
    assert_null(task);
    spec.sdpa.path = GAC_SDPA_PADDED;
    assert_int_equal(gac_task_create(device, &spec, &task, &err), GAC_OK);
    assert_int_equal(gac_task_kernels(task, kernels, 2, &n, &err), GAC_OK);
    assert_int_equal(n, 5); /* more than fit */
    assert_string_equal(kernels[1].name, "gac_pad_kernel");
    assert_int_equal(gac_task_kernels(task, kernels, -1, &n, &err), GAC_USAGE);
    gac_task_free(task);
    spec = small_gemm;
    spec.dtype = GAC_DTYPE_F8_E4M3;
    assert_int_equal(gac_task_create(device, &spec, &task, &err), GAC_CHECK);
    spec.gemm = (gac_gemm_shape){ 16, 16, 16, false };
    assert_int_equal(gac_task_create(no_fp8, &spec, &task, &err), GAC_CHECK);
    for (int i = 0; i < 3; i++) {
        task = NULL;
        assert_int_equal(gac_task_create(full, &small_gemm, &task, &err),
                         i < 2 ? GAC_OK : GAC_NO_RESOURCE);
        gac_task_free(task);
    }
    gac_device_close(full);
    gac_device_close(no_fp8);
    gac_device_close(device);
}

static void cpu_says_what_it_cannot(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    gac_device *cpu = open_cpu();
    gac_task *task = NULL;
    gac_telemetry now;
    gac_kernel kernel;
    int n;
    double time_us = -1;
    assert_true(gac_device_describe(cpu)->memory_bytes > 0);
    assert_true(gac_device_describe(cpu)->name[0] != '\0');
    assert_int_equal(gac_device_telemetry(cpu, &now, &err), GAC_CHECK);
    assert_int_equal(gac_task_create(cpu, &small_gemm, &task, &err), GAC_OK);
    assert_int_equal(gac_task_kernels(task, &kernel, 1, &n, &err), GAC_CHECK);
    assert_string_equal(err.text, "cpu: this device cannot say which kernels ran");
    int n_calls = 0;
    assert_int_equal(gac_task_time(task, &n_calls, false, &time_us, &err), GAC_USAGE);
    n_calls = 3;
    assert_int_equal(gac_task_time(task, &n_calls, true, &time_us, &err), GAC_OK);
    assert_int_equal(n_calls, 3);
    assert_true(time_us >= 0);
    gac_task_free(task);
    gac_device_close(cpu);
}

/* By default the sanitizer ends the program if malloc fails. */
const char *__asan_default_options(void);
const char *__asan_default_options(void)
{
    return "allocator_may_return_null=1";
}

static void cpu_memory_is_finite(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    gac_device *cpu = open_cpu();
    gac_task_spec spec = { .kind = GAC_TASK_COPY, .copy_bytes = (int64_t)1 << 40, .n_sets = 65536 };
    gac_task *task = NULL;
    assert_int_equal(gac_task_create(cpu, &spec, &task, &err), GAC_NO_RESOURCE);
    assert_string_equal(err.text, "cpu: no memory for 65536 x 1099511627776 bytes");
    assert_null(task);
    gac_device_close(cpu);
}

/* Specs. */

/* Returns the message that refuses spec. It is valid until the next call. */
static const char *refused_spec(gac_device *device, const gac_task_spec *spec)
{
    static gac_error err;
    gac_task *task = NULL;
    err = (gac_error)GAC_ERROR_INIT;
    assert_int_equal(gac_task_create(device, spec, &task, &err), GAC_USAGE);
    assert_null(task);
    return err.text;
}

#define assert_senseless(base, change, text) \
    do { \
        gac_task_spec spec = (base); \
        change; \
        const char *said = refused_spec(cpu, &spec); \
        if (!strstr(said, text)) \
            fail_msg("said: %s", said); \
    } while (0)

static void specs_are_checked(void **state)
{
    (void)state;
    gac_device *cpu = open_cpu();
    assert_senseless(small_gemm, spec.kind = GAC_TASK_KIND_COUNT, "no task kind 4");
    assert_senseless(small_gemm, spec.gemm.m = 0, "GEMM: m is 0, not from 1 to 2147483648");
    assert_senseless(small_gemm, spec.gemm.k = ((int64_t)1 << 31) + 1, "GEMM: k is 2147483649");
    assert_senseless(small_gemm, spec.gemm.n = INT64_MIN, "GEMM: n is -9223372036854775808");
    assert_senseless(small_gemm, spec.gemm.n = spec.gemm.k = (int64_t)1 << 31, "2^40 bytes");
    assert_senseless(small_gemm, spec.dtype = GAC_DTYPE_F64, "GEMM: not defined in F64");
    assert_senseless(small_gemm, spec.dtype = GAC_DTYPE_F8_E5M2, "not defined in F8_E5M2");
    assert_senseless(small_gemm, spec.n_sets = -1, "n_sets is -1");
    assert_senseless(small_sdpa, spec.dtype = GAC_DTYPE_F32, "SDPA: not defined in F32");
    assert_senseless(small_sdpa, spec.sdpa.shape.n_q_heads = 3, "3 query heads cannot share 2");
    assert_senseless(small_sdpa, spec.sdpa.shape.v_head = 0, "SDPA: v_head is 0");
    assert_senseless(small_sdpa, spec.sdpa.shape.n_q = 10, "queries that see no key");
    assert_senseless(small_sdpa, spec.sdpa.scale = -1, "scale -1 is not a finite");
    assert_senseless(small_sdpa, spec.sdpa.scale = NAN, "is not a finite");
    assert_senseless(small_sdpa, spec.sdpa.scale = INFINITY, "is not a finite");
    assert_senseless(small_sdpa, spec.sdpa.path = GAC_SDPA_PATH_COUNT, "no path 4");
    assert_senseless(small_sdpa, (spec.sdpa.path = GAC_SDPA_PADDED, spec.sdpa.stored_head = 10),
                     "stored_head 10 is below the heads, 7, 11");
    assert_senseless(small_sdpa,
                     (spec.sdpa.path = GAC_SDPA_PADDED, spec.sdpa.stored_head = (int64_t)1 << 31,
                      spec.sdpa.shape.batch = (int64_t)1 << 20),
                     "2^40 bytes");
    gac_task_spec pad = { .kind = GAC_TASK_PAD, .dtype = GAC_DTYPE_I8, .pad = { 2, 3, 4 } };
    assert_senseless(pad, spec.dtype = GAC_DTYPE_F64, "PAD: not defined in F64");
    assert_senseless(pad, spec.pad.n_to = 0, "PAD: n_to is 0");
    gac_task_spec copy = { .kind = GAC_TASK_COPY, .copy_bytes = 0 };
    assert_senseless(copy, (void)spec, "COPY: copy_bytes is 0");
    gac_device_close(cpu);
}

static void operand_bytes(void **state)
{
    (void)state;
    gac_task_spec spec = small_gemm;
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_A), 3 * 7 * 2);
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_B), 5 * 7 * 2);
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_C), 0);
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_OUT), 3 * 5 * 2);
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_COUNT), -1);
    spec.dtype = GAC_DTYPE_I8;
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_OUT), 3 * 5 * 4);
    spec.dtype = GAC_DTYPE_F8_E4M3;
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_B), 5 * 7);
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_OUT), 3 * 5 * 2);
    spec.gemm.m = (int64_t)1 << 31;
    spec.gemm.k = 512; /* 2^40 bytes of x are the limit */
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_A), (int64_t)1 << 40);
    spec.gemm.k = 513;
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_A), -1);
    spec.gemm.n = 0; /* one invalid size invalidates all operands */
    assert_int_equal(gac_task_operand_bytes(&spec, GAC_OPERAND_A), -1);
    assert_int_equal(gac_task_operand_bytes(&small_sdpa, GAC_OPERAND_A), 2 * 4 * 5 * 7 * 2);
    assert_int_equal(gac_task_operand_bytes(&small_sdpa, GAC_OPERAND_B), 2 * 2 * 9 * 7 * 2);
    assert_int_equal(gac_task_operand_bytes(&small_sdpa, GAC_OPERAND_C), 2 * 2 * 9 * 11 * 2);
    assert_int_equal(gac_task_operand_bytes(&small_sdpa, GAC_OPERAND_OUT), 2 * 4 * 5 * 11 * 2);
}

static void transfers_are_checked(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    gac_device *cpu = open_cpu();
    gac_task *task = NULL;
    char data[128] = { 0 };
    assert_int_equal(gac_task_create(cpu, &small_gemm, &task, &err), GAC_OK);
    assert_int_equal(gac_task_write(task, GAC_OPERAND_A, data, 41, &err), GAC_USAGE);
    assert_string_equal(err.text, "operand A has 42 bytes, not 41");
    assert_int_equal(gac_task_read(task, GAC_OPERAND_C, data, 0, &err), GAC_USAGE);
    assert_int_equal(gac_task_read(task, GAC_OPERAND_COUNT, data, 1, &err), GAC_USAGE);
    assert_int_equal(gac_task_write(task, GAC_OPERAND_OUT, data, 30, &err), GAC_OK);
    gac_task_free(task);
    gac_device_close(cpu);
}

/* The CPU reference. */

typedef struct numbers {
    double *at[GAC_OPERAND_COUNT];
    void *raw[GAC_OPERAND_COUNT];
} numbers;

static gac_dtype out_dtype(const gac_task_spec *spec)
{
    if (spec->kind == GAC_TASK_GEMM && spec->dtype == GAC_DTYPE_F8_E4M3)
        return GAC_DTYPE_BF16;
    return spec->kind == GAC_TASK_GEMM && spec->dtype == GAC_DTYPE_I8 ? GAC_DTYPE_I32 : spec->dtype;
}

/* Runs spec on the CPU. Returns the operands as stored and as FP64. */
static numbers compute(gac_device *cpu, const gac_task_spec *spec)
{
    gac_error err = GAC_ERROR_INIT;
    gac_task *task = NULL;
    numbers result;
    if (gac_task_create(cpu, spec, &task, &err) != GAC_OK || gac_task_run(task, &err) != GAC_OK)
        fail_msg("%s", err.text);
    for (int i = 0; i < GAC_OPERAND_COUNT; i++) {
        size_t bytes = (size_t)gac_task_operand_bytes(spec, (gac_operand)i);
        gac_dtype dtype = i == GAC_OPERAND_OUT ? out_dtype(spec) : spec->dtype;
        int64_t n = (int64_t)bytes * 8 / gac_dtype_bits(dtype);
        result.raw[i] = malloc(bytes + 1);
        result.at[i] = malloc(((size_t)n + 1) * sizeof(double));
        assert_non_null(result.raw[i]);
        assert_non_null(result.at[i]);
        if (bytes > 0)
            assert_int_equal(gac_task_read(task, (gac_operand)i, result.raw[i], bytes, &err),
                             GAC_OK);
        for (int64_t j = 0; j < n; j++)
            result.at[i][j] = gac_dtype_load(result.raw[i], dtype, j);
    }
    gac_task_free(task);
    return result;
}

static void free_numbers(numbers *result)
{
    for (int i = 0; i < GAC_OPERAND_COUNT; i++) {
        free(result->at[i]);
        free(result->raw[i]);
    }
}

/* Rounds value to dtype with the conversions that test_numbers.c tests. */
static double rounded(gac_dtype dtype, double value)
{
    unsigned char cell[4];
    gac_dtype_store(cell, dtype, 0, value);
    return gac_dtype_load(cell, dtype, 0);
}

static void gemm_is_a_double_loop(void **state)
{
    (void)state;
    static const gac_dtype dtypes[] = { GAC_DTYPE_F16, GAC_DTYPE_BF16, GAC_DTYPE_F32,
                                        GAC_DTYPE_F8_E4M3, GAC_DTYPE_I8 };
    static const int64_t shapes[][3] = { { 1, 1, 1 }, { 3, 5, 7 }, { 2, 70, 33 }, { 17, 64, 129 } };
    gac_device *cpu = open_cpu();
    for (int at = 0; at < 5 * 4 * 2; at++) {
        const int64_t *shape = shapes[at / 2 % 4];
        gac_task_spec spec = { .kind = GAC_TASK_GEMM,
                               .dtype = dtypes[at / 8],
                               .gemm = { shape[0], shape[1], shape[2], at % 2 },
                               .n_sets = 1 };
        numbers x = compute(cpu, &spec);
        int64_t m = shape[0], n = shape[1], k = shape[2];
        double norm2 = 0;
        for (int64_t i = 0; i < m; i++) {
            for (int64_t j = 0; j < n; j++) {
                double sum = 0;
                for (int64_t l = 0; l < k; l++)
                    sum += x.at[GAC_OPERAND_A][i * k + l] *
                           x.at[GAC_OPERAND_B][at % 2 ? l * n + j : j * k + l];
                assert_true(x.at[GAC_OPERAND_OUT][i * n + j] == rounded(out_dtype(&spec), sum));
                norm2 += sum * sum;
            }
        }
        if (m * n > 100 && spec.dtype != GAC_DTYPE_I8) /* device.h promises results near 1 */
            assert_true(norm2 / (double)(m * n) > 0.5 && norm2 / (double)(m * n) < 2);
        free_numbers(&x);
    }
    gac_device_close(cpu);
}

/* Computes one output number by the formula in device.h. */
static double attention(const gac_task_spec *spec, const numbers *x, int64_t b, int64_t h,
                        int64_t i, int64_t d)
{
    const gac_sdpa_shape *s = &spec->sdpa.shape;
    double scale = spec->sdpa.scale > 0 ? spec->sdpa.scale : 1 / sqrt((double)s->qk_head);
    double above = 0, below = 0;
    int64_t kv = b * s->n_kv_heads + h / (s->n_q_heads / s->n_kv_heads);
    for (int64_t j = 0; j < s->n_kv; j++) {
        double score = 0;
        if (s->causal && j > i + s->n_kv - s->n_q)
            continue;
        for (int64_t e = 0; e < s->qk_head; e++)
            score += x->at[GAC_OPERAND_A][((b * s->n_q_heads + h) * s->n_q + i) * s->qk_head + e] *
                     x->at[GAC_OPERAND_B][(kv * s->n_kv + j) * s->qk_head + e];
        above += exp(scale * score) * x->at[GAC_OPERAND_C][(kv * s->n_kv + j) * s->v_head + d];
        below += exp(scale * score);
    }
    return above / below;
}

static void sdpa_is_the_formula(void **state)
{
    (void)state;
    static const gac_sdpa_shape shapes[] = { { 1, 1, 1, 1, 1, 1, 1, false },
                                             { 2, 4, 2, 5, 9, 7, 11, true },
                                             { 1, 6, 2, 3, 3, 8, 8, true },
                                             { 3, 2, 2, 4, 10, 107, 5, false },
                                             { 1, 4, 1, 1, 17, 16, 64, true } };
    gac_device *cpu = open_cpu();
    for (size_t at = 0; at < 2 * sizeof shapes / sizeof *shapes; at++) {
        const gac_sdpa_shape *s = &shapes[at / 2];
        gac_task_spec spec = { .kind = GAC_TASK_SDPA,
                               .dtype = at % 2 ? GAC_DTYPE_BF16 : GAC_DTYPE_F16,
                               .sdpa = { .shape = *s, .scale = at % 3 == 2 ? 0.3 : 0 },
                               .n_sets = 1 };
        double half_step = at % 2 ? 0x1p-8 : 0x1p-11;
        numbers x = compute(cpu, &spec);
        for (int64_t o = 0; o < s->batch * s->n_q_heads * s->n_q * s->v_head; o++) {
            int64_t row = o / s->v_head, head = row / s->n_q;
            double exact = attention(&spec, &x, head / s->n_q_heads, head % s->n_q_heads,
                                     row % s->n_q, o % s->v_head);
            assert_true(fabs(x.at[GAC_OPERAND_OUT][o] - exact) <=
                        fabs(exact) * half_step * 1.0001 + 1e-7);
        }
        free_numbers(&x);
    }
    gac_device_close(cpu);
}

static void sdpa_paths_are_bit_equal(void **state)
{
    (void)state;
    gac_device *cpu = open_cpu();
    gac_task_spec spec = small_sdpa;
    size_t n_bytes = (size_t)gac_task_operand_bytes(&spec, GAC_OPERAND_OUT);
    numbers library = compute(cpu, &spec);
    static const int64_t stored[] = { 11, 16, 128 };
    for (int i = 0; i < 5; i++) {
        spec.sdpa.path = i < 3 ? GAC_SDPA_PADDED : i == 3 ? GAC_SDPA_MATH : GAC_SDPA_FLASH;
        spec.sdpa.stored_head = i < 3 ? stored[i] : 0;
        numbers other = compute(cpu, &spec);
        assert_memory_equal(other.raw[GAC_OPERAND_OUT], library.raw[GAC_OPERAND_OUT], n_bytes);
        free_numbers(&other);
    }
    free_numbers(&library);
    gac_device_close(cpu);
}

static void pads_and_copies(void **state)
{
    (void)state;
    static const gac_dtype dtypes[] = { GAC_DTYPE_U8, GAC_DTYPE_F16, GAC_DTYPE_F32 };
    static const int64_t sizes[][2] = { { 107, 112 }, { 112, 107 }, { 5, 5 }, { 1, 3 } };
    gac_device *cpu = open_cpu();
    for (int at = 0; at < 12; at++) {
        int64_t from = sizes[at % 4][0], to = sizes[at % 4][1];
        gac_task_spec spec = {
            .kind = GAC_TASK_PAD, .dtype = dtypes[at / 4], .pad = { 3, from, to }, .n_sets = 1
        };
        numbers x = compute(cpu, &spec);
        for (int64_t i = 0; i < 3 * to; i++) {
            double expected = i % to < from ? x.at[GAC_OPERAND_A][i / to * from + i % to] : 0;
            assert_true(x.at[GAC_OPERAND_OUT][i] == expected);
        }
        free_numbers(&x);
    }
    gac_task_spec copy = { .kind = GAC_TASK_COPY, .dtype = GAC_DTYPE_U8, .copy_bytes = 1001 };
    numbers x = compute(cpu, &copy);
    assert_memory_equal(x.raw[GAC_OPERAND_A], x.raw[GAC_OPERAND_OUT], 1001);
    free_numbers(&x);
    gac_device_close(cpu);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plugins_that_do_not_load),
        cmocka_unit_test(device_names),
        cmocka_unit_test(plugins_are_looked_for),
        cmocka_unit_test(no_plugin_from_the_current_folder),
        cmocka_unit_test(plugins_are_files),
        cmocka_unit_test(fake_works_and_describes_itself),
        cmocka_unit_test(declines_and_kernels),
        cmocka_unit_test(cpu_says_what_it_cannot),
        cmocka_unit_test(cpu_memory_is_finite),
        cmocka_unit_test(specs_are_checked),
        cmocka_unit_test(operand_bytes),
        cmocka_unit_test(transfers_are_checked),
        cmocka_unit_test(gemm_is_a_double_loop),
        cmocka_unit_test(sdpa_is_the_formula),
        cmocka_unit_test(sdpa_paths_are_bit_equal),
        cmocka_unit_test(pads_and_copies),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
