#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include <gac/timing.h>

#include "device/check_task.h"
#include "fake_model.h"

static gac_timing timing_of(int n, const double *samples)
{
    gac_timing timing = { .n_samples = n };
    memcpy(timing.samples_us, samples, (size_t)n * sizeof *samples);
    gac_timing_summarise(&timing);
    return timing;
}

/* Returns n samples in equal steps from first, shuffled. */
static gac_timing ladder(int n, double first, double step)
{
    double samples[GAC_MAX_SAMPLES];
    for (int i = 0; i < n; i++)
        samples[i] = first + step * (i * 7 % n); /* n must not be a multiple of 7 */
    return timing_of(n, samples);
}

#define assert_near(value, expected) \
    do { \
        double value_ = (value), expected_ = (expected); \
        if (!(fabs(value_ - expected_) <= 1e-9 * fabs(expected_) + 1e-12)) \
            fail_msg("%s is %.12g, not %.12g", #value, value_, expected_); \
    } while (0)

static gac_device *open_fake(const char *mode)
{
    gac_error err = GAC_ERROR_INIT;
    gac_device *device = NULL;
    setenv("GAC_BACKEND_PATH", FAKE_FOLDER "/libgac_cuda.so", 1);
    mode ? setenv("GAC_FAKE", mode, 1) : unsetenv("GAC_FAKE");
    if (gac_device_open("cuda", &device, &err) != GAC_OK)
        fail_msg("%s", err.text);
    unsetenv("GAC_FAKE");
    unsetenv("GAC_BACKEND_PATH");
    return device;
}

static const gac_task_spec square = { .kind = GAC_TASK_GEMM,
                                      .dtype = GAC_DTYPE_F16,
                                      .gemm = { 4096, 4096, 4096, false } };

static void summaries(void **state)
{
    (void)state;
    const double samples[] = { 9, 1, 3, 7, 5 }; /* not sorted; they must stay so */
    gac_timing timing = timing_of(5, samples);
    assert_near(timing.median_us, 5);
    assert_near(timing.spread_us, 2); /* from 3 to 7 */
    assert_near(timing.noise, 1.2533 / 0.6745 * 2 / sqrt(5) / 5);
    assert_memory_equal(timing.samples_us, samples, sizeof samples);
    timing = timing_of(4, samples);
    assert_near(timing.median_us, 5); /* of 1 3 7 9 */
    assert_near(timing.spread_us, (7.5 - 2.5) / 2);
    timing = timing_of(1, samples);
    assert_near(timing.median_us, 9);
    assert_true(timing.spread_us == 0 && timing.noise == 0);
    const double outlier[] = { 10, 10, 10, 10, 10, 10, 10, 10, 1e6 };
    timing = timing_of(9, outlier);
    assert_true(timing.median_us == 10 && timing.noise == 0);
}

static void clear_differences(void **state)
{
    (void)state;
    static const int counts[][2] = { { 5, 5 }, { 9, 9 }, { 30, 30 }, { 256, 256 }, { 5, 100 } };
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        gac_timing a = ladder(counts[i][0], 100, 0.01), b = ladder(counts[i][1], 110, 0.01);
        assert_int_equal(gac_timing_compare(&a, &b, 0.01), GAC_FASTER);
        assert_int_equal(gac_timing_compare(&b, &a, 0.01), GAC_SLOWER);
        /* the caller does not care about differences below 20 % */
        assert_int_equal(gac_timing_compare(&b, &a, 0.2), GAC_AMBIGUOUS);
        assert_int_equal(gac_timing_compare(&a, &a, 0), GAC_AMBIGUOUS);
    }
    assert_string_equal(gac_comparison_name(GAC_FASTER), "faster");
    assert_string_equal(gac_comparison_name(GAC_SLOWER), "slower");
    assert_string_equal(gac_comparison_name(GAC_AMBIGUOUS), "ambiguous");
}

