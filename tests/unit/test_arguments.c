/* Public functions refuse arguments that make no sense: GAC_USAGE, one line, no
 * crash. tests/house/arguments.py sees to it that every function is here. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "device/check_task.h"
#include "scratch.h"
#include "small_llama.h"

#include <gac/gac.h>

#include <jansson.h>

/* Not NULL; a function that looked there would find a wild pointer. */
static char somewhere[1 << 16];
#define SOME ((void *)somewhere)

/* function with the arguments given says that it needs the one that is NULL. */
#define NEEDS(function, argument, ...) \
    assert_fails(function(__VA_ARGS__), GAC_USAGE, #function ": " #argument " is NULL")

static gac_status visit(void *user, const char *path, gac_entry entry, unsigned mode,
                        gac_error *err)
{
    (void)user, (void)path, (void)entry, (void)mode, (void)err;
    return GAC_OK;
}

static void null_compress(void **state)
{
    (void)state;
    NEEDS(gac_compress_run, checkpoint, NULL, SOME, SOME, SOME, SOME, err);
    NEEDS(gac_compress_run, model, SOME, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_compress_run, out, SOME, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_compress_run, options, SOME, SOME, SOME, NULL, SOME, err);
    NEEDS(gac_compress_run, result, SOME, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_model_code, stated, NULL, SOME, err);
    NEEDS(gac_model_code, out, SOME, NULL, err);
    NEEDS(gac_model_list_modules, model, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_model_list_modules, config, SOME, SOME, NULL, SOME, err);
    NEEDS(gac_model_list_modules, out, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_model_state_adapter, model, NULL, SOME, SOME, err);
    NEEDS(gac_model_state_adapter, sizes, SOME, NULL, SOME, err);
    NEEDS(gac_model_state_adapter, config, SOME, SOME, NULL, err);
    NEEDS(gac_model_loading, model, NULL, SOME, err);
    NEEDS(gac_model_loading, out, SOME, NULL, err);
    NEEDS(gac_model_add_code, stated, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_model_add_code, modules, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_model_add_code, config, SOME, SOME, NULL, SOME, err);
    NEEDS(gac_model_add_code, code, SOME, SOME, SOME, NULL, err);
}

static void null_base(void **state)
{
    (void)state;
    NEEDS(gac_team_join, out, NULL, err);
    NEEDS(gac_file_open, path, NULL, SOME, err);
    NEEDS(gac_file_open, out, SOME, NULL, err);
    NEEDS(gac_file_open_inside, directory, NULL, SOME, SOME, err);
    NEEDS(gac_file_open_inside, name, SOME, NULL, SOME, err);
    NEEDS(gac_file_open_inside, out, SOME, SOME, NULL, err);
    NEEDS(gac_file_read, file, NULL, 1, SOME, 1, err);
    NEEDS(gac_file_slurp, file, NULL, 1, SOME, SOME, err);
    NEEDS(gac_file_slurp, out, SOME, 1, NULL, SOME, err);
    NEEDS(gac_file_slurp, n_bytes, SOME, 1, SOME, NULL, err);
    NEEDS(gac_new_file_create, path, NULL, false, SOME, err);
    NEEDS(gac_new_file_create, out, SOME, false, NULL, err);
    NEEDS(gac_new_file_write, file, NULL, SOME, 1, err);
    NEEDS(gac_new_file_commit, file, NULL, err);
    NEEDS(gac_json_parse, text, NULL, 1, SOME, SOME, err);
    NEEDS(gac_json_parse, source, SOME, 1, NULL, SOME, err);
    NEEDS(gac_json_parse, out, SOME, 1, SOME, NULL, err);
    NEEDS(gac_json_parse_exact, text, NULL, 1, SOME, SOME, err);
    NEEDS(gac_json_parse_exact, source, SOME, 1, NULL, SOME, err);
    NEEDS(gac_json_parse_exact, out, SOME, 1, SOME, NULL, err);
    NEEDS(gac_json_load, file, NULL, 1, SOME, err);
    NEEDS(gac_json_load, out, SOME, 1, NULL, err);
    NEEDS(gac_json_text, text, SOME, 1, NULL, SOME, err);
    NEEDS(gac_json_print, stream, NULL, SOME, err);
}

static void null_checkpoint(void **state)
{
    (void)state;
    NEEDS(gac_checkpoint_open, path, NULL, SOME, SOME, err);
    NEEDS(gac_checkpoint_open, out, SOME, SOME, NULL, err);
    NEEDS(gac_checkpoint_sketch, like, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_checkpoint_sketch, shapes, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_checkpoint_sketch, out, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_checkpoint_read, checkpoint, NULL, 1, 1, SOME, 1, err);
    NEEDS(gac_checkpoint_map, checkpoint, NULL, 1, SOME, err);
    NEEDS(gac_checkpoint_map, data, SOME, 1, NULL, err);
    NEEDS(gac_checkpoint_each_file, checkpoint, NULL, visit, SOME, err);
    NEEDS(gac_checkpoint_open_file, checkpoint, NULL, SOME, SOME, err);
    NEEDS(gac_checkpoint_open_file, path, SOME, NULL, SOME, err);
    NEEDS(gac_checkpoint_open_file, out, SOME, SOME, NULL, err);
    NEEDS(gac_tensor_hash_start, checkpoint, NULL, 1, SOME, err);
    NEEDS(gac_tensor_hash_start, out, SOME, 1, NULL, err);
    NEEDS(gac_writer_create, path, NULL, SOME, SOME, err);
    NEEDS(gac_writer_create, out, SOME, SOME, NULL, err);
    NEEDS(gac_writer_add, writer, NULL, SOME, (gac_dtype)0, 1, SOME, SOME, err);
    NEEDS(gac_writer_add, name, SOME, NULL, (gac_dtype)0, 1, SOME, SOME, err);
    NEEDS(gac_writer_set_file, writer, NULL, 1, SOME, SOME, err);
    NEEDS(gac_writer_set_file, file, SOME, 1, NULL, SOME, err);
    NEEDS(gac_writer_layout, writer, NULL, err);
    NEEDS(gac_writer_write, writer, NULL, 1, 1, SOME, 1, err);
    NEEDS(gac_writer_copy, writer, NULL, 1, 1, SOME, 1, 1, 1, err);
    NEEDS(gac_writer_copy, checkpoint, SOME, 1, 1, NULL, 1, 1, 1, err);
    NEEDS(gac_writer_leave_zero, writer, NULL, 1, 1, err);
    NEEDS(gac_writer_read_back, writer, NULL, 1, 1, SOME, 1, err);
    NEEDS(gac_writer_rewrite, writer, NULL, 1, 1, SOME, 1, err);
    NEEDS(gac_writer_replace_metadata, writer, NULL, SOME, SOME, err);
    NEEDS(gac_writer_replace_metadata, key, SOME, NULL, SOME, err);
    NEEDS(gac_writer_replace_metadata, text, SOME, SOME, NULL, err);
    NEEDS(gac_writer_complete, writer, NULL, err);
    NEEDS(gac_writer_carry, writer, NULL, SOME, SOME, err);
    NEEDS(gac_writer_carry, checkpoint, SOME, NULL, SOME, err);
    NEEDS(gac_writer_add_file, writer, NULL, SOME, SOME, 1, err);
    NEEDS(gac_writer_add_file, name, SOME, NULL, SOME, 1, err);
    NEEDS(gac_writer_finish, writer, NULL, err);
    NEEDS(gac_convert_gguf, from, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_convert_gguf, to, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_convert_gguf, result, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_convert_torch, from, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_convert_torch, to, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_convert_torch, result, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_convert_llama2c, from, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_convert_llama2c, to, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_convert_llama2c, result, SOME, SOME, SOME, NULL, err);
}

static void null_device(void **state)
{
    (void)state;
    NEEDS(gac_device_open, name, NULL, SOME, err);
    NEEDS(gac_device_open, out, SOME, NULL, err);
    NEEDS(gac_device_find_plugin, path, NULL, err);
    NEEDS(gac_device_telemetry, device, NULL, SOME, err);
    NEEDS(gac_device_telemetry, out, SOME, NULL, err);
    NEEDS(gac_task_create, device, NULL, SOME, SOME, err);
    NEEDS(gac_task_create, spec, SOME, NULL, SOME, err);
    NEEDS(gac_task_create, out, SOME, SOME, NULL, err);
    NEEDS(gac_task_write, task, NULL, (gac_operand)0, SOME, 1, err);
    NEEDS(gac_task_write, data, SOME, (gac_operand)0, NULL, 1, err);
    NEEDS(gac_task_read, task, NULL, (gac_operand)0, SOME, 1, err);
    NEEDS(gac_task_read, data, SOME, (gac_operand)0, NULL, 1, err);
    NEEDS(gac_task_run, task, NULL, err);
    NEEDS(gac_task_time, task, NULL, SOME, false, SOME, err);
    NEEDS(gac_task_time, n_calls, SOME, NULL, false, SOME, err);
    NEEDS(gac_task_time, time_us, SOME, SOME, false, NULL, err);
    NEEDS(gac_task_kernels, task, NULL, SOME, 1, SOME, err);
    NEEDS(gac_task_kernels, n, SOME, SOME, 1, NULL, err);
    NEEDS(gac_compute_open, name, NULL, SOME, SOME, err);
    NEEDS(gac_compute_open, options, SOME, NULL, SOME, err);
    NEEDS(gac_compute_open, out, SOME, SOME, NULL, err);
    NEEDS(gac_task_check, device, NULL, SOME, 1, SOME, err);
    NEEDS(gac_task_check, spec, SOME, NULL, 1, SOME, err);
    NEEDS(gac_task_check, out, SOME, SOME, 1, NULL, err);
}

static void null_contract(void **state)
{
    (void)state;
    NEEDS(gac_contract_load_bundled, name, NULL, SOME, err);
    NEEDS(gac_contract_load_bundled, out, SOME, NULL, err);
    NEEDS(gac_contract_load, path, NULL, SOME, err);
    NEEDS(gac_contract_load, out, SOME, NULL, err);
    NEEDS(gac_contract_parse, text, NULL, 1, SOME, SOME, err);
    NEEDS(gac_contract_parse, source, SOME, 1, NULL, SOME, err);
    NEEDS(gac_contract_parse, out, SOME, 1, SOME, NULL, err);
    NEEDS(gac_contract_write, contract, NULL, SOME, SOME, err);
    NEEDS(gac_contract_write, text, SOME, NULL, SOME, err);
    NEEDS(gac_contract_write, n_bytes, SOME, SOME, NULL, err);
    NEEDS(gac_contract_copy, contract, NULL, SOME, SOME, err);
    NEEDS(gac_contract_copy, source, SOME, NULL, SOME, err);
    NEEDS(gac_contract_copy, out, SOME, SOME, NULL, err);
    NEEDS(gac_contract_load_runtime, path, NULL, SOME, err);
    NEEDS(gac_contract_load_runtime, out, SOME, NULL, err);
    NEEDS(gac_contract_judge, contract, NULL, GAC_OP_GEMM_N, GAC_DTYPE_F16, 1, 1, 1, SOME, err);
    NEEDS(gac_contract_judge, out, SOME, GAC_OP_GEMM_N, GAC_DTYPE_F16, 1, 1, 1, NULL, err);
}

/* Without a contract, or without room for an answer, there is none. */
static void contract_of_nothing(void **state)
{
    (void)state;
    gac_contract *contract = NULL;
    gac_dtype dtype;
    gac_runtime runtime;
    double pct;
    char text[80];
    static const gac_sdpa_shape shape = { 1, 1, 1, 64, 64, 64, 64, false };
    assert_null(gac_contract_name(NULL));
    assert_null(gac_contract_gpu(NULL));
    assert_false(gac_contract_has_times(NULL, GAC_DTYPE_F16));
    assert_false(gac_contract_dtype(NULL, GAC_DTYPE_F16, &dtype));
    assert_int_equal(gac_contract_multiple(NULL, GAC_OP_GEMM_N, GAC_DTYPE_F16), 0);
    assert_true(isnan(gac_contract_gemm_us(NULL, GAC_DTYPE_F16, 1, 8, 8)));
    assert_true(isnan(gac_contract_sdpa_us(NULL, GAC_DTYPE_F16, &shape)));
    assert_false(gac_contract_runtime(NULL, &runtime));
    assert_false(gac_contract_median_error(NULL, GAC_DTYPE_F16, GAC_OP_GEMM_N, &pct));
    assert_false(gac_contract_is_rough(NULL, GAC_DTYPE_F16, text, sizeof text));
    assert_ok(gac_contract_load_bundled("h200", &contract, err));
    assert_false(gac_contract_dtype(contract, GAC_DTYPE_F16, NULL));
    assert_true(isnan(gac_contract_sdpa_us(contract, GAC_DTYPE_F16, NULL)));
    assert_false(gac_contract_runtime(contract, NULL));
    assert_false(gac_contract_median_error(contract, GAC_DTYPE_F16, GAC_OP_GEMM_N, NULL));
    assert_false(gac_contract_is_rough(contract, GAC_DTYPE_F16, NULL, 80));
    gac_contract_free(contract);
}

static void null_probe(void **state)
{
    (void)state;
    char stack[96];
    NEEDS(gac_probe_run, device, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_probe_run, options, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_probe_run, contract, SOME, SOME, NULL, SOME, err);
    NEEDS(gac_probe_shapes, device, NULL, SOME, SOME, SOME, 1, SOME, 1, SOME, SOME, err);
    NEEDS(gac_probe_shapes, options, SOME, NULL, SOME, SOME, 1, SOME, 1, SOME, SOME, err);
    NEEDS(gac_probe_shapes, base, SOME, SOME, NULL, SOME, 1, SOME, 1, SOME, SOME, err);
    NEEDS(gac_probe_shapes, contract, SOME, SOME, SOME, SOME, 1, SOME, 1, NULL, SOME, err);
    NEEDS(gac_probe_shapes, gemm, SOME, SOME, SOME, NULL, 1, SOME, 1, SOME, SOME, err);
    NEEDS(gac_probe_shapes, sdpa, SOME, SOME, SOME, SOME, 1, NULL, 1, SOME, SOME, err);
    NEEDS(gac_probe_ask_pytorch, context, NULL, SOME, 1, false, SOME, stack, err);
    NEEDS(gac_probe_ask_pytorch, specs, SOME, NULL, 1, false, SOME, stack, err);
    NEEDS(gac_probe_ask_pytorch, out, SOME, SOME, 1, false, NULL, stack, err);
    NEEDS(gac_probe_ask_pytorch, stack, SOME, SOME, 1, false, SOME, NULL, err);
    assert_fails(gac_probe_ask_pytorch(SOME, SOME, -1, false, SOME, stack, err), GAC_USAGE,
                 "negative");
}

static void ranges_probe(void **state)
{
    (void)state;
    static const gac_dtype f16 = GAC_DTYPE_F16, none = GAC_DTYPE_COUNT;
    static const gac_probe_options zero;
    const gac_runtime nameless = { .basis = "measured" };
    gac_probe_options options = GAC_PROBE_OPTIONS_INIT;
    gac_contract *out = NULL;
    assert_fails(gac_probe_run(SOME, &zero, &out, NULL, err), GAC_USAGE, "dtypes");
    assert_fails(gac_probe_shapes(SOME, &zero, SOME, NULL, 0, NULL, 0, &out, NULL, err), GAC_USAGE,
                 "dtypes");
    options.dtypes = &none;
    options.n_dtypes = 1;
    assert_fails(gac_probe_run(SOME, &options, &out, NULL, err), GAC_USAGE, "no such dtype");
    options.dtypes = &f16;
    options.max_time_s = 0;
    assert_fails(gac_probe_run(SOME, &options, &out, NULL, err), GAC_USAGE, "time");
    options.max_time_s = 1;
    options.runtime = &nameless;
    assert_fails(gac_probe_run(SOME, &options, &out, NULL, err), GAC_USAGE, "runtime");
    assert_null(out);
}

static void null_model(void **state)
{
    (void)state;
    NEEDS(gac_model_create, checkpoint, NULL, SOME, err);
    NEEDS(gac_model_create, out, SOME, NULL, err);
}

static void null_timing(void **state)
{
    (void)state;
    NEEDS(gac_timing_measure, device, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_timing_measure, task, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_timing_measure, out, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_pytorch_start, out, NULL, err);
    NEEDS(gac_pytorch_time, pytorch, NULL, SOME, SOME, 1, SOME, err);
    NEEDS(gac_pytorch_time, question, SOME, NULL, SOME, 1, SOME, err);
}

static void null_plan(void **state)
{
    (void)state;
    NEEDS(gac_strategy_apply, out, (gac_strategy)0, 1, 1, NULL, err);
    NEEDS(gac_workload_parse, text, NULL, SOME, err);
    NEEDS(gac_workload_parse, out, SOME, NULL, err);
    NEEDS(gac_plan_overhead_pct, model, NULL, SOME, SOME, err);
    NEEDS(gac_plan_overhead_pct, sizes, SOME, NULL, SOME, err);
    NEEDS(gac_plan_overhead_pct, out, SOME, SOME, NULL, err);
    NEEDS(gac_plan_advise, model, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_plan_advise, advice, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_plan_create, model, NULL, SOME, SOME, err);
    NEEDS(gac_plan_create, options, SOME, NULL, SOME, err);
    NEEDS(gac_plan_create, out, SOME, SOME, NULL, err);
    NEEDS(gac_plan_front, model, NULL, SOME, SOME, err);
    NEEDS(gac_plan_front, options, SOME, NULL, SOME, err);
    NEEDS(gac_plan_front, out, SOME, SOME, NULL, err);
    NEEDS(gac_plan_from_json, json, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_plan_from_json, model, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_plan_from_json, source, SOME, SOME, NULL, SOME, err);
    NEEDS(gac_plan_from_json, out, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_plan_list_shapes, model, NULL, SOME, SOME, err);
    NEEDS(gac_plan_list_shapes, options, SOME, NULL, SOME, err);
    NEEDS(gac_plan_list_shapes, out, SOME, SOME, NULL, err);
}

static void null_inspect(void **state)
{
    (void)state;
    NEEDS(gac_inspect, model, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_inspect, contract, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_inspect, out, SOME, SOME, SOME, NULL, err);
}

static void null_report(void **state)
{
    (void)state;
    NEEDS(gac_report_create, title, NULL, SOME, err);
    NEEDS(gac_report_create, out, SOME, NULL, err);
    NEEDS(gac_report_add, report, NULL, SOME, SOME, err);
    NEEDS(gac_report_add, result, SOME, NULL, SOME, err);
    NEEDS(gac_report_add, name, SOME, SOME, NULL, err);
    NEEDS(gac_report_add_file, report, NULL, SOME, err);
    NEEDS(gac_report_add_file, path, SOME, NULL, err);
    NEEDS(gac_report_draw, report, NULL, err);
    NEEDS(gac_report_html, report, NULL, SOME, SOME, err);
    NEEDS(gac_report_html, text, SOME, NULL, SOME, err);
    NEEDS(gac_report_html, n_bytes, SOME, SOME, NULL, err);
    NEEDS(gac_report_write_figures, report, NULL, SOME, false, err);
    NEEDS(gac_report_write_figures, folder, SOME, NULL, false, err);
}

static void null_tokenizer(void **state)
{
    (void)state;
    NEEDS(gac_tokenizer_open, directory, NULL, SOME, err);
    NEEDS(gac_tokenizer_open, out, SOME, NULL, err);
    NEEDS(gac_chat_open, directory, NULL, SOME, err);
    NEEDS(gac_chat_open, out, SOME, NULL, err);
    NEEDS(gac_chat_prompt, chat, NULL, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_chat_prompt, tokenizer, SOME, NULL, NULL, SOME, SOME, err);
    NEEDS(gac_chat_prompt, user, SOME, SOME, NULL, NULL, SOME, err);
    NEEDS(gac_chat_prompt, out, SOME, SOME, NULL, SOME, NULL, err);
    NEEDS(gac_tokenizer_encode, tokenizer, NULL, SOME, 1, false, SOME, SOME, err);
    NEEDS(gac_tokenizer_encode, out, SOME, SOME, 1, false, NULL, SOME, err);
    NEEDS(gac_tokenizer_encode, n_ids, SOME, SOME, 1, false, SOME, NULL, err);
    NEEDS(gac_tokenizer_decode, tokenizer, NULL, SOME, 1, false, SOME, SOME, err);
    NEEDS(gac_tokenizer_decode, out, SOME, SOME, 1, false, NULL, SOME, err);
    NEEDS(gac_tokenizer_decode, n_bytes, SOME, SOME, 1, false, SOME, NULL, err);
    NEEDS(gac_tokenizer_decode_one, tokenizer, NULL, 1, false, SOME, SOME, err);
    NEEDS(gac_tokenizer_decode_one, bytes, SOME, 1, false, NULL, SOME, err);
    NEEDS(gac_tokenizer_decode_one, n_bytes, SOME, 1, false, SOME, NULL, err);
}

static void null_engine(void **state)
{
    (void)state;
    NEEDS(gac_engine_size, model, NULL, SOME, SOME, err);
    NEEDS(gac_engine_size, work, SOME, NULL, SOME, err);
    NEEDS(gac_engine_size, options, SOME, SOME, NULL, err);
    NEEDS(gac_engine_open, model, NULL, SOME, SOME, err);
    NEEDS(gac_engine_open, out, SOME, SOME, NULL, err);
    NEEDS(gac_engine_reserve, engine, NULL, 1, 1, err);
    NEEDS(gac_engine_forward, engine, NULL, SOME, 1, 1, 1, SOME, err);
    NEEDS(gac_engine_forward, ids, SOME, NULL, 1, 1, 1, SOME, err);
    NEEDS(gac_engine_check_text, engine, NULL, SOME, 1, err);
    NEEDS(gac_engine_logits, engine, NULL, 1, 1, SOME, err);
    NEEDS(gac_engine_embed, engine, NULL, SOME, 1, err);
    NEEDS(gac_engine_embed, ids, SOME, NULL, 1, err);
    NEEDS(gac_engine_read_residual, engine, NULL, SOME, err);
    NEEDS(gac_engine_read_residual, out, SOME, NULL, err);
    NEEDS(gac_engine_write_residual, engine, NULL, SOME, 1, err);
    NEEDS(gac_engine_write_residual, in, SOME, NULL, 1, err);
    NEEDS(gac_engine_run_layers, engine, NULL, 0, 1, err);
    NEEDS(gac_engine_sample_logits, engine, NULL, 0, 1, 1, SOME, SOME, err);
    NEEDS(gac_engine_sample_logits, logits, SOME, 0, 1, 1, NULL, SOME, err);
    NEEDS(gac_engine_sample_logits, log_sums, SOME, 0, 1, 1, SOME, NULL, err);
    NEEDS(gac_engine_collect, engine, NULL, 0, err);
    NEEDS(gac_engine_read_sums, engine, NULL, GAC_INPUT_O, SOME, SOME, err);
    NEEDS(gac_engine_read_sums, matrix, SOME, GAC_INPUT_O, NULL, SOME, err);
    NEEDS(gac_engine_read_sums, magnitude, SOME, GAC_INPUT_O, SOME, NULL, err);
    NEEDS(gac_engine_replace, engine, NULL, 0, GAC_PROJECTION_O, NULL, SOME, err);
    NEEDS(gac_engine_replace, second, SOME, 0, GAC_PROJECTION_O, NULL, NULL, err);
    NEEDS(gac_engine_factor, engine, NULL, SOME, 1, err);
    NEEDS(gac_engine_factor, jobs, SOME, NULL, 1, err);
    NEEDS(gac_engine_backward_head, engine, NULL, 0, SOME, err);
    NEEDS(gac_engine_backward_head, gradient, SOME, 0, NULL, err);
    NEEDS(gac_engine_backward_layer, engine, NULL, 0, 1, 1, SOME, SOME, SOME, err);
    NEEDS(gac_engine_backward_layer, x, SOME, 0, 1, 1, NULL, SOME, SOME, err);
    NEEDS(gac_engine_backward_layer, gradient, SOME, 0, 1, 1, SOME, NULL, SOME, err);
    NEEDS(gac_engine_backward_layer, sums, SOME, 0, 1, 1, SOME, SOME, NULL, err);
    NEEDS(gac_engine_losses, engine, NULL, SOME, 1, SOME, err);
    NEEDS(gac_engine_losses, ids, SOME, NULL, 1, SOME, err);
    NEEDS(gac_engine_losses, losses, SOME, SOME, 1, NULL, err);
    NEEDS(gac_engine_model_context, model, NULL, SOME, err);
    NEEDS(gac_engine_check_stages, model, NULL, err);
    NEEDS(gac_engine_model_context, n_tokens, SOME, NULL, err);
    NEEDS(gac_engine_perplexity, engine, NULL, SOME, 1, SOME, SOME, err);
    NEEDS(gac_engine_perplexity, ids, SOME, NULL, 1, SOME, SOME, err);
    NEEDS(gac_engine_perplexity, out, SOME, SOME, 1, SOME, NULL, err);
    NEEDS(gac_engine_generate, engine, NULL, SOME, SOME, 1, SOME, SOME, err);
    NEEDS(gac_engine_generate, prompt, SOME, SOME, NULL, 1, SOME, SOME, err);
    NEEDS(gac_engine_generate, out, SOME, SOME, SOME, 1, SOME, NULL, err);
    NEEDS(gac_engine_piqa, engine, NULL, SOME, SOME, SOME, SOME, err);
    NEEDS(gac_engine_piqa, tokenizer, SOME, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_engine_piqa, path, SOME, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_engine_piqa, out, SOME, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_engine_compare, a, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_engine_compare, b, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_engine_compare, out, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_engine_time_prefill, engine, NULL, 1, 1, SOME, SOME, SOME, err);
    NEEDS(gac_engine_time_prefill, out, SOME, 1, 1, SOME, SOME, NULL, err);
    NEEDS(gac_engine_time_decode, engine, NULL, 1, 1, 1, SOME, SOME, SOME, err);
    NEEDS(gac_engine_time_decode, out, SOME, 1, 1, 1, SOME, SOME, NULL, err);
}

static void null_repair(void **state)
{
    (void)state;
    NEEDS(gac_repair_check, model, NULL, SOME, SOME, err);
    NEEDS(gac_repair_check, sizes, SOME, NULL, SOME, err);
    NEEDS(gac_repair_preview, model, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_repair_preview, sizes, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_repair_preview, result, SOME, SOME, SOME, NULL, err);
    NEEDS(gac_repair_apply, checkpoint, NULL, SOME, SOME, SOME, SOME, SOME, err);
    NEEDS(gac_repair_apply, model, SOME, NULL, SOME, SOME, SOME, SOME, err);
    NEEDS(gac_repair_apply, sizes, SOME, SOME, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_repair_apply, out, SOME, SOME, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_repair_undo, checkpoint, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_repair_undo, out, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_repair_verify, original, NULL, SOME, SOME, SOME, SOME, SOME, err);
    NEEDS(gac_repair_verify, model, SOME, NULL, SOME, SOME, SOME, SOME, err);
    NEEDS(gac_repair_verify, repaired, SOME, SOME, NULL, SOME, SOME, SOME, err);
    NEEDS(gac_repair_verify, repaired_model, SOME, SOME, SOME, NULL, SOME, SOME, err);
    NEEDS(gac_repair_verify, out, SOME, SOME, SOME, SOME, SOME, NULL, err);
}

/* A model to ask about, of dimensions that are not all aligned. */
static small_model open_model(const char *name)
{
    small_llama s = SMALL_LLAMA_INIT;
    s.rank = 77;
    small_llama_write(name, &s);
    return small_open(name);
}

static void ranges_checkpoint(void **state)
{
    (void)state;
    static const int64_t shape[] = { 2, 2 };
    static const gac_dtype bad_dtypes[] = { (gac_dtype)-1, GAC_DTYPE_COUNT };
    small_model m = open_model("ranges");
    gac_checkpoint *c = m.checkpoint;
    int32_t n = gac_checkpoint_n_tensors(c);
    const void *data = NULL;
    gac_tensor_hash *hash = NULL;
    gac_writer *w = NULL;
    char byte = 0;
    assert_ok(gac_writer_create(scratch_path("new"), NULL, &w, err));
    for (int i = 0; i < 2; i++)
        assert_fails(gac_writer_add(w, "a", bad_dtypes[i], 2, shape, NULL, err), GAC_USAGE,
                     "no such dtype");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_F16, 2, NULL, NULL, err), GAC_USAGE, "shape");
    assert_fails(gac_writer_add(w, "a", GAC_DTYPE_F16, -1, shape, NULL, err), GAC_USAGE, "a");
    assert_ok(gac_writer_add(w, "a", GAC_DTYPE_F16, 2, shape, NULL, err));
    const int32_t bad[] = { -1, INT32_MIN, n, INT32_MAX };
    for (int i = 0; i < 4; i++) {
        int32_t t = bad[i];
        const char *piece = "no such tensor";
        assert_fails(gac_checkpoint_read(c, t, 0, &byte, 1, err), GAC_USAGE, piece);
        assert_fails(gac_checkpoint_map(c, t, &data, err), GAC_USAGE, piece);
        assert_fails(gac_tensor_hash_start(c, t, &hash, err), GAC_USAGE, piece);
        assert_fails(gac_writer_set_file(w, t, "f", NULL, err), GAC_USAGE, piece);
        assert_fails(gac_writer_write(w, t, 0, &byte, 1, err), GAC_USAGE, piece);
        assert_fails(gac_writer_copy(w, t, 0, c, 0, 0, 1, err), GAC_USAGE, piece);
        assert_fails(gac_writer_copy(w, 0, 0, c, t, 0, 1, err), GAC_USAGE, piece);
        assert_fails(gac_writer_leave_zero(w, t, 1, err), GAC_USAGE, piece);
        assert_fails(gac_writer_read_back(w, t, 0, &byte, 1, err), GAC_USAGE, piece);
        assert_fails(gac_writer_rewrite(w, t, 0, &byte, 1, err), GAC_USAGE, piece);
        assert_null(gac_checkpoint_tensor(c, t));
        assert_null(gac_checkpoint_file_name(c, t));
        assert_null(gac_checkpoint_metadata(c, t));
        assert_null(gac_checkpoint_note(c, t));
        assert_int_equal(gac_checkpoint_file_size(c, t), 0);
        assert_int_equal(gac_checkpoint_data_start(c, t), 0);
        int32_t beyond = t == n ? gac_model_n_dims(m.model) : t;
        assert_null(gac_model_dim(m.model, beyond));
        assert_null(gac_model_op(m.model, t == n ? gac_model_n_ops(m.model) : t));
        assert_null(gac_model_note(m.model, t));
        assert_int_equal(gac_model_unexplained(m.model, t), -1);
    }
    assert_fails(gac_checkpoint_read(c, 0, 0, NULL, 1, err), GAC_USAGE, "buffer is NULL");
    assert_fails(gac_writer_write(w, 0, 0, NULL, 1, err), GAC_USAGE, "data is NULL");
    assert_fails(gac_writer_rewrite(w, 0, 0, NULL, 1, err), GAC_USAGE, "data is NULL");
    assert_fails(gac_writer_read_back(w, 0, 0, NULL, 1, err), GAC_USAGE, "buffer is NULL");
    assert_fails(gac_writer_add_file(w, "f", NULL, 1, err), GAC_USAGE, "data is NULL");
    assert_fails(gac_checkpoint_each_file(c, NULL, NULL, err), GAC_USAGE, "visit is NULL");
    gac_writer_discard(w);
    small_close(&m);
}

