/* Models cut over ranks, threads of this process, beside the same whole: outputs, texts, and the one text of all plans. Their weights and packages are test_sharded_weights.c's, what may be asked for test_sharded_policies.c's. */
#include "engine/engine.h"
#include "support/ranks.h"
#include "support/session.h"
#include "support/sharded.h"
#include "support/support.h"
#include "support/wire.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "capture/capture.h"

/* fp32 sums in another order. */
#define BOUND 1e-5

enum { MOST_OUTPUTS = 8, TOKENS = 12 };

/* ---- a run of a fixture: outputs of the whole model, and of each rank ---- */

typedef struct run {
    const char *file, *inputs, *precision, *shard;
    int world, count;
    bool carried;                   /* ranks reach each other by an engine of the caller's */
    op_id counted;                  /* of a rank's whole runs how many such nodes, and of which format the last of them gives */
    int found;
    dw_format format;
    run_io io;                      /* inputs */
    dw_named_tensor expected[MOST_OUTPUTS];
    double error[RANKS_MOST];
    uint64_t hash[RANKS_MOST];      /* of a rank's outputs */
    uint64_t plans[RANKS_MOST];     /* of its plans' texts */
} run;

static dw_named_tensor *run_model(dw_context *context, const dw_model *model, const run *run, dw_named_tensor *outputs) {
    dw_session *session;
    char dims[512];
    const int count = dw_model_output_count(model);
    rank_assert(context, count <= MOST_OUTPUTS);
    rank_ok(context, dw_model_sizes(model, run->io.input_count, run->io.inputs, dims, sizeof dims));
    rank_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = dims}, &session));
    rank_ok(context, dw_session_shapes(session, run->io.input_count, run->io.inputs, outputs));
    for (int i = 0; i < count; i++) {
        uint64_t bytes;
        rank_ok(context, dw_tensor_bytes(context, &outputs[i].tensor, &bytes));
        outputs[i].tensor.data = calloc(1, (size_t)bytes + 1);
    }
    rank_ok(context, dw_session_run(session, run->io.input_count, run->io.inputs, count, outputs));
    dw_session_destroy(session);
    return outputs;
}

static uint64_t hash_outputs(dw_context *context, const dw_named_tensor *outputs, int count) {
    uint64_t hash = 0;
    for (int i = 0; i < count; i++) {
        uint64_t bytes;
        rank_ok(context, dw_tensor_bytes(context, &outputs[i].tensor, &bytes));
        hash = base_hash(outputs[i].tensor.data, (size_t)bytes, hash);
    }
    return hash;
}

static uint64_t hash_plans(dw_context *context, const dw_model *model) {
    const plan *const plans[] = {model->full.plan, model->step.plan, model->prelude.plan};
    uint64_t hash = 0;
    for (size_t i = 0; i < COUNT_OF(plans); i++) {
        text words;
        if (plans[i] == NULL) continue;
        text_init(&words, context);
        rank_ok(context, plan_print(plans[i], &words));
        hash = base_hash(text_string(&words), words.length, hash);
        text_free(&words);
    }
    return hash;
}

static void count_nodes(run *run, const ir_graph *graph) {
    run->found = 0;
    for (const ir_node *node = graph->first; node != NULL; node = node->next) {
        if (node->op != run->counted) continue;
        run->found++;
        if (dw_format_is_block(ir_out(node)->type.format)) run->format = ir_out(node)->type.format;
    }
}

static void run_rank(int rank, dw_context *context, dw_comm *comm, void *user) {
    run *run = user;
    dw_model *model;
    dw_named_tensor outputs[MOST_OUTPUTS];
    const dw_model_options options = {.comm = comm, .precision = run->precision, .shard = run->shard != NULL ? run->shard : "all", .flags = DW_MODEL_GENERATE | DW_MODEL_VERIFY};   /* models so small take less time whole */
    rank_ok(context, dw_model_open(context, run->file, &options, &model));
    run_model(context, model, run, outputs);
    run->error[rank] = 0;
    for (int i = 0; i < run->count; i++) {
        const double error = tensor_error(&outputs[i].tensor, &run->expected[i].tensor);
        if (!(error <= run->error[rank])) run->error[rank] = error;
    }
    run->hash[rank] = hash_outputs(context, outputs, run->count);
    run->plans[rank] = hash_plans(context, model);
    if (rank == 0) count_nodes(run, model->full.plan->graph);
    for (int i = 0; i < run->count; i++) free(outputs[i].tensor.data);
    dw_model_destroy(model);
}