static void too_few_samples_tell_nothing(void **state)
{
    (void)state;
    gac_timing four = ladder(4, 100, 0.01), other = ladder(4, 200, 0.01), none = { .n_samples = 0 };
    /* Of the 70 orders of 4 and 4 samples, 2 are fully separated, which is more
     * than 1 %. */
    assert_int_equal(gac_timing_compare(&four, &other, 0.01), GAC_AMBIGUOUS);
    assert_int_equal(gac_timing_compare(&none, &other, 0.01), GAC_AMBIGUOUS);
    assert_int_equal(gac_timing_compare(&other, &none, 0.01), GAC_AMBIGUOUS);
}

/* The critical values of U at 1 %, two-sided, from printed tables: 5,5: 0; 8,8:
 * 7; 10,10: 16; 20,20: 105. b is shifted so that exactly u pairs are reversed. */
static void exact_limits_are_the_tables(void **state)
{
    (void)state;
    static const int table[][2] = { { 5, 0 }, { 8, 7 }, { 10, 16 }, { 20, 105 } };
    for (size_t t = 0; t < sizeof table / sizeof *table; t++) {
        int n = table[t][0];
        for (int u = table[t][1]; u <= table[t][1] + 1; u++) {
            double a[GAC_MAX_SAMPLES], b[GAC_MAX_SAMPLES];
            for (int i = 0; i < n; i++) {
                a[i] = 100 + i;
                b[i] = 1000 + i;
            }
            for (int i = 0, left = u; left > 0; i++) { /* b[i] is below some of a, from its top */
                int wrong = left < n ? left : n;
                b[i] = a[n - wrong] - 0.5 + 0.001 * i;
                left -= wrong;
            }
            gac_timing x = timing_of(n, a), y = timing_of(n, b);
            assert_int_equal(gac_timing_compare(&x, &y, 0),
                             u == table[t][1] ? GAC_FASTER : GAC_AMBIGUOUS);
        }
    }
}

static void overlap_is_ambiguous(void **state)
{
    (void)state;
    gac_timing a = ladder(9, 100, 1), b = ladder(9, 101.5, 1);
    assert_int_equal(gac_timing_compare(&a, &b, 0.01), GAC_AMBIGUOUS);
    a = ladder(30, 100, 1);
    b = ladder(30, 102.5, 1);
    assert_int_equal(gac_timing_compare(&a, &b, 0.01), GAC_AMBIGUOUS);
    const double same[] = { 5, 5, 5, 5, 5, 5, 5, 5, 5, 5 };
    a = timing_of(10, same);
    assert_int_equal(gac_timing_compare(&a, &a, 0), GAC_AMBIGUOUS);
    /* Almost all samples are tied. The medians differ, but that is not
     * significant. */
    const double most[] = { 5, 5, 5, 5, 6, 6, 6, 6, 6, 6 };
    const double half[] = { 5, 5, 5, 5, 5, 5, 6, 6, 6, 6 };
    a = timing_of(10, half);
    b = timing_of(10, most);
    assert_int_equal(gac_timing_compare(&a, &b, 0.01), GAC_AMBIGUOUS);
}

/* 5 against 5 differ only if all pairs agree. A tie counts as half a reversed
 * pair. */
static void a_tie_is_no_agreement(void **state)
{
    (void)state;
    const double low[] = { 100, 101, 102, 103, 104 }, high[] = { 104, 105, 106, 107, 108 };
    const double above[] = { 105, 106, 107, 108, 109 };
    gac_timing a = timing_of(5, low), b = timing_of(5, high), c = timing_of(5, above);
    assert_int_equal(gac_timing_compare(&a, &b, 0.01), GAC_AMBIGUOUS);
    assert_int_equal(gac_timing_compare(&a, &c, 0.01), GAC_FASTER);
}

/* Returns n samples: n_low of them are 5, the others 6. */
static gac_timing two_values(int n, int n_low)
{
    double samples[GAC_MAX_SAMPLES];
    for (int i = 0; i < n; i++)
        samples[i] = i < n_low ? 5 : 6;
    return timing_of(n, samples);
}

/* Ties lower the variance of the test. With 26 and 14 of 40 that decides: z =
 * 2.66 is significant at 1 %; without the correction z = 2.30 is not. */