static void ranges_rest(void **state)
{
    (void)state;
    static const gac_strategy bad_strategies[] = { (gac_strategy)-1, GAC_STRATEGY_COUNT };
    small_model m = open_model("rest");
    gac_plan_options options = GAC_PLAN_OPTIONS_INIT;
    gac_repair_options repair = GAC_REPAIR_OPTIONS_INIT;
    gac_contract *contract = NULL;
    gac_workload workload;
    gac_plan plan;
    int64_t size = 0, sizes[64];
    assert_ok(gac_workload_parse(GAC_DEFAULT_WORKLOAD, &workload, err));
    assert_ok(gac_contract_load("tests/data/contracts/by_rates.json", &contract, err));
    options.target.contract = contract;
    options.target.dtype = GAC_DTYPE_F16;
    options.workload = &workload;
    for (int i = 0; i < 2; i++) {
        assert_fails(gac_strategy_apply(bad_strategies[i], 8, 0, &size, err), GAC_USAGE,
                     "no such strategy");
        options.strategy = bad_strategies[i];
        assert_fails(gac_plan_create(m.model, &options, &plan, err), GAC_USAGE, "no such strategy");
    }
    options.strategy = GAC_STRATEGY_MINIMAL;
    options.n_rules = 1;
    gac_front front;
    gac_plan_shapes shapes;
    assert_fails(gac_plan_create(m.model, &options, &plan, err), GAC_USAGE, "no rules");
    assert_fails(gac_plan_front(m.model, &options, &front, err), GAC_USAGE, "no rules");
    assert_fails(gac_plan_list_shapes(m.model, &options, &shapes, err), GAC_USAGE, "no rules");
    options.n_rules = 0; /* and then it is fine */
    assert_ok(gac_plan_create(m.model, &options, &plan, err));
    gac_plan_dispose(&plan);
    assert_true(gac_model_n_dims(m.model) <= 64);
    for (int32_t i = 0; i < gac_model_n_dims(m.model); i++)
        sizes[i] = gac_model_dim(m.model, i)->size;
    repair.widths = (gac_widths)17;
    assert_fails(gac_repair_check(m.model, sizes, &repair, err), GAC_USAGE, "widths");
    assert_ok(gac_repair_check(m.model, sizes, NULL, err));
    gac_contract_free(contract);
    small_close(&m);
}