static void whole_run(dw_context *context, run *run) {
    dw_model *model;
    assert_ok(context, dw_model_open(context, run->file, &(dw_model_options){.precision = run->precision}, &model));
    run->count = dw_model_output_count(model);
    run_model(context, model, run, run->expected);
    dw_model_destroy(model);
}

/* By so many ranks: each is as far off as that at most, and all have one another's bits, those of the run before, and one text of plans. */
static void assert_ranks(run *run, int world, double bound) {
    uint64_t before = 0;
    char mesh[16];
    dw_collectives engines[RANKS_MOST];
    snprintf(mesh, sizeof mesh, "tp=%d", world);
    for (int again = 0; again < 2; again++) {
        wire *w = wire_create(mesh, 0, 0, DW_OK, engines);
        ranks_run(&(ranks){.world = world, .engines = run->carried ? engines : NULL, .user = run}, run_rank);
        wire_destroy(w);
        for (int rank = 0; rank < world; rank++) {
            if (!(run->error[rank] <= bound)) fail_msg("%s on %d ranks: rank %d is off by %.2e, allowed %.0e", run->file, world, rank, run->error[rank], bound);
            if (run->hash[rank] != run->hash[0]) fail_msg("%s on %d ranks: rank %d has other outputs than rank 0", run->file, world, rank);
            if (run->plans[rank] != run->plans[0]) fail_msg("%s on %d ranks: rank %d has another plan than rank 0", run->file, world, rank);
        }
        if (again > 0 && before != run->hash[0]) fail_msg("%s on %d ranks: the second run has other bits", run->file, world);
        before = run->hash[0];
    }
}

/* A fixture with inputs of these sizes, run whole. */
typedef struct fixture {
    char file[4096], inputs[4096];
    dw_context *context;
    ir_weights given;
    run run;
} fixture;

static void open_fixture(fixture *f, const char *name, const char *sizes, const char *precision) {
    *f = (fixture){.run = {.file = f->file, .inputs = f->inputs, .precision = precision}};
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &f->context), DW_OK);
    snprintf(f->file, sizeof f->file, "%s/%s.pt2", TEST_FIXTURES_DIR, name);
    snprintf(f->inputs, sizeof f->inputs, "%s/%s.cases/%s.in.safetensors", TEST_FIXTURES_DIR, name, sizes);
    ir_weights_init(&f->given, f->context);
    assert_ok(f->context, safetensors_open(f->context, f->inputs, &f->given));
    for (size_t i = 0; i < f->given.by_name.count; i++) {
        const ir_weight *input = f->given.by_name.entries[i].value;
        f->run.io.inputs[f->run.io.input_count++] = (dw_named_tensor){input->name, input->tensor};
    }
    whole_run(f->context, &f->run);
}

static void close_fixture(fixture *f) {
    for (int i = 0; i < f->run.count; i++) free(f->run.expected[i].tensor.data);
    ir_weights_free(&f->given);
    dw_context_destroy(f->context);
}

static void check_fixture(const char *name, const char *sizes, const char *precision, const char *shard, double bound, int most) {
    fixture f;
    open_fixture(&f, name, sizes, precision);
    f.run.shard = shard;
    for (int world = 2; world <= most; world++) assert_ranks(&f.run, world, bound);
    close_fixture(&f);
}

static void models_give_the_outputs_of_the_whole(void **state) {
    static const char *const models[][2] = {
        {"kjv", "b2_s16"},     {"llama", "b2_s16"}, {"gpt2", "b2_s16"}, {"gemma2", "b2_s16"}, {"mixtral", "b2_s16"}, {"qwen3_moe", "b2_s16"}, {"deepseek_v3", "b2_s16"},
        {"gpt_oss", "b2_s16"}, {"t5", "b2_e16_s9"}, {"bert", "b2_s16"}, {"vit", "b2"},        {"phi3", "b2_s16"},    {"falcon", "b2_s16"},    {"gpt_bigcode", "b2_s16"},
    };
    (void)state;
    sharded_need_fixtures();
    for (size_t i = 0; i < COUNT_OF(models); i++) check_fixture(models[i][0], models[i][1], NULL, NULL, BOUND, 4);
}

