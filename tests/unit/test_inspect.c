/* A model judged by a contract: counts, sizes, times and the verdict. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "inspect/inspect_internal.h"
#include "scratch.h"
#include "small_llama.h"

static gac_contract *load_contract(void)
{
    gac_contract *contract = NULL;
    assert_ok(gac_contract_load("tests/data/contracts/by_rates.json", &contract, err));
    return contract;
}

/* Two factorised layers of ranks 77, 85, 93, … */
static small_model open_misaligned(const char *name)
{
    small_llama s = SMALL_LLAMA_INIT;
    s.rank = 77;
    s.rank_step = 8;
    small_llama_write(name, &s);
    return small_open(name);
}

static void test_counts(void **state)
{
    (void)state;
    gac_contract *contract = load_contract();
    small_model m = open_misaligned("counts");
    gac_inspection *x = NULL;
    assert_ok(gac_inspect(m.model, contract, NULL, &x, err));
    assert_int_equal(x->n_dims, gac_model_n_dims(m.model));
    assert_int_equal(x->n_chosen, 14); /* the rank of every linear module */
    assert_int_equal(x->n_chosen_misaligned, 14);
    assert_int_equal(x->n_misaligned, 14); /* all else is a multiple of 8 */
    assert_int_equal(x->wanted, GAC_DTYPE_F16);
    assert_int_equal(x->target.dtype, GAC_DTYPE_F16);
    assert_int_equal(x->workload.n_phases, 2);
    assert_string_equal(x->phases[0].label, "prefill:1x2048");
    assert_string_equal(x->phases[1].label, "decode:1@2048");
    const gac_role_sizes *ranks = &x->roles[GAC_ROLE_RANK];
    assert_int_equal(ranks->n_dims, 14);
    assert_int_equal(ranks->n_sizes, 14);
    for (int i = 0; i < 14; i++) {
        assert_int_equal(ranks->sizes[i].size, 77 + 8 * i);
        assert_int_equal(ranks->sizes[i].count, 1);
        assert_false(ranks->sizes[i].aligned);
    }
    assert_int_equal(x->roles[GAC_ROLE_MLP_WIDTH].n_misaligned, 0);
    int32_t rank = small_dim(m.model, "layers.0.self_attn.q_proj.rank");
    assert_int_equal(x->advice[rank].suggest, 80);
    assert_int_equal(x->seen_by[rank], 1u << GAC_OP_GEMM_N | 1u << GAC_OP_GEMM_K);
    assert_true(x->overhead_pct > 0);
    assert_true(x->phases[0].exact_ratio == x->phases[0].exact_ms / x->phases[0].now_ms);
    assert_true(x->phases[0].exact_ms < x->phases[0].now_ms);
    gac_inspection_free(x);
    small_close(&m);
    gac_contract_free(contract);
}

static void test_aligned(void **state)
{
    (void)state;
    gac_contract *contract = load_contract();
    small_llama s = SMALL_LLAMA_INIT;
    small_llama_write("aligned", &s);
    small_model m = small_open("aligned");
    gac_inspection *x = NULL;
    assert_ok(gac_inspect(m.model, contract, NULL, &x, err));
    assert_int_equal(x->n_misaligned, 0);
    assert_int_equal(x->n_chosen, 0);
    assert_int_equal(x->verdict, GAC_VERDICT_ALIGNED);
    assert_true(x->overhead_pct == 0);
    gac_inspection_free(x);
    small_close(&m);
    gac_contract_free(contract);
}

/* Two phases with the times given, the second three times as important. */
static gac_verdict verdict_of(const gac_model *model, gac_inspection *x, double now,
                              const double exact[2], const double rescaled[2])
{
    x->workload.n_phases = 2;
    for (int i = 0; i < 2; i++) {
        x->workload.phases[i].weight = i ? 3 : 1;
        x->phases[i].now_ms = now;
        x->phases[i].exact_ms = exact[i];
        x->phases[i].rescaled_ms = rescaled[i];
    }
    gac_inspect_decide(model, x);
    return x->verdict;
}

static void test_verdicts(void **state)
{
    (void)state;
    gac_contract *contract = load_contract();
    small_model m = open_misaligned("verdicts");
    gac_inspection *x = NULL;
    assert_ok(gac_inspect(m.model, contract, NULL, &x, err));
    const struct {
        double exact[2], rescaled[2];
        gac_verdict verdict;
        bool rescaled_gains;
    } cases[] = {
        { { 96, 100 }, { 96, 100 }, GAC_VERDICT_PAYS, false },
        { { 96, 100 }, { 90, 90 }, GAC_VERDICT_PAYS, true },
        { { 98, 98 }, { 98, 98 }, GAC_VERDICT_SMALL, false },
        { { 98, 98 }, { 90, 98 }, GAC_VERDICT_PAYS_RESCALED, false },
        { { 100, 101 }, { 100, 101 }, GAC_VERDICT_SLOWER, false },
        /* A phase gains, but the whole loses. */
        { { 90, 110 }, { 90, 110 }, GAC_VERDICT_SLOWER, false },
        { { 90, 110 }, { 90, 90 }, GAC_VERDICT_PAYS_RESCALED, true },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_int_equal(verdict_of(m.model, x, 100, cases[i].exact, cases[i].rescaled),
                         cases[i].verdict);
        assert_int_equal(x->rescaled_gains, cases[i].rescaled_gains);
    }
    assert_true(x->exact_ratio == (90 + 3 * 110) / 400.0);
    for (int v = 0; v < GAC_VERDICT_COUNT; v++)
        for (int w = 0; w < v; w++)
            assert_string_not_equal(gac_verdict_name((gac_verdict)v),
                                    gac_verdict_name((gac_verdict)w));
    assert_string_equal(gac_verdict_name(GAC_VERDICT_COUNT), "unknown");
    gac_inspection_free(x);
    small_close(&m);
    gac_contract_free(contract);
}

static void test_bad(void **state)
{
    (void)state;
    static const gac_inspect_options usual = GAC_INSPECT_OPTIONS_INIT, zero;
    gac_contract *contract = load_contract();
    small_model m = open_misaligned("bad");
    gac_inspection *x = NULL;
    gac_workload empty = { .n_phases = 0 };
    gac_inspect_options bad[] = { zero, usual, usual, usual, usual, usual };
    bad[1].dtype = (gac_dtype)-1;
    bad[2].dtype = (gac_dtype)(GAC_DTYPE_COUNT + 1);
    bad[3].n_gpus = 0;
    bad[4].quant_group = -1;
    bad[5].workload = &empty;
    static const char *const pieces[] = { "nothing of BOOL", "no dtype",           "no dtype",
                                          "at least 1 GPU",  "quantisation group", "phases" };
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        assert_fails(gac_inspect(m.model, contract, &bad[i], &x, err), GAC_USAGE, pieces[i]);
        assert_null(x);
    }
    assert_fails(gac_inspect(NULL, contract, NULL, &x, err), GAC_USAGE, "NULL");
    assert_fails(gac_inspect(m.model, NULL, NULL, &x, err), GAC_USAGE, "NULL");
    assert_fails(gac_inspect(m.model, contract, NULL, NULL, err), GAC_USAGE, "NULL");
    gac_inspection_free(NULL);
    small_close(&m);
    gac_contract_free(contract);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counts),
        cmocka_unit_test(test_aligned),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_bad),
    };
    return cmocka_run_group_tests(tests, scratch_create, scratch_remove);
}