static void ranges_engine(void **state)
{
    (void)state;
    small_model m = open_model("engine");
    gac_engine *e = NULL;
    gac_engine_options room = GAC_ENGINE_OPTIONS_INIT;
    const int32_t ids[4] = { 1, 2, 3, 4 };
    double losses[4];
    float logits[80];
    gac_perplexity perplexity;
    gac_pass_timing timing;
    gac_generation made;
    room.device = "reference";
    room.max_context = 8;
    int64_t *sizes[] = { &room.max_batch, &room.max_context, &room.max_new, &room.max_rows,
                         &room.max_cached };
    for (int i = 0; i < 5; i++) {
        int64_t was = *sizes[i];
        *sizes[i] = -1;
        assert_fails(gac_engine_open(m.model, &room, &e, err), GAC_USAGE, "no sense");
        *sizes[i] = was;
    }
    room.n_threads = -1;
    assert_fails(gac_engine_open(m.model, &room, &e, err), GAC_USAGE, "");
    room.n_threads = 1;
    room.dtype = GAC_DTYPE_BOOL;
    assert_fails(gac_engine_open(m.model, &room, &e, err), GAC_USAGE, "BOOL");
    room.dtype = (gac_dtype)-1;
    assert_fails(gac_engine_open(m.model, &room, &e, err), GAC_USAGE, "unknown");
    room.dtype = GAC_DTYPE_COUNT;
    assert_ok(gac_engine_open(m.model, &room, &e, err));
    for (int64_t n = -1; n <= 0; n++) {
        assert_fails(gac_engine_reserve(e, n, 1, err), GAC_USAGE, "");
        assert_fails(gac_engine_reserve(e, 1, n, err), GAC_USAGE, "");
        assert_fails(gac_engine_forward(e, ids, n, 1, 0, NULL, err), GAC_USAGE, "");
        assert_fails(gac_engine_forward(e, ids, 1, n, 0, NULL, err), GAC_USAGE, "");
        assert_fails(gac_engine_losses(e, ids, n, losses, err), GAC_USAGE, "no tokens");
        assert_fails(gac_engine_time_prefill(e, n, 1, NULL, NULL, &timing, err), GAC_USAGE, "");
        assert_fails(gac_engine_time_prefill(e, 1, n, NULL, NULL, &timing, err), GAC_USAGE, "");
        assert_fails(gac_engine_time_decode(e, n, 2, 0, NULL, NULL, &timing, err), GAC_USAGE, "");
        assert_fails(gac_engine_time_decode(e, 1, n, 0, NULL, NULL, &timing, err), GAC_USAGE, "");
    }
    assert_fails(gac_engine_forward(e, ids, 1, 1, -1, NULL, err), GAC_USAGE, "");
    assert_fails(gac_engine_logits(e, -1, 1, logits, err), GAC_USAGE, "");
    assert_fails(gac_engine_logits(e, 0, -1, logits, err), GAC_USAGE, "");
    assert_fails(gac_engine_perplexity(e, ids, 1, NULL, &perplexity, err), GAC_USAGE, "two");
    gac_perplexity_options windows = { -1, 0, NULL };
    assert_fails(gac_engine_perplexity(e, ids, 4, &windows, &perplexity, err), GAC_USAGE, "");
    gac_generate_options options = GAC_GENERATE_OPTIONS_INIT;
    options.n_eos = 1;
    assert_fails(gac_engine_generate(e, NULL, ids, 4, &options, &made, err), GAC_USAGE, "eos");
    gac_generation_dispose(&made);
    options.n_eos = 0;
    options.max_tokens = 0;
    assert_fails(gac_engine_generate(e, NULL, ids, 4, &options, &made, err), GAC_USAGE, "");
    options.max_tokens = 1;
    assert_fails(gac_engine_generate(e, NULL, ids, 0, &options, &made, err), GAC_USAGE, "");
    assert_ok(gac_engine_generate(e, NULL, ids, 4, &options, &made, err));
    gac_generation_dispose(&made);
    gac_engine_close(e);
    small_close(&m);
}