static void ties_count_in_large_samples(void **state)
{
    (void)state;
    gac_timing a = two_values(40, 26), b = two_values(40, 14);
    assert_int_equal(gac_timing_compare(&a, &b, 0.01), GAC_FASTER);
    assert_int_equal(gac_timing_compare(&b, &a, 0.01), GAC_SLOWER);
    a = two_values(40, 25);
    b = two_values(40, 15);
    assert_int_equal(gac_timing_compare(&a, &b, 0.01), GAC_AMBIGUOUS);
}

static gac_timing measure(gac_device *device, const gac_task_spec *spec,
                          const gac_timing_rules *rules)
{
    gac_error err = GAC_ERROR_INIT;
    gac_task *task = NULL;
    gac_timing timing;
    if (gac_task_create(device, spec, &task, &err) != GAC_OK ||
        gac_timing_measure(device, task, rules, &timing, &err) != GAC_OK)
        fail_msg("%s", err.text);
    assert_string_equal(err.text, "");
    gac_task_free(task);
    return timing;
}

static const gac_timing_rules patient = { 3000, 1000, 9, 100, 0.004, INFINITY, 2000, 0 };

static void finds_the_time(void **state)
{
    (void)state;
    gac_device *device = open_fake(NULL);
    gac_timing timing = measure(device, &square, &patient);
    assert_true(timing.steady && timing.graph);
    assert_true(timing.n_samples >= 9 && timing.n_samples < 100);
    /* The calls that were made count, not those that were asked for. */
    assert_int_equal(timing.n_calls,
                     FAKE_SETS * (int)ceil(1000 / fake_time_us(&square) / FAKE_SETS));
    assert_true(fabs(timing.median_us / fake_time_us(&square) - 1) < 0.005);
    assert_true(timing.n_discarded == 0 && timing.n_power_limited == 0);
    assert_int_equal(timing.clock_mhz_min, 1965);
    assert_int_equal(timing.clock_mhz_max, 1980);
    assert_int_equal(timing.temperature_c_max, 45);
    gac_timing_rules rules = patient;
    rules.graph_below_us = 0;
    timing = measure(device, &square, &rules);
    assert_false(timing.graph);
    assert_true(timing.median_us > fake_time_us(&square) + FAKE_LAUNCH_US / 2);
    /* A short call: its first sample is mostly launch time. */
    gac_task_spec copy = { .kind = GAC_TASK_COPY, .dtype = GAC_DTYPE_U8, .copy_bytes = 16 };
    timing = measure(device, &copy, NULL);
    assert_true(timing.n_calls * timing.median_us > 900);
    gac_device_close(device);
}

static void tells_tiers_apart(void **state)
{
    (void)state;
    gac_device *device = open_fake(NULL);
    gac_task_spec odd = square, next = square;
    odd.gemm.k = 4095;
    next.gemm.k = 4104;
    gac_timing at_4096 = measure(device, &square, NULL), at_4095 = measure(device, &odd, NULL);
    gac_timing again = measure(device, &square, NULL), at_4104 = measure(device, &next, NULL);
    assert_int_equal(gac_timing_compare(&at_4096, &at_4095, 0.01), GAC_FASTER);
    assert_int_equal(gac_timing_compare(&at_4095, &at_4096, 0.01), GAC_SLOWER);
    assert_int_equal(gac_timing_compare(&at_4096, &again, 0.01), GAC_AMBIGUOUS);
    assert_int_equal(gac_timing_compare(&at_4096, &at_4104, 0.01), GAC_AMBIGUOUS);
    gac_device_close(device);
}

static void noise_runs_to_the_limit(void **state)
{
    (void)state;
    gac_device *device = open_fake("noisy");
    gac_timing_rules rules = patient;
    rules.max_samples = 32;
    gac_timing timing = measure(device, &square, &rules);
    assert_false(timing.steady);
    assert_int_equal(timing.n_samples, 32);
    rules.max_samples = 100;
    rules.sample_us = 1e5; /* many calls per sample: 2 s suffice for about 20 samples */
    rules.max_time_us = 2e6;
    timing = measure(device, &square, &rules);
    assert_in_range(timing.n_samples, 10, 30);
    rules.max_time_us = 0; /* no time at all: the minimum of samples, in whole batches */
    timing = measure(device, &square, &rules);
    assert_false(timing.steady);
    assert_int_equal(timing.n_samples, 10);
    gac_device_close(device);
}

