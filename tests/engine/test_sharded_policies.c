/* Policies of splits: plans alone, and what is refused. */
#include "engine/engine.h"
#include "support/sharded.h"
#include "support/support.h"

#include <stdio.h>
#include <string.h>

/* ---- plans alone, and what is refused ---- */

static dw_status plan_products(dw_context *context, const char *mesh, const char *shard, const char *precision) {
    dw_model *model = NULL;
    const dw_status status = sharded_open_products(context, &(dw_model_options){.mesh = mesh, .shard = shard, .precision = precision, .flags = DW_MODEL_PLAN_ONLY | DW_MODEL_VERIFY}, &model);
    dw_model_destroy(model);
    return status;
}

/* By the time that each way takes. */
static dw_status plan_chosen(dw_context *context, void *argument) { return plan_products(context, "tp=2", NULL, argument); }
static dw_status plan_scenario(dw_context *context, void *argument) { return plan_products(context, "tp=3", "mlp.down = row", argument); }

static dw_status plan_tokens(dw_context *context, void *argument) { return plan_products(context, "tp=3", "all\nsums = tokens", argument); }

static void every_allocation_of_a_cut_may_fail(void **state) {
    (void)state;
    test_every_allocation(plan_tokens, "mxfp8");
    test_every_allocation(plan_scenario, NULL);
    test_every_allocation(plan_chosen, NULL);
    test_every_allocation(plan_scenario, "nvfp4");
}

static void what_cannot_be_is_refused_with_the_numbers(void **state) {
    dw_context *context;
    dw_model *model;
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    test_assert_fails(context, plan_products(context, "ep=2", NULL, NULL), DW_INVALID, "no model is cut over axis 'ep' (2 ranks); there are tp");
    test_assert_fails(context, plan_products(context, "tp=2", "mlp.side = row", NULL), DW_INVALID, "the pattern of 'mlp.side = row (shard:1)' matches no layer");
    test_assert_fails(context, plan_products(context, "tp=2", "mlp.up = rows", NULL), DW_NOT_FOUND, "shard:1: there is no split 'rows'; there are column, row, tokens, heads, vocabulary, experts, whole");
    test_assert_fails(context, plan_products(context, "tp=2", "# none\nmlp.up row", NULL), DW_SYNTAX, "shard:2: a line is 'pattern = split', 'all' or 'strict', found 'mlp.up row'");
    test_assert_fails(context, plan_products(context, "tp=2", "scales = own", NULL), DW_NOT_FOUND, "shard:1: scales are 'local' or 'whole', found 'own'");
    test_assert_fails(context, plan_products(context, "tp=2", "sums = own", NULL), DW_NOT_FOUND, "shard:1: sums are of 'tokens' or 'whole', found 'own'");
    test_assert_fails(context, plan_products(context, "tp=11", "mlp.down = tokens", "mxfp8"), DW_INVALID, "mlp.down cannot be cut by tokens over 11 ranks");
    test_assert_fails(context, plan_products(context, "tp=11", "mlp.down = row", "mxfp8"), DW_INVALID, "there are fewer blocks along k than ranks (320 elements, in units of 32)");
    test_assert_fails(context, plan_products(context, "tp=400", "mlp.up = column", NULL), DW_INVALID, "there are fewer units than ranks (320 elements, in units of 1)");
    test_assert_fails(context, plan_products(context, NULL, "mlp.up = row", NULL), DW_INVALID, "there is one rank of tp, and nothing to cut");
    test_assert_fails(context, plan_products(context, "dp=2", "mlp.side = row", NULL), DW_INVALID, "there is one rank of tp, and nothing to cut");
    test_assert_fails(context, sharded_open_products(context, &(dw_model_options){.mesh = "tp=2"}, &model), DW_INVALID, "a mesh alone is for plans that are not run");
    assert_int_equal(plan_products(context, "dp=2,tp=4", NULL, NULL), DW_OK);
    assert_int_equal(plan_products(context, "dp=8", NULL, NULL), DW_OK);
    assert_int_equal(plan_products(context, "tp=1", NULL, NULL), DW_OK);
    dw_context_destroy(context);
}