/* Options that are all zero either work or are refused. */
static void zero_options(void **state)
{
    (void)state;
    static const gac_checkpoint_options checkpoint_zero;
    static const gac_writer_options writer_zero;
    static const gac_convert_options convert_zero;
    static const gac_engine_options engine_zero;
    static const gac_compute_options compute_zero;
    static const gac_compare_options compare_zero;
    static const gac_plan_options plan_zero;
    static const gac_solve_options solve_zero;
    static const gac_pareto_options pareto_zero;
    static const gac_repair_options repair_zero;
    static const gac_target target_zero;
    static const gac_task_spec spec_zero;
    static const gac_timing_rules rules_zero;
    static const gac_phase phase_zero;
    small_model m = open_model("zero");
    gac_checkpoint *c = NULL;
    assert_ok(gac_checkpoint_open(scratch_path("zero"), &checkpoint_zero, &c, err));
    gac_checkpoint_close(c);
    gac_writer *w = NULL;
    assert_fails(gac_writer_create(scratch_path("new"), &writer_zero, &w, err), GAC_USAGE, "shard");
    gac_convert_result converted;
    assert_int_not_equal(
        gac_convert_gguf(scratch_path("none"), scratch_path("to"), &convert_zero, &converted, NULL),
        GAC_OK);
    gac_engine *engine = NULL;
    gac_engine_options no_device = GAC_ENGINE_OPTIONS_INIT;
    no_device.device = NULL;
    assert_fails(gac_engine_open(m.model, &engine_zero, &engine, err), GAC_USAGE, "device");
    assert_fails(gac_engine_open(m.model, &no_device, &engine, err), GAC_USAGE, "device");
    gac_logit_comparison same;
    assert_fails(gac_engine_compare(m.model, m.model, &compare_zero, &same, err), GAC_USAGE,
                 "no tokens");
    gac_compute compute = GAC_COMPUTE_INIT;
    assert_fails(gac_compute_open("reference", &compute_zero, &compute, err), GAC_USAGE, "0 rows");
    gac_plan plan;
    assert_fails(gac_plan_create(m.model, &plan_zero, &plan, err), GAC_USAGE, "contract");
    gac_dim_advice advice[64];
    assert_fails(gac_plan_advise(m.model, &target_zero, NULL, advice, err), GAC_USAGE, "contract");
    double none = gac_plan_time_ms(m.model, &target_zero, &phase_zero, NULL, NULL);
    assert_true(none != none);
    const gac_choice choice = { 1, 1 };
    const gac_choice_class class = { &choice, 1 };
    int32_t pick = -1;
    gac_solution solution;
    gac_front front;
    assert_ok(gac_solve(&class, 1, 1, &solve_zero, &pick, &solution, err));
    assert_ok(gac_pareto(&class, 1, &pareto_zero, &front, err));
    gac_front_dispose(&front);
    int64_t sizes[64];
    for (int32_t i = 0; i < gac_model_n_dims(m.model); i++)
        sizes[i] = gac_model_dim(m.model, i)->size;
    gac_repair_result result;
    assert_ok(gac_repair_preview(m.model, sizes, &repair_zero, &result, err));
    assert_ok(gac_repair_preview(m.model, sizes, NULL, &result, err));
    gac_device *cpu = NULL;
    gac_task *task = NULL;
    gac_timing timing;
    gac_task_spec spec = { .kind = GAC_TASK_COPY, .dtype = GAC_DTYPE_U8, .copy_bytes = 64 };
    assert_ok(gac_device_open("cpu", &cpu, err));
    assert_fails(gac_task_create(cpu, &spec_zero, &task, err), GAC_USAGE, "");
    assert_ok(gac_task_create(cpu, &spec, &task, err));
    assert_fails(gac_timing_measure(cpu, task, &rules_zero, &timing, err), GAC_USAGE, "");
    assert_fails(gac_task_read(task, (gac_operand)9, somewhere, 1, err), GAC_USAGE, "operand");
    assert_fails(gac_task_write(task, (gac_operand)-1, somewhere, 1, err), GAC_USAGE, "operand");
    gac_task_free(task);
    gac_device_close(cpu);
    small_close(&m);
}