static void throttled_samples_are_discarded(void **state)
{
    (void)state;
    gac_device *device = open_fake("throttle"), *power = open_fake("power"),
               *blind = open_fake("blind");
    static const char *const useless[] = { "hot", "brake" };
    gac_error err = GAC_ERROR_INIT;
    gac_task *task = NULL;
    gac_timing timing;
    gac_timing_rules rules = patient;
    rules.min_samples = rules.max_samples = 30;
    timing = measure(device, &square, &rules);
    /* Reading 5 of 9 is hot. It costs the two batches around it, of 8 batches
     * of 5. */
    assert_int_equal(timing.n_samples, 30);
    assert_int_equal(timing.n_discarded, 10);
    assert_int_equal(timing.clock_mhz_min, 1965); /* of the samples kept */
    assert_int_equal(timing.temperature_c_max, 92);
    for (int i = 0; i < 2; i++) {
        gac_device *card = open_fake(useless[i]);
        assert_int_equal(gac_task_create(card, &square, &task, &err), GAC_OK);
        assert_int_equal(gac_timing_measure(card, task, &rules, &timing, &err), GAC_CHECK);
        assert_string_equal(err.text,
                            "all 30 samples were taken while heat or hardware throttled the card");
        assert_int_equal(timing.n_samples, 0);
        gac_task_free(task);
        gac_device_close(card);
    }
    /* At most max_samples are discarded, whatever min_samples is. */
    rules = patient;
    rules.max_noise = 0;
    timing = measure(device, &square, &rules);
    assert_int_equal(timing.n_samples, 100);
    assert_true(timing.n_discarded > rules.min_samples);
    rules = patient;
    rules.min_samples = rules.max_samples = 30;
    timing = measure(power, &square, &rules);
    assert_int_equal(timing.n_samples, 30);
    assert_int_equal(timing.n_discarded, 0);
    assert_int_equal(timing.n_power_limited, 30);
    timing = measure(blind, &square, &rules);
    assert_int_equal(timing.n_samples, 30);
    assert_int_equal(timing.clock_mhz_max, -1);
    gac_device_close(blind);
    gac_device_close(power);
    gac_device_close(device);
}

static void a_clock_that_dips_is_waited_for(void **state)
{
    (void)state;
    gac_device *dip = open_fake("dip"), *capped = open_fake("capped"), *blind = open_fake("blind");
    const double true_us = fake_time_us(&square), slow_us = true_us * 1980 / 1700;
    gac_timing_rules rules = patient;
    /* Without waiting, the lower clock is measured. */
    gac_timing timing = measure(dip, &square, &rules);
    assert_true(timing.median_us > 1.1 * true_us && timing.n_unsettled == 0);
    assert_int_equal(timing.clock_mhz_max, 1700);
    gac_device_close(dip);

    dip = open_fake("dip");
    rules.settle_us = 10e6;
    timing = measure(dip, &square, &rules);
    assert_true(fabs(timing.median_us / true_us - 1) < 0.005 && timing.steady);
    /* after the first batch, batches have one sample */
    assert_int_equal(timing.n_unsettled, 5 + 7);
    assert_true(timing.clock_mhz_min >= 1965);

    rules.settle_us = 100e3;
    timing = measure(capped, &square, &rules);
    assert_true(fabs(timing.median_us / slow_us - 1) < 0.005 && timing.steady);
    assert_true(timing.n_unsettled >= 5 && timing.n_unsettled <= 5 + 3);
    assert_true(timing.n_samples >= 9);
    assert_int_equal(timing.clock_mhz_min, 1700);
    assert_int_equal(timing.clock_mhz_max, 1700);
    timing = measure(capped, &square, &rules); /* the lower clock is remembered */
    assert_true(fabs(timing.median_us / slow_us - 1) < 0.005 && timing.n_unsettled == 0);
    timing = measure(blind, &square, &rules);
    assert_true(timing.n_unsettled == 0 && timing.steady);
    rules.settle_us = -1;
    gac_task *task = NULL;
    gac_error err = GAC_ERROR_INIT;
    assert_int_equal(gac_task_create(dip, &square, &task, &err), GAC_OK);
    assert_int_equal(gac_timing_measure(dip, task, &rules, &timing, &err), GAC_USAGE);
    gac_task_free(task);
    gac_device_close(blind);
    gac_device_close(capped);
    gac_device_close(dip);
}