/* strict refuses what no rule cuts, so experts are cut in all graphs of these models: whole runs, and the cached step. */
static void experts_are_cut_in_every_graph(void **state) {
    static const char *const models[] = {"mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "phimoe", "granitemoe", "deepseek_v3", "gpt_oss"};
    (void)state;
    sharded_need_fixtures();
    for (size_t i = 0; i < COUNT_OF(models); i++) check_fixture(models[i], "b2_s16", NULL, "all\nstrict", BOUND, 2);
}

static void strict_refuses_what_no_rule_cuts(void **state) {
    dw_context *context;
    dw_model *model;
    const dw_model_options options = {.mesh = "tp=2", .shard = "all", .flags = DW_MODEL_PLAN_ONLY};
    dw_model_options strict = options;
    (void)state;
    sharded_need_fixtures();
    strict.shard = "*.fc1 = whole\nstrict\nall";
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    test_assert_fails(context, dw_model_open(context, TEST_FIXTURES_DIR "/whisper.pt2", &strict, &model), DW_UNSUPPORTED, "shard: op conv has no rule for parts (model.encoder.conv1), so each of 2 ranks would compute all of it");
    test_assert_fails(context, dw_model_open(context, TEST_FIXTURES_DIR "/whisper.pt2", &strict, &model), DW_UNSUPPORTED, "which 'strict' forbids (shard:2)");
    assert_ok(context, dw_model_open(context, TEST_FIXTURES_DIR "/whisper.pt2", &options, &model));
    assert_non_null(strstr(model->split_report, "op conv has no rule for parts: "));
    assert_non_null(strstr(model->split_report, "model.encoder.layers.0.fc1 "));          /* runs alone have the encoder, the cached step the decoder */
    assert_non_null(strstr(model->split_report, "model.decoder.layers.0.self_attn.q_proj "));
    dw_model_destroy(model);
    dw_context_destroy(context);
}

/* ---- few bits ---- */

#define OF_A_CODE 1e-3
#define OF_A_MODEL_IN_BF16 0.02     /* whose norms are in bf16, too: nothing in it can be off by 1e-7 */

enum { DISTURBANCES = 4 };

/* The same values, each off by at most 1e-7 of itself. */
static void disturb(const dw_tensor *from, uint64_t seed, float *to) {
    for (int64_t i = 0; i < op_tensor_count(from); i++) to[i] = ((const float *)from->data)[i] * (1 + 1e-7F * (2 * num_random_uniform(seed, (uint64_t)i) - 1));
}

/* Which weights no format of few bits holds: vectors, of norms and biases. */
static bool is_vector(const ir_value *value) { return value->kind == IR_PARAM && value->weight != NULL && value->weight->tensor.rank == 1 && value->weight->tensor.format == DW_FORMAT_f32; }

/* How far outputs move on one rank when each norm and bias is off by 1e-7: one code in thousands rounds the other way, which the next layers enlarge. */
static double disturbance_of(fixture *f, uint64_t seed) {
    dw_model *model;
    dw_named_tensor outputs[MOST_OUTPUTS], changed[256];
    double largest = 0;
    int count = 0;
    assert_ok(f->context, dw_model_open(f->context, f->file, &(dw_model_options){.precision = f->run.precision}, &model));
    for (size_t i = 0; i < model->full.plan->graph->param_count; i++) {
        const ir_value *value = model->full.plan->graph->params[i];
        if (!is_vector(value) || count == (int)COUNT_OF(changed)) continue;
        changed[count] = (dw_named_tensor){value->name, value->weight->tensor};
        changed[count].tensor.data = malloc((size_t)op_tensor_count(&value->weight->tensor) * sizeof(float));
        disturb(&value->weight->tensor, seed * 256 + (uint64_t)count, changed[count].tensor.data);
        count++;
    }
    assert_true(count > 0);
    assert_ok(f->context, dw_model_update(model, count, changed));
    run_model(f->context, model, &f->run, outputs);
    for (int i = 0; i < f->run.count; i++) {
        const double error = tensor_error(&outputs[i].tensor, &f->run.expected[i].tensor);
        if (error > largest) largest = error;
        free(outputs[i].tensor.data);
    }
    dw_model_destroy(model);
    for (int i = 0; i < count; i++) free(changed[i].tensor.data);
    return largest;
}

/* Ranks add in another order: that takes outputs no further than twice what such a disturbance does, or than one code that rounds the other way does where none did. */
static void models_of_few_bits_are_as_near_as_a_disturbance_takes_them(void **state) {
    static const char *const precisions[] = {"mxfp8", "nvfp4", "fp8"}, *const models[][2] = {{"llama", "b2_s16"}, {"mixtral", "b2_s16"}, {"vit", "b2"}};
    (void)state;
    sharded_need_fixtures();
    for (size_t i = 0; i < COUNT_OF(precisions) * COUNT_OF(models); i++) {
        fixture f;
        double largest = 0;
        open_fixture(&f, models[i / COUNT_OF(precisions)][0], models[i / COUNT_OF(precisions)][1], precisions[i % COUNT_OF(precisions)]);
        for (uint64_t seed = 1; seed <= DISTURBANCES; seed++) largest = fmax(largest, disturbance_of(&f, seed));
        print_message("%s in %s: a disturbance of 1e-7 takes it %.1e far\n", models[i / COUNT_OF(precisions)][0], f.run.precision, largest);
        for (int world = 2; world <= 3; world++) assert_ranks(&f.run, world, fmax(2 * largest, OF_A_CODE));
        close_fixture(&f);
    }
    for (size_t i = 0; i < COUNT_OF(precisions); i++) check_fixture("kjv", "b2_s16", precisions[i], NULL, OF_A_MODEL_IN_BF16, 3);
}

/* With sums of all tokens on each rank, and of some: bit for bit the same, at any number of tokens. */
static void check_tokens(const char *name, const char *sizes, const char *precision, int world, bool carried) {
    fixture f;
    open_fixture(&f, name, sizes, precision);
    f.run.carried = carried;
    f.run.counted = OP_reduce_scatter;
    f.run.shard = "all\nsums = whole";
    assert_ranks(&f.run, world, precision != NULL ? 0.02 : BOUND);
    assert_int_equal(f.run.found, 0);
    const uint64_t whole = f.run.hash[0];
    f.run.shard = "all\nsums = tokens";
    assert_ranks(&f.run, world, precision != NULL ? 0.02 : BOUND);
    if (f.run.found == 0) fail_msg("%s on %d ranks: nothing is cut by tokens", name, world);
    if (f.run.hash[0] != whole) fail_msg("%s at %s in %s on %d ranks%s: sums by tokens have other bits", name, sizes, precision != NULL ? precision : "fp32", world, carried ? " of an engine" : "");
    close_fixture(&f);
}

static void sums_by_tokens_have_the_bits_of_whole_sums(void **state) {
    static const struct { const char *name, *sizes, *precision; int world; } runs[] = {
        {"llama", "b1_s1", NULL, 2},     {"llama", "b1_s7", NULL, 2},      {"llama", "b2_s16", "mxfp8", 2}, {"kjv", "b1_s7", "nvfp4", 3},        {"kjv", "b2_s16", "fp8", 4},    {"gpt2", "b1_s7", NULL, 3},       {"gemma2", "b1_s7", "fp8-row", 2},
        {"bert", "b2_s16", "mxfp8", 3}, {"t5", "b2_e16_s9", NULL, 2},     {"vit", "b2", NULL, 4},           {"deepseek_v3", "b2_s16", NULL, 2}, {"mixtral", "b2_s16", NULL, 2}, {"falcon", "b1_s7", "mxfp8", 2}, {"gptj", "b2_s16", NULL, 3},
    };
    (void)state;
    sharded_need_fixtures();
    for (size_t i = 0; i < COUNT_OF(runs); i++) check_tokens(runs[i].name, runs[i].sizes, runs[i].precision, runs[i].world, i % 3 == 1);
}

/* What a product reads in mxfp8 travels in that. */
static void what_is_quantised_travels_quantised(void **state) {
    fixture f;
    (void)state;
    sharded_need_fixtures();
    open_fixture(&f, "kjv", "b1_s7", "mxfp8");
    f.run.shard = "all\nsums = tokens";
    f.run.counted = OP_all_gather;
    assert_ranks(&f.run, 2, 0.02);
    assert_int_equal(f.run.format, DW_FORMAT_mxfp8);
    close_fixture(&f);
}

static void named_splits_give_the_outputs_of_the_whole(void **state) {
    static const char *const splits[] = {
        "* = whole", "*.mlp.* = whole", "*self_attn* = whole", "lm_head = whole\n*embed* = whole", "*.down_proj = whole", "*.o_proj = row\nrole:mlp = column", "*.down_proj = column", "*.gate_proj = row\n*.up_proj = row",
        "role:attention = heads", "*embed_tokens = vocabulary", "*.self_attn = whole", "# by time",
    };
    (void)state;
    sharded_need_fixtures();
    for (size_t i = 0; i < COUNT_OF(splits); i++) check_fixture("llama", "b1_s7", NULL, splits[i], BOUND, 2);
    check_fixture("mixtral", "b2_s16", NULL, "*experts* = whole", BOUND, 2);
}

/* ---- texts ---- */

/* top_k 0: among all */
typedef struct text_run { const char *file; double temperature; int top_k; int64_t ids[2][TOKENS], made[RANKS_MOST][2][TOKENS]; } text_run;

static const int64_t prompt_a[] = {5, 17, 101, 3, 25}, prompt_b[] = {7, 9};

static void generate(dw_context *context, const dw_model *model, const text_run *run, int64_t ids[2][TOKENS]) {
    dw_session *session;
    dw_generate_times times;
    dw_prompt prompts[2] = {{.count = COUNT_OF(prompt_a), .ids = prompt_a, .seed = 1, .made_ids = ids[0]}, {.count = COUNT_OF(prompt_b), .ids = prompt_b, .seed = 2, .made_ids = ids[1]}};
    rank_ok(context, dw_session_create(context, model, &(dw_session_options){.max_tokens = TOKENS + 8, .rows = 2}, &session));
    rank_ok(context, dw_session_generate_batch(session, 2, prompts, &(dw_generate_options){.tokens = TOKENS, .temperature = run->temperature, .top_k = run->top_k}, &times));
    dw_session_destroy(session);
}

/* Each rank has its part of the logits, and all that the step tells the others of them is one number and id a row. */
static bool has_parted_logits(const ir_graph *step, int world) {
    int64_t columns, size;
    const int logits = incremental_find_logits(step, &columns);
    const char *all = map_find(&step->notes, STEP_NOTE_VOCABULARY);
    if (logits < 0 || all == NULL || columns * world < atoll(all) || columns >= atoll(all)) return false;
    const char *head = step->outputs[logits].value->node->origin.module;
    for (const ir_node *node = step->first; node != NULL; node = node->next)
        if (node->op == OP_all_gather && head != NULL && node->origin.module != NULL && strcmp(node->origin.module, head) == 0 && (!dim_is_constant(ir_in(node, 0)->type.dims[ir_in(node, 0)->type.rank - 1], &size) || size == columns)) return false;
    return true;
}

static void generate_rank(int rank, dw_context *context, dw_comm *comm, void *user) {
    text_run *run = user;
    dw_model *model;
    rank_ok(context, dw_model_open(context, run->file, &(dw_model_options){.comm = comm, .shard = "all", .flags = DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY}, &model));
    rank_assert(context, model->step.plan == NULL || has_parted_logits(model->step.plan->graph, dw_comm_world(comm)));
    generate(context, model, run, run->made[rank]);
    dw_model_destroy(model);
}

static void texts_are_those_of_the_whole(void **state) {
    static const char *const names[] = {"kjv", "llama", "gpt2", "gpt_oss", "deepseek_v3", "gemma2", "shifted_gpt"};
    static const struct { double temperature; int top_k; } draws[] = {{0, 0}, {0.9, 20}, {0.9, 0}};   /* likeliest ids are sent, those of each rank that top_k lets in, and all logits */
    (void)state;
    sharded_need_fixtures();
    for (size_t i = 0; i < COUNT_OF(draws) * COUNT_OF(names); i++) {
        char file[4096];
        dw_context *context;
        dw_model *whole;
        const char *name = names[i / COUNT_OF(draws)];
        text_run run = {.file = file, .temperature = draws[i % COUNT_OF(draws)].temperature, .top_k = draws[i % COUNT_OF(draws)].top_k};
        snprintf(file, sizeof file, "%s/%s.pt2", TEST_FIXTURES_DIR, name);
        assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &context), DW_OK);
        assert_ok(context, dw_model_open(context, file, &(dw_model_options){.flags = DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY}, &whole));
        generate(context, whole, &run, run.ids);
        for (int world = 2; world <= 3; world++) {
            ranks_run(&(ranks){.world = world, .user = &run}, generate_rank);
            for (int rank = 0; rank < world; rank++)
                if (memcmp(run.made[rank], run.ids, sizeof run.ids) != 0) fail_msg("%s at temperature %g, top_k %d on %d ranks: rank %d makes another text", name, run.temperature, run.top_k, world, rank);
        }
        dw_model_destroy(whole);
        dw_context_destroy(context);
    }
}

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(models_give_the_outputs_of_the_whole),
        cmocka_unit_test(experts_are_cut_in_every_graph),
        cmocka_unit_test(strict_refuses_what_no_rule_cuts),
        cmocka_unit_test(models_of_few_bits_are_as_near_as_a_disturbance_takes_them),
        cmocka_unit_test(sums_by_tokens_have_the_bits_of_whole_sums),
        cmocka_unit_test(what_is_quantised_travels_quantised),
        cmocka_unit_test(named_splits_give_the_outputs_of_the_whole),
        cmocka_unit_test(texts_are_those_of_the_whole),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);   /* of one test alone */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