static void more_ranks_than_heads_are_refused_where_heads_are_asked_for(void **state) {
    dw_context *context;
    dw_model *model;
    (void)state;
    sharded_need_fixtures();
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    const dw_model_options options = {.mesh = "tp=16", .shard = "*self_attn.q_proj = heads", .flags = DW_MODEL_PLAN_ONLY};
    test_assert_fails(context, dw_model_open(context, TEST_FIXTURES_DIR "/llama.pt2", &options, &model), DW_INVALID, "model.layers.0.self_attn.q_proj cannot be cut by heads over 16 ranks");
    dw_context_destroy(context);
}

/* Lines of any splits over any layers: a plan that checks, or a refusal by name. */
static void any_policy_plans_or_is_refused(void **state) {
    static const char *const patterns[] = {"*", "*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj", "*.up_proj", "*.gate_proj", "*.down_proj", "lm_head", "*embed*", "*self_attn", "*experts*", "role:attention", "role:mlp", "*.1.*", "*.mlp*"};
    static const char *const splits[] = {"column", "row", "tokens", "heads", "vocabulary", "experts", "whole"};
    static const char *const precisions[] = {NULL, "mxfp8", "nvfp4", "fp8"};
    static const char *const names[] = {"llama", "mixtral"};
    dw_context *context;
    int planned = 0, refused = 0;
    (void)state;
    sharded_need_fixtures();
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (uint64_t seed = 0; seed < 120; seed++) {
        char rules[512] = "", mesh[16], file[4096];
        dw_model *model = NULL;
        size_t at = 0;
        for (uint64_t i = 0; i <= num_random(seed, 0) % 3; i++)
            at += (size_t)snprintf(rules + at, sizeof rules - at, "%s = %s\n", patterns[num_random(seed, 2 * i + 1) % COUNT_OF(patterns)], splits[num_random(seed, 2 * i + 2) % COUNT_OF(splits)]);
        const bool is_strict = num_random(seed, 23) % 4 == 0;
        if (is_strict) at += (size_t)snprintf(rules + at, sizeof rules - at, "strict\n");
        if (num_random(seed, 24) % 2 == 0) at += (size_t)snprintf(rules + at, sizeof rules - at, "all\n");
        if (num_random(seed, 25) % 3 == 0) snprintf(rules + at, sizeof rules - at, "sums = tokens\n");
        snprintf(mesh, sizeof mesh, "tp=%d", 2 + (int)(num_random(seed, 20) % 7));
        snprintf(file, sizeof file, "%s/%s.pt2", TEST_FIXTURES_DIR, names[num_random(seed, 21) % COUNT_OF(names)]);
        const dw_model_options options = {.mesh = mesh, .shard = rules, .precision = precisions[num_random(seed, 22) % COUNT_OF(precisions)], .flags = DW_MODEL_PLAN_ONLY | DW_MODEL_VERIFY | DW_MODEL_GENERATE};
        const dw_status status = dw_model_open(context, file, &options, &model);
        if (status != DW_OK && ((status != DW_INVALID && !(is_strict && status == DW_UNSUPPORTED)) || strstr(dw_context_error(context), "shard: ") == NULL)) fail_msg("seed %d, %s, %s: %s\n%s", (int)seed, file, mesh, dw_context_error(context), rules);
        planned += status == DW_OK;
        refused += status != DW_OK;
        dw_model_destroy(model);
    }
    assert_true(planned > 20 && refused > 20);
    dw_context_destroy(context);
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_allocation_of_a_cut_may_fail),
        cmocka_unit_test(what_cannot_be_is_refused_with_the_numbers),
        cmocka_unit_test(more_ranks_than_heads_are_refused_where_heads_are_asked_for),
        cmocka_unit_test(any_policy_plans_or_is_refused),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);   /* of one test alone */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