static void frees_take_null(void **state)
{
    (void)state;
    gac_file_close(NULL);
    gac_team_leave(NULL);
    gac_new_file_discard(NULL);
    gac_checkpoint_close(NULL);
    gac_writer_discard(NULL);
    gac_model_free(NULL);
    gac_contract_free(NULL);
    gac_contract_free_runtime(NULL);
    gac_probe_end_pytorch(NULL);
    gac_plan_dispose(NULL);
    gac_plan_shapes_dispose(NULL);
    gac_front_dispose(NULL);
    gac_inspection_free(NULL);
    gac_report_free(NULL);
    assert_null(gac_report_hint(NULL));
    gac_tokenizer_close(NULL);
    gac_engine_close(NULL);
    gac_generation_dispose(NULL);
    gac_compute_close(NULL);
    gac_device_close(NULL);
    gac_task_free(NULL);
    gac_pytorch_end(NULL);
    gac_pytorch_calls_free(NULL, 0);
    gac_progress_free(NULL);
}

static void names_of_nothing(void **state)
{
    (void)state;
    gac_dtype dtype;
    char q[16];
    assert_string_equal(gac_dtype_name(GAC_DTYPE_COUNT), "unknown");
    assert_string_equal(gac_dtype_name((gac_dtype)-1), "unknown");
    assert_int_equal(gac_dtype_bits(GAC_DTYPE_COUNT), 0);
    assert_false(gac_dtype_parse(NULL, &dtype));
    assert_string_equal(gac_op_axis_name(GAC_OP_AXIS_COUNT), "unknown");
    assert_string_equal(gac_role_name(GAC_ROLE_COUNT), "unknown");
    assert_string_equal(gac_exactness_name((gac_exactness)3), "unknown");
    assert_string_equal(gac_repeat_name((gac_repeat)5), "unknown");
    assert_string_equal(gac_strategy_name(GAC_STRATEGY_COUNT), "unknown");
    assert_string_equal(gac_quote(q, sizeof q, NULL), "(null)");
}

static void version(void **state)
{
    (void)state;
    assert_string_equal(gac_version(), GAC_VERSION);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(null_base),         cmocka_unit_test(null_compress),
        cmocka_unit_test(null_checkpoint),   cmocka_unit_test(null_device),
        cmocka_unit_test(null_contract),     cmocka_unit_test(contract_of_nothing),
        cmocka_unit_test(null_probe),        cmocka_unit_test(ranges_probe),
        cmocka_unit_test(null_model),        cmocka_unit_test(null_timing),
        cmocka_unit_test(null_plan),         cmocka_unit_test(null_inspect),
        cmocka_unit_test(null_report),       cmocka_unit_test(null_tokenizer),
        cmocka_unit_test(null_engine),       cmocka_unit_test(null_repair),
        cmocka_unit_test(ranges_checkpoint), cmocka_unit_test(ranges_rest),
        cmocka_unit_test(ranges_engine),     cmocka_unit_test(zero_options),
        cmocka_unit_test(frees_take_null),   cmocka_unit_test(names_of_nothing),
        cmocka_unit_test(version),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