/* If the clock drops for good, only the samples after that count. */
static void a_clock_that_stays_down_starts_over(void **state)
{
    (void)state;
    gac_device *late = open_fake("late");
    gac_timing_rules rules = patient;
    rules.settle_us = 50e3;
    rules.min_samples = 30;
    gac_timing timing = measure(late, &square, &rules);
    assert_true(fabs(timing.median_us / fake_time_us(&square) / 1980 * 1700 - 1) < 0.005);
    assert_int_equal(timing.clock_mhz_max, 1700);
    assert_true(timing.n_samples >= 30 && timing.steady);
    assert_int_equal(timing.n_power_limited, 0); /* the limited samples were discarded */
    timing = measure(late, &square, &rules);
    assert_int_equal(timing.n_unsettled, 0);
    gac_device_close(late);
}

/* A card at its power limit recovers, so the next task waits again. */
static void a_clock_held_down_by_power_is_waited_for_again(void **state)
{
    (void)state;
    gac_device *strained = open_fake("strained");
    gac_timing_rules rules = patient;
    rules.settle_us = 50e3;
    gac_timing timing = measure(strained, &square, &rules);
    assert_true(timing.n_unsettled > 0 && timing.clock_mhz_max == 1700);
    assert_true(timing.rested_us >= 25e3);
    timing = measure(strained, &square, &rules);
    assert_true(timing.n_unsettled > 0);
    gac_device_close(strained);
}

static void rules_are_checked(void **state)
{
    (void)state;
    gac_device *device = open_fake(NULL);
    gac_error err = GAC_ERROR_INIT;
    gac_task *task = NULL;
    gac_timing timing;
    assert_int_equal(gac_task_create(device, &square, &task, &err), GAC_OK);
    for (int i = 0; i < 5; i++) {
        gac_timing_rules rules = GAC_TIMING_RULES_INIT;
        if (i == 0)
            rules.min_samples = 0;
        else if (i == 1)
            rules.max_samples = GAC_MAX_SAMPLES + 1;
        else if (i == 2)
            rules.max_samples = rules.min_samples - 1;
        else if (i == 3)
            rules.sample_us = NAN;
        else
            rules.max_time_us = -1;
        assert_int_equal(gac_timing_measure(device, task, &rules, &timing, &err), GAC_USAGE);
    }
    gac_task_free(task);
    gac_device_close(device);
}

static void cpu_can_be_timed(void **state)
{
    (void)state;
    gac_error err = GAC_ERROR_INIT;
    gac_device *cpu = NULL;
    gac_timing_rules rules = { 0, 0, 3, 3, 1, 1, 0, 0 };
    gac_task_spec spec = { .kind = GAC_TASK_GEMM, .dtype = GAC_DTYPE_F16, .gemm = { 4, 4, 4, 0 } };
    assert_int_equal(gac_device_open("cpu", &cpu, &err), GAC_OK);
    gac_timing timing = measure(cpu, &spec, &rules);
    assert_int_equal(timing.n_samples, 3);
    assert_true(timing.median_us > 0);
    assert_int_equal(timing.temperature_c_max, -1);
    gac_device_close(cpu);
}

/* Kernel names from an H200, truncated to 110 characters, and others as
 * profilers print them or as the linker mangles them. */
static void families(void **state)
{
    (void)state;
    static const char *const table[][2] = {
        { "nvjet_sm90_hsh_256x128_64x4_1x2_h_bz_coopA_TNT", "nvjet" },
        { "nvjet_hsh_64x8_64x16_4x1_v_bz_splitK_TNT", "nvjet" },
        { "void cutlass::Kernel2<cutlass_80_tensorop_f16_s16816gemm_f16_128x256_32x3_tn_align2>"
          "(cutlass_80_tensorop_f16_s",
          "cutlass-align2" },
        { "void cutlass::Kernel2<cutlass_75_tensorop_f16_s1688gemm_f16_128x128_tn_align1>"
          "(cutlass_75_tensorop_f16_s1688ge",
          "cutlass-align1" },
        { "_ZN7cutlass7Kernel2I66cutlass_80_tensorop_bf16_s16816gemm_bf16_64x64_sliced1x2_ldg8_tn_"
          "align4EEvNT_6ParamsE",
          "cutlass-align4" },
        { "_ZN7cutlass7Kernel2I52cutlass_80_wmma_tensorop_f16_s161616gemm_f16_16x16_128x2_tn_"
          "align8EEvNT_6ParamsE",
          "cutlass-align8" },
        { "void "
          "cutlass::Kernel2<cutlass_80_tensorop_i16832gemm_s8_128x128_64x5_tn_align16>(Params)",
          "cutlass-align16" },
        { "_ZN7cutlass13device_kernelINS_4gemm6kernel13GemmUniversal", "cutlass" },
        { "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7_64x128x128_4x1x1_"
          "cga1x1x1_kernel0_0",
          "cudnn-flash" },
        { "void pytorch_flash::flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false, "
          "false, cutlass::half_t, F",
          "fa2" },
        { "_ZN13pytorch_flash24flash_fwd_splitkv_kernelI23Flash_fwd_kernel_traitsILi128E", "fa2" },
        { "fmha_cutlassF_f16_aligned_64x128_rf_sm80(PyTorchMemEffAttention::AttentionKernel<"
          "cutlass::half_t>::Params)",
          "mem-efficient" },
        { "void at::native::vectorized_elementwise_kernel<8, at::native::FillFunctor<c10::Half>, "
          "std::array<char*, 1ul> >",
          "fill" },
        { "void at::native::elementwise_kernel<128, 4, at::native::gpu_kernel_impl_nocast<"
          "at::native::direct_copy_kernel_",
          "copy" },
        { "void at::native::vectorized_elementwise_kernel<4, at::native::CUDAFunctor_add<float> >",
          "elementwise" },
        { "Memset (Device)", "fill" },
        { "[CUDA memcpy DtoD]", "copy" },
        { "void cublasLt::splitKreduce_kernel<32, 16, int, float, __half, float, __half>(Params)",
          "splitk" },
        { "sm80_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize64x64x64_stage4_warpsize2x2x1_"
          "tensor16x8x16",
          "xmma" },
        { "sm90_xmma_gemm_f16f16_f16f32_f32_tn_n_tilesize128x128x64", "xmma" },
        { "ampere_fp16_s16816gemm_fp16_64x64_ldg8_f2f_stages_64x5_tn", "xmma" },
        { "void gemv2T_kernel_val<int, int, __half, __half, __half, float, 128, 16, 4, 4, false>",
          "gemv" },
        { "_ZN5gemvx6kernelIii6__halfS1_S1_fLb0ELb1ELb1ELb0ELi7ELb0E18cublasGemvParamsEx", "gemv" },
        { "void dot_kernel<float, 128, 0, cublasDotParams<cublasGemvTensor<__half> > >", "dot" },
        { "void (anonymous namespace)::cunn_SoftMaxForward<8, float>", "softmax" },
        { "_Z18gac_softmax_kernelI6__halfEvPT_", "softmax" },
        { "_Z22gac_flash_prefill_bf16PKvS0_S0_Pv", "gac-flash" },
        { "gac_pad_kernel", "gac-pad" },
        { "void gemmSN_TN_kernel<float, 128, 16, 2, 4, 6, 7, false>", "gemm" },
        { "my_own_kernel", "other" },
        { "", "other" },
    };
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        if (strcmp(gac_kernel_family(table[i][0]), table[i][1]) != 0)
            fail_msg("%s is %s, not %s", table[i][0], gac_kernel_family(table[i][0]), table[i][1]);
    }
    assert_string_equal(gac_kernel_family(NULL), "other");
}

static void reference_catches_faults(void **state)
{
    (void)state;
    gac_device *good = open_fake(NULL), *wrong = open_fake("wrong"), *silent = open_fake("silent");
    static const gac_task_spec specs[] = {
        { .kind = GAC_TASK_GEMM, .dtype = GAC_DTYPE_F16, .gemm = { 5, 7, 9, false } },
        { .kind = GAC_TASK_GEMM, .dtype = GAC_DTYPE_I8, .gemm = { 5, 16, 32, true } },
        { .kind = GAC_TASK_GEMM, .dtype = GAC_DTYPE_F32, .gemm = { 3, 4, 5, false } },
        { .kind = GAC_TASK_SDPA,
          .dtype = GAC_DTYPE_BF16,
          .sdpa = { .shape = { 1, 2, 1, 3, 4, 5, 6, true }, .path = GAC_SDPA_FLASH } },
        { .kind = GAC_TASK_PAD, .dtype = GAC_DTYPE_U8, .pad = { 30, 9, 7 } },
        { .kind = GAC_TASK_COPY, .dtype = GAC_DTYPE_U8, .copy_bytes = 100 },
    };
    for (size_t i = 0; i < sizeof specs / sizeof *specs; i++) {
        gac_error err = GAC_ERROR_INIT;
        gac_difference is = { -1, -1, -1 };
        double tolerance = gac_task_tolerance(&specs[i]);
        if (gac_task_check(good, &specs[i], 42 + i, &is, &err) != GAC_OK)
            fail_msg("%s", err.text);
        assert_true(is.relative == 0 && is.largest == 0 && is.n_elements > 0);
        assert_int_equal(gac_task_check(wrong, &specs[i], 42 + i, &is, &err), GAC_OK);
        assert_true(is.relative > tolerance && is.largest > 0);
        assert_int_equal(gac_task_check(silent, &specs[i], 42 + i, &is, &err), GAC_OK);
        assert_true(isinf(is.relative) && is.relative > tolerance);
    }
    gac_error err = GAC_ERROR_INIT;
    gac_difference is;
    gac_task_spec odd = specs[1];
    odd.gemm.k = 31;
    assert_int_equal(gac_task_check(good, &odd, 1, &is, &err), GAC_CHECK);
    gac_device_close(silent);
    gac_device_close(wrong);
    gac_device_close(good);
}

static void facts_as_json(void **state)
{
    (void)state;
    gac_device *device = open_fake(NULL);
    json_t *machine = gac_timing_machine(device);
    assert_non_null(machine);
    assert_string_equal(json_string_value(json_object_get(machine, "gpu")), "NVIDIA H200 (fake)");
    assert_int_equal(json_integer_value(json_object_get(machine, "sms")), 132);
    assert_true(json_is_string(json_object_get(json_object_get(machine, "host"), "system")));
    json_decref(machine);
    gac_timing timing = measure(device, &square, NULL);
    json_t *with = gac_timing_json(&timing, true), *without = gac_timing_json(&timing, false);
    assert_non_null(with);
    assert_non_null(without);
    assert_int_equal(json_array_size(json_object_get(with, "samples_us")), timing.n_samples);
    assert_null(json_object_get(without, "samples_us"));
    assert_true(json_real_value(json_object_get(without, "median_us")) == timing.median_us);
    assert_true(json_is_true(json_object_get(without, "graph")));
    json_decref(with);
    json_decref(without);
    gac_device_close(device);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(summaries),
        cmocka_unit_test(clear_differences),
        cmocka_unit_test(too_few_samples_tell_nothing),
        cmocka_unit_test(exact_limits_are_the_tables),
        cmocka_unit_test(overlap_is_ambiguous),
        cmocka_unit_test(finds_the_time),
        cmocka_unit_test(tells_tiers_apart),
        cmocka_unit_test(noise_runs_to_the_limit),
        cmocka_unit_test(ties_count_in_large_samples),
        cmocka_unit_test(a_tie_is_no_agreement),
        cmocka_unit_test(throttled_samples_are_discarded),
        cmocka_unit_test(a_clock_that_dips_is_waited_for),
        cmocka_unit_test(a_clock_that_stays_down_starts_over),
        cmocka_unit_test(a_clock_held_down_by_power_is_waited_for_again),
        cmocka_unit_test(rules_are_checked),
        cmocka_unit_test(cpu_can_be_timed),
        cmocka_unit_test(families),
        cmocka_unit_test(reference_catches_faults),
        cmocka_unit_test(facts_as_json),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
