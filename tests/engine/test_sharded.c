/* Models cut over ranks, threads of this process, beside the same whole: outputs, texts, weights, the one text of all plans, policies of splits, and what is refused. */
#include "deepwell/serve.h"
#include "engine/engine.h"
#include "support/ranks.h"
#include "support/session.h"
#include "support/support.h"

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
    for (int again = 0; again < 2; again++) {
        ranks_run(&(ranks){.world = world, .user = run}, run_rank);
        for (int rank = 0; rank < world; rank++) {
            if (!(run->error[rank] <= bound)) fail_msg("%s on %d ranks: rank %d is off by %.2e, allowed %.0e", run->file, world, rank, run->error[rank], bound);
            if (run->hash[rank] != run->hash[0]) fail_msg("%s on %d ranks: rank %d has other outputs than rank 0", run->file, world, rank);
            if (run->plans[rank] != run->plans[0]) fail_msg("%s on %d ranks: rank %d has another plan than rank 0", run->file, world, rank);
        }
        if (again > 0 && before != run->hash[0]) fail_msg("%s on %d ranks: the second run has other bits", run->file, world);
        before = run->hash[0];
    }
}

static void check_fixture(const char *name, const char *sizes, const char *precision, const char *shard, double bound, int most) {
    char file[4096], inputs[4096];
    dw_context *context;
    ir_weights given;
    run run = {.file = file, .inputs = inputs, .precision = precision, .shard = shard};
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &context), DW_OK);
    snprintf(file, sizeof file, "%s/%s.pt2", TEST_FIXTURES_DIR, name);
    snprintf(inputs, sizeof inputs, "%s/%s.cases/%s.in.safetensors", TEST_FIXTURES_DIR, name, sizes);
    ir_weights_init(&given, context);
    assert_ok(context, safetensors_open(context, inputs, &given));
    for (size_t i = 0; i < given.by_name.count; i++) {
        const ir_weight *input = given.by_name.entries[i].value;
        run.io.inputs[run.io.input_count++] = (dw_named_tensor){input->name, input->tensor};
    }
    whole_run(context, &run);
    for (int world = 2; world <= most; world++) assert_ranks(&run, world, bound);
    for (int i = 0; i < run.count; i++) free(run.expected[i].tensor.data);
    ir_weights_free(&given);
    dw_context_destroy(context);
}

static bool has_fixtures(void) {
    FILE *file = fopen(TEST_FIXTURES_DIR "/manifest.json", "rb");
    if (file != NULL) fclose(file);
    return file != NULL;
}

static void need_fixtures(void) {
    if (has_fixtures()) return;
    printf("skipped: there are no fixtures; scripts/fixtures.sh makes them\n");
    skip();
}

static void models_give_the_outputs_of_the_whole(void **state) {
    static const char *const models[][2] = {
        {"kjv", "b2_s16"},     {"llama", "b2_s16"}, {"gpt2", "b2_s16"}, {"gemma2", "b2_s16"}, {"mixtral", "b2_s16"}, {"qwen3_moe", "b2_s16"}, {"deepseek_v3", "b2_s16"},
        {"gpt_oss", "b2_s16"}, {"t5", "b2_e16_s9"}, {"bert", "b2_s16"}, {"vit", "b2"},        {"phi3", "b2_s16"},    {"falcon", "b2_s16"},    {"gpt_bigcode", "b2_s16"},
    };
    (void)state;
    need_fixtures();
    for (size_t i = 0; i < COUNT_OF(models); i++) check_fixture(models[i][0], models[i][1], NULL, NULL, BOUND, 4);
}

/* strict refuses what no rule cuts, so experts are cut in all graphs of these models: whole runs, and the cached step. */
static void experts_are_cut_in_every_graph(void **state) {
    static const char *const models[] = {"mixtral", "qwen3_moe", "qwen2_moe", "olmoe", "phimoe", "granitemoe", "deepseek_v3", "gpt_oss"};
    (void)state;
    need_fixtures();
    for (size_t i = 0; i < COUNT_OF(models); i++) check_fixture(models[i], "b2_s16", NULL, "all\nstrict", BOUND, 2);
}

static void strict_refuses_what_no_rule_cuts(void **state) {
    dw_context *context;
    dw_model *model;
    const dw_model_options options = {.mesh = "tp=2", .shard = "all", .flags = DW_MODEL_PLAN_ONLY};
    dw_model_options strict = options;
    (void)state;
    need_fixtures();
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

/* One code in thousands may round the other way, which the next layers enlarge. */
static void models_of_few_bits_stay_near_the_whole(void **state) {
    static const char *const precisions[] = {"mxfp8", "nvfp4", "fp8"};
    (void)state;
    need_fixtures();
    for (size_t i = 0; i < COUNT_OF(precisions); i++) {
        check_fixture("kjv", "b2_s16", precisions[i], NULL, 0.02, 3);
        check_fixture("mixtral", "b2_s16", precisions[i], NULL, 0.02, 3);
    }
}

static void named_splits_give_the_outputs_of_the_whole(void **state) {
    static const char *const splits[] = {
        "* = whole", "*.mlp.* = whole", "*self_attn* = whole", "lm_head = whole\n*embed* = whole", "*.down_proj = whole", "*.o_proj = row\nrole:mlp = column", "*.down_proj = column", "*.gate_proj = row\n*.up_proj = row",
        "role:attention = heads", "*embed_tokens = vocabulary", "*.self_attn = whole", "# by time",
    };
    (void)state;
    need_fixtures();
    for (size_t i = 0; i < COUNT_OF(splits); i++) check_fixture("llama", "b1_s7", NULL, splits[i], BOUND, 2);
    check_fixture("mixtral", "b2_s16", NULL, "*experts* = whole", BOUND, 2);
}

/* ---- weights ---- */

/* Two products, of which one is cut by columns and one along k, at sizes that 3 does not divide, nor 4 in blocks of 32. */
static const char PRODUCTS[] =
    "graph products\n"
    "  symbol s 1..64\n"
    "  input x f32[s,64]\n"
    "  param up f32[320,64]\n"
    "  param down f32[64,320]\n"
    "  %1 = matmul x, up {bt=true,post=\"gelu\"} at \"mlp.up\"\n"
    "  %2 = matmul %1, down {bt=true} at \"mlp.down\"\n"
    "  output y %2\n";

static dw_status fill_products(ir_weights *weights) {
    ir_weight *up, *down;
    const int64_t dims[2][2] = {{320, 64}, {64, 320}};
    TRY(ir_weights_new(weights, "up", DW_FORMAT_f32, 2, dims[0], &up));
    TRY(ir_weights_new(weights, "down", DW_FORMAT_f32, 2, dims[1], &down));
    for (int64_t i = 0; i < 320 * 64; i++) {
        ((float *)up->tensor.data)[i] = num_random_normal(1, (uint64_t)i) * (i % 64 < 16 ? 4.0f : 1.0f);
        ((float *)down->tensor.data)[i] = num_random_normal(2, (uint64_t)i) * (i / 320 % 3 == 0 ? 0.1f : 1.0f);
    }
    return DW_OK;
}

static dw_status open_products(dw_context *context, const dw_model_options *options, dw_model **model) {
    ir_weights *weights;
    ir_graph *graph;
    TRY(ir_weights_create(context, &weights));
    dw_status status = fill_products(weights);
    if (status == DW_OK) status = ir_parse(context, "products", PRODUCTS, strlen(PRODUCTS), weights, &graph);
    if (status != DW_OK) {
        ir_weights_destroy(weights);
        return status;
    }
    graph->own_weights = weights;
    return dw_model_create(context, graph, options, model);
}

/* The constant of that format with so many columns (or rows) as the other weight has not. */
static const dw_tensor *find_weight(const dw_model *model, dw_format format, bool is_down) {
    for (int i = 0; i < model->full.plan->value_count; i++) {
        const plan_value *v = &model->full.plan->values[i];
        const dw_tensor *tensor = &model->full.constants[i];
        if (v->key == NULL || !v->read_plain || tensor->data == NULL || tensor->format != format || tensor->rank != 2 || v->value->kind != IR_RESULT) continue;
        if ((tensor->dims[0] == 64) == is_down && v->value->uses != NULL && v->value->uses->node->op == OP_matmul) return tensor;
    }
    return NULL;
}

/* A kernel that reads weights as they are, and packs none. */
#define PLAIN "matmul=reference_matmul"

typedef struct weights_run { const char *precision; dw_format format; int most; dw_tensor up, down; int world; uint64_t bytes; } weights_run;   /* most: of how many ranks each has a block */

/* Rows (or columns) from start on are those of the whole, as codes and scales give them; what is behind its end is zeros. */
static bool is_slice(const dw_tensor *part, const dw_tensor *whole, int axis, int64_t start) {
    for (int64_t row = 0; row < part->dims[0]; row++) {
        for (int64_t col = 0; col < part->dims[1]; col++) {
            int64_t here[2] = {row, col}, there[2] = {row, col};
            there[axis] += start;
            const double expected = there[axis] < whole->dims[axis] ? op_tensor_load(whole, there) : 0, made = op_tensor_load(part, here);
            if (made != expected) return false;
        }
    }
    return true;
}

static void check_weights(int rank, dw_context *context, dw_comm *comm, void *user) {
    const weights_run *run = user;
    dw_model *model;
    rank_ok(context, open_products(context, &(dw_model_options){.comm = comm, .precision = run->precision, .shard = "all", .kernels = PLAIN, .flags = DW_MODEL_VERIFY}, &model));
    const dw_tensor *up = find_weight(model, run->format, false), *down = find_weight(model, run->format, true);
    rank_assert(context, up != NULL && down != NULL);
    rank_assert(context, up->dims[0] < 320 && down->dims[1] == up->dims[0]);
    rank_assert(context, is_slice(up, &run->up, 0, rank * up->dims[0]));
    rank_assert(context, is_slice(down, &run->down, 1, rank * down->dims[1]));
    /* 320 columns are 10 blocks of 32, of which 4 ranks have 3 each, or 3 of 128, of which 2 ranks have 2: no rank keeps more than its part, whatever that was cut from. */
    rank_assert(context, (double)dw_model_weight_bytes(model) <= 1.05 * (double)run->bytes * (double)up->dims[0] / 320);
    dw_model_destroy(model);
}

static void quantised_weights_are_slices_of_the_whole_ones(void **state) {
    static const weights_run runs[] = {
        {.precision = "mxfp8", .format = DW_FORMAT_mxfp8}, {.precision = "mxfp4", .format = DW_FORMAT_mxfp4}, {.precision = "nvfp4", .format = DW_FORMAT_nvfp4}, {.precision = "fp8-row", .format = DW_FORMAT_fp8_row}, {.precision = "fp8-tensor", .format = DW_FORMAT_fp8_tensor},
        {.precision = "fp8", .format = DW_FORMAT_fp8_128x128, .most = 3},
    };
    (void)state;
    for (size_t i = 0; i < COUNT_OF(runs); i++) {
        for (int world = 2; world <= (runs[i].most > 0 ? runs[i].most : 4); world++) {
            dw_context *context;
            dw_model *whole;
            weights_run run = runs[i];
            assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
            assert_ok(context, open_products(context, &(dw_model_options){.precision = run.precision, .kernels = PLAIN}, &whole));
            if (find_weight(whole, run.format, false) == NULL) fail_msg("%s has no weight of that format here", run.precision);
            run.up = *find_weight(whole, run.format, false);
            run.down = *find_weight(whole, run.format, true);
            run.world = world;
            run.bytes = dw_model_weight_bytes(whole);
            ranks_run(&(ranks){.world = world, .user = &run}, check_weights);
            dw_model_destroy(whole);
            dw_context_destroy(context);
        }
    }
}

/* ---- scales of rows ---- */

/* The second product picks one number of each row, so its sums have one term: outputs are the numbers that were quantised, and differ where a scale does. */
static const char PICKED[] =
    "graph picked\n  input x f32[5,32]\n  param up f32[208,32]\n  param pick f32[208,208]\n"
    "  %1 = matmul x, up {bt=true} at \"mlp.up\"\n  %2 = matmul %1, pick {bt=true} at \"mlp.down\"\n  output y %2\n";
enum { PICKED_ROWS = 5, PICKED_COLS = 208, PICKED_K = 32 };
typedef struct picked_run { const char *policy, *shard; float whole[PICKED_ROWS * PICKED_COLS]; bool differs[RANKS_MOST]; } picked_run;

static int count_ops(const dw_model *model, op_id op) {
    int found = 0;
    for (const ir_node *node = model->full.plan->graph->first; node != NULL; node = node->next) found += node->op == op;
    return found;
}

static void run_picked(dw_context *context, dw_comm *comm, picked_run *run, float *y) {
    static const int64_t sizes[] = {PICKED_ROWS, PICKED_K, PICKED_ROWS, PICKED_COLS};
    float x[PICKED_ROWS * PICKED_K];
    dw_named_tensor in = {.name = "x"}, out = {.name = "y"};
    ir_weights *weights;
    ir_weight *up, *pick;
    ir_graph *graph;
    dw_model *model;
    dw_session *session;
    rank_ok(context, ir_weights_create(context, &weights));
    rank_ok(context, ir_weights_new(weights, "up", DW_FORMAT_f32, 2, (int64_t[]){PICKED_COLS, PICKED_K}, &up));
    rank_ok(context, ir_weights_new(weights, "pick", DW_FORMAT_f32, 2, (int64_t[]){PICKED_COLS, PICKED_COLS}, &pick));
    for (uint64_t i = 0; i < PICKED_COLS * PICKED_K; i++) ((float *)up->tensor.data)[i] = num_random_normal(1, i) * (i / PICKED_K % 7 == 0 ? 9.0f : 1.0f);
    for (int i = 0; i < PICKED_COLS; i++) ((float *)pick->tensor.data)[i * PICKED_COLS + (i * 5 + 3) % PICKED_COLS] = 1;
    for (uint64_t i = 0; i < COUNT_OF(x); i++) x[i] = num_random_normal(2, i);
    rank_ok(context, ir_parse(context, "picked", PICKED, strlen(PICKED), weights, &graph));
    graph->own_weights = weights;
    rank_ok(context, dw_model_create(context, graph, &(dw_model_options){.comm = comm, .policy = run->policy, .shard = comm != NULL ? run->shard : NULL, .flags = DW_MODEL_VERIFY}, &model));
    rank_assert(context, comm == NULL || (count_ops(model, OP_all_gather) == 0 && count_ops(model, OP_all_reduce) == (strstr(run->shard, "local") != NULL ? 1 : 2)));
    rank_ok(context, dw_session_create(context, model, NULL, &session));
    op_tensor_init(&in.tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, sizes, x);
    op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, sizes + 2, y);
    rank_ok(context, dw_session_run(session, 1, &in, 1, &out));
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void run_picked_of_rank(int rank, dw_context *context, dw_comm *comm, void *user) {
    picked_run *run = user;
    float y[PICKED_ROWS * PICKED_COLS];
    run_picked(context, comm, run, y);
    run->differs[rank] = memcmp(y, run->whole, sizeof y) != 0;
}

static void scales_of_split_rows_are_those_of_one_rank_unless_local_ones_are_asked_for(void **state) {
    static const char *const policies[] = {"mlp.down = fp8-row", "mlp.down = nvfp4"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(policies); i++) {
        dw_context *context;
        picked_run run = {.policy = policies[i]};
        assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
        run_picked(context, NULL, &run, run.whole);
        for (int world = 2; world <= 4; world++)
            for (int local = 0; local < 2; local++) {
                run.shard = local ? "all\nscales = local" : "all";
                ranks_run(&(ranks){.world = world, .user = &run}, run_picked_of_rank);
                for (int rank = 0; rank < world; rank++)
                    if (run.differs[rank] != (local == 1)) fail_msg("%s on %d ranks, %s: rank %d has %s numbers", policies[i], world, run.shard, rank, local ? "the same" : "other");
            }
        dw_context_destroy(context);
    }
}

/* ---- ids ---- */

/* Ids of few bits hold no number of rows beyond those, and some of them count from the end. */
static const char WORDS[] = "graph words\n  input ids u8[5]\n  input back i8[3]\n  param w f32[300,8]\n  %1 = take w, ids {axis=0}\n  %2 = take w, back {axis=0}\n  output y %1\n  output z %2\n";

static void look_up(int rank, dw_context *context, dw_comm *comm, void *user) {
    static const int64_t sizes[] = {5, 8, 3, 8};
    static const int rows[] = {0, 43, 44, 200, 255, 5, 300 - 1, 300 - 128};
    uint8_t ids[] = {0, 43, 44, 200, 255};
    int8_t back[] = {5, -1, -128};
    float made[8][8];
    dw_named_tensor in[2] = {{.name = "ids"}, {.name = "back"}}, out[2] = {{.name = "y"}, {.name = "z"}};
    ir_weights *weights;
    ir_weight *w;
    ir_graph *graph;
    dw_model *model;
    dw_session *session;
    (void)rank;
    (void)user;
    rank_ok(context, ir_weights_create(context, &weights));
    rank_ok(context, ir_weights_new(weights, "w", DW_FORMAT_f32, 2, (int64_t[]){300, 8}, &w));
    for (int i = 0; i < 300 * 8; i++) ((float *)w->tensor.data)[i] = (float)i;
    rank_ok(context, ir_parse(context, "words", WORDS, strlen(WORDS), weights, &graph));
    graph->own_weights = weights;
    rank_ok(context, dw_model_create(context, graph, &(dw_model_options){.comm = comm, .shard = comm != NULL && dw_comm_world(comm) > 1 ? "all" : NULL, .flags = DW_MODEL_VERIFY}, &model));
    rank_ok(context, dw_session_create(context, model, NULL, &session));
    op_tensor_init(&in[0].tensor, DW_FORMAT_u8, DW_SCALE_plain, 1, &sizes[0], ids);
    op_tensor_init(&in[1].tensor, DW_FORMAT_i8, DW_SCALE_plain, 1, &sizes[2], back);
    op_tensor_init(&out[0].tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, &sizes[0], made[0]);
    op_tensor_init(&out[1].tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, &sizes[2], made[5]);
    rank_ok(context, dw_session_run(session, 2, in, 2, out));
    for (int i = 0; i < 8; i++) rank_assert(context, made[i][0] == (float)(rows[i] * 8) && made[i][7] == (float)(rows[i] * 8 + 7));
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void ids_of_few_bits_find_their_words(void **state) {
    (void)state;
    for (int world = 1; world <= 4; world++) ranks_run(&(ranks){.world = world}, look_up);
}

/* ---- heads that are zeros ---- */

/* Three heads, of which the last rank of two has one, and zeros: a norm that divides by nothing but their size would make NaN of these. */
static const char HEADS[] =
    "graph heads\n  input x f32[1,4,16]\n  param q f32[24,16]\n  param k f32[24,16]\n  param v f32[24,16]\n  param o f32[16,24]\n"
    "  %1 = matmul x, q {bt=true}\n  %2 = reshape %1 {shape=[1,4,3,8]}\n  %3 = rms_norm %2 {eps=0}\n  %4 = transpose %3 {order=[0,2,1,3]}\n"
    "  %5 = matmul x, k {bt=true}\n  %6 = reshape %5 {shape=[1,4,3,8]}\n  %7 = rms_norm %6 {eps=0}\n  %8 = transpose %7 {order=[0,2,1,3]}\n"
    "  %9 = matmul x, v {bt=true}\n  %10 = reshape %9 {shape=[1,4,3,8]}\n  %11 = transpose %10 {order=[0,2,1,3]}\n"
    "  %12 = attention %4, %8, %11 {scale=0.3}\n  %13 = transpose %12 {order=[0,2,1,3]}\n  %14 = reshape %13 {shape=[1,4,24]}\n  %15 = matmul %14, o {bt=true}\n  output y %15\n";

static void run_heads(dw_context *context, dw_comm *comm, float y[64]) {
    static const char *const names[] = {"q", "k", "v", "o"};
    static const int64_t sizes[] = {1, 4, 16};
    float x[64];
    dw_named_tensor in = {.name = "x"}, out = {.name = "y"};
    ir_weights *weights;
    ir_graph *graph;
    dw_model *model;
    dw_session *session;
    rank_ok(context, ir_weights_create(context, &weights));
    for (size_t i = 0; i < COUNT_OF(names); i++) {
        ir_weight *w;
        rank_ok(context, ir_weights_new(weights, names[i], DW_FORMAT_f32, 2, i < 3 ? (int64_t[]){24, 16} : (int64_t[]){16, 24}, &w));
        for (uint64_t at = 0; at < 24 * 16; at++) ((float *)w->tensor.data)[at] = num_random_normal(i + 4, at);
    }
    for (uint64_t i = 0; i < COUNT_OF(x); i++) x[i] = num_random_normal(9, i);
    rank_ok(context, ir_parse(context, "heads", HEADS, strlen(HEADS), weights, &graph));
    graph->own_weights = weights;
    rank_ok(context, dw_model_create(context, graph, &(dw_model_options){.comm = comm, .shard = comm != NULL && dw_comm_world(comm) > 1 ? "all" : NULL, .flags = DW_MODEL_VERIFY}, &model));
    rank_ok(context, dw_session_create(context, model, NULL, &session));
    op_tensor_init(&in.tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, sizes, x);
    op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 3, sizes, y);
    rank_ok(context, dw_session_run(session, 1, &in, 1, &out));
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void run_heads_of_rank(int rank, dw_context *context, dw_comm *comm, void *user) {
    const float *expected = user;
    float y[64];
    (void)rank;
    run_heads(context, comm, y);
    for (size_t i = 0; i < COUNT_OF(y); i++) rank_assert(context, fabsf(y[i] - expected[i]) <= 1e-4f);   /* sums in another order */
}

static void heads_of_zeros_stay_zeros(void **state) {
    dw_context *context;
    float whole[64];
    (void)state;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    run_heads(context, NULL, whole);
    for (int world = 2; world <= 3; world++) ranks_run(&(ranks){.world = world, .user = whole}, run_heads_of_rank);
    dw_context_destroy(context);
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
    dw_service *service;
    rank_assert(context, dw_service_create(context, model, NULL, &service) == DW_UNSUPPORTED && strstr(dw_context_error(context), "a service of a model on") != NULL);
    dw_model_destroy(model);
}

static void texts_are_those_of_the_whole(void **state) {
    static const char *const names[] = {"kjv", "llama", "gpt2", "gpt_oss", "deepseek_v3", "gemma2", "shifted_gpt"};
    static const struct { double temperature; int top_k; } draws[] = {{0, 0}, {0.9, 20}, {0.9, 0}};   /* likeliest ids are sent, those of each rank that top_k lets in, and all logits */
    (void)state;
    need_fixtures();
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

/* ---- packages ---- */

typedef struct package_run { const char *file, *precision; dw_status status[RANKS_MOST]; char error[512]; } package_run;

static void run_products(dw_context *context, const dw_model *model, float *y) {
    float x[3 * 64];
    const int64_t sizes[] = {3, 64};
    dw_tensor in, out;
    for (int i = 0; i < 3 * 64; i++) x[i] = num_random_normal(3, (uint64_t)i);
    dw_session *session;
    op_tensor_init(&in, DW_FORMAT_f32, DW_SCALE_plain, 2, sizes, x);
    op_tensor_init(&out, DW_FORMAT_f32, DW_SCALE_plain, 2, sizes, y);
    rank_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "s=3"}, &session));
    rank_ok(context, dw_session_run(session, 1, &(dw_named_tensor){"x", in}, 1, &(dw_named_tensor){"y", out}));
    dw_session_destroy(session);
}

/* Saved, opened again, and both run. */
static void save_and_open(int rank, dw_context *context, dw_comm *comm, void *user) {
    package_run *run = user;
    dw_model *model, *again;
    float y[2][3 * 64];
    rank_ok(context, open_products(context, &(dw_model_options){.comm = comm, .precision = run->precision, .shard = "all"}, &model));
    rank_ok(context, dw_model_save(model, run->file));
    rank_ok(context, dw_model_open(context, run->file, &(dw_model_options){.comm = comm}, &again));
    run_products(context, model, y[0]);
    run_products(context, again, y[1]);
    rank_assert(context, memcmp(y[0], y[1], sizeof y[0]) == 0);
    (void)rank;
    dw_model_destroy(again);
    dw_model_destroy(model);
}

static void open_other(int rank, dw_context *context, dw_comm *comm, void *user) {
    package_run *run = user;
    dw_model *model = NULL;
    run->status[rank] = dw_model_open(context, run->file, &(dw_model_options){.comm = comm}, &model);
    if (rank == 0) snprintf(run->error, sizeof run->error, "%s", dw_context_error(context));
    dw_model_destroy(model);
}

static long size_of(const char *path) {
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    const long size = ftell(file);
    fclose(file);
    return size;
}

static void packages_hold_each_ranks_own_and_what_all_have_once(void **state) {
    static const char *const precisions[] = {NULL, "mxfp8", "nvfp4", "fp8-tensor"};
    static const char file[] = TEST_BUILD_DIR "/tests/sharded.dw", whole[] = TEST_BUILD_DIR "/tests/sharded.whole.dw";
    (void)state;
    for (size_t i = 0; i < COUNT_OF(precisions); i++) {
        package_run run = {.file = file, .precision = precisions[i]};
        dw_context *context;
        dw_model *model;
        assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
        assert_ok(context, open_products(context, &(dw_model_options){.precision = run.precision}, &model));
        assert_ok(context, dw_model_save(model, whole));
        dw_model_destroy(model);
        ranks_run(&(ranks){.world = 2, .user = &run}, save_and_open);
        assert_true(size_of(file) < size_of(whole) + 8192);
        ranks_run(&(ranks){.world = 3, .user = &run}, open_other);
        for (int rank = 0; rank < 3; rank++) assert_int_equal(run.status[rank], DW_MISMATCH);
        assert_non_null(strstr(run.error, "is compiled for 2 ranks (tp=2), and there are 3"));
        test_assert_fails(context, dw_model_open(context, file, NULL, &model), DW_MISMATCH, "is compiled for 2 ranks (tp=2), and there is 1");
        dw_context_destroy(context);
    }
    remove(file);
    remove(whole);
}

/* ---- plans alone, and what is refused ---- */

static dw_status plan_products(dw_context *context, const char *mesh, const char *shard, const char *precision) {
    dw_model *model = NULL;
    const dw_status status = open_products(context, &(dw_model_options){.mesh = mesh, .shard = shard, .precision = precision, .flags = DW_MODEL_PLAN_ONLY | DW_MODEL_VERIFY}, &model);
    dw_model_destroy(model);
    return status;
}

/* By the time that each way takes. */
static dw_status plan_chosen(dw_context *context, void *argument) { return plan_products(context, "tp=2", NULL, argument); }
static dw_status plan_scenario(dw_context *context, void *argument) { return plan_products(context, "tp=3", "mlp.down = row", argument); }

static void every_allocation_of_a_cut_may_fail(void **state) {
    (void)state;
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
    test_assert_fails(context, plan_products(context, "tp=2", "mlp.up = rows", NULL), DW_NOT_FOUND, "shard:1: there is no split 'rows'; there are column, row, heads, vocabulary, experts, whole");
    test_assert_fails(context, plan_products(context, "tp=2", "# none\nmlp.up row", NULL), DW_SYNTAX, "shard:2: a line is 'pattern = split', 'all' or 'strict', found 'mlp.up row'");
    test_assert_fails(context, plan_products(context, "tp=2", "scales = own", NULL), DW_NOT_FOUND, "shard:1: scales are 'local' or 'whole', found 'own'");
    test_assert_fails(context, plan_products(context, "tp=11", "mlp.down = row", "mxfp8"), DW_INVALID, "there are fewer blocks along k than ranks (320 elements, in units of 32)");
    test_assert_fails(context, plan_products(context, "tp=400", "mlp.up = column", NULL), DW_INVALID, "there are fewer units than ranks (320 elements, in units of 1)");
    test_assert_fails(context, plan_products(context, NULL, "mlp.up = row", NULL), DW_INVALID, "there is one rank of tp, and nothing to cut");
    test_assert_fails(context, plan_products(context, "dp=2", "mlp.side = row", NULL), DW_INVALID, "there is one rank of tp, and nothing to cut");
    test_assert_fails(context, open_products(context, &(dw_model_options){.mesh = "tp=2"}, &model), DW_INVALID, "a mesh alone is for plans that are not run");
    assert_int_equal(plan_products(context, "dp=2,tp=4", NULL, NULL), DW_OK);
    assert_int_equal(plan_products(context, "dp=8", NULL, NULL), DW_OK);
    assert_int_equal(plan_products(context, "tp=1", NULL, NULL), DW_OK);
    dw_context_destroy(context);
}

static void more_ranks_than_heads_are_refused_where_heads_are_asked_for(void **state) {
    dw_context *context;
    dw_model *model;
    (void)state;
    need_fixtures();
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    const dw_model_options options = {.mesh = "tp=16", .shard = "*self_attn.q_proj = heads", .flags = DW_MODEL_PLAN_ONLY};
    test_assert_fails(context, dw_model_open(context, TEST_FIXTURES_DIR "/llama.pt2", &options, &model), DW_INVALID, "model.layers.0.self_attn.q_proj cannot be cut by heads over 16 ranks");
    dw_context_destroy(context);
}

/* Lines of any splits over any layers: a plan that checks, or a refusal by name. */
static void any_policy_plans_or_is_refused(void **state) {
    static const char *const patterns[] = {"*", "*.q_proj", "*.k_proj", "*.v_proj", "*.o_proj", "*.up_proj", "*.gate_proj", "*.down_proj", "lm_head", "*embed*", "*self_attn", "*experts*", "role:attention", "role:mlp", "*.1.*", "*.mlp*"};
    static const char *const splits[] = {"column", "row", "heads", "vocabulary", "experts", "whole"};
    static const char *const precisions[] = {NULL, "mxfp8", "nvfp4", "fp8"};
    static const char *const names[] = {"llama", "mixtral"};
    dw_context *context;
    int planned = 0, refused = 0;
    (void)state;
    need_fixtures();
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 1}, &context), DW_OK);
    for (uint64_t seed = 0; seed < 120; seed++) {
        char rules[512] = "", mesh[16], file[4096];
        dw_model *model = NULL;
        size_t at = 0;
        for (uint64_t i = 0; i <= num_random(seed, 0) % 3; i++)
            at += (size_t)snprintf(rules + at, sizeof rules - at, "%s = %s\n", patterns[num_random(seed, 2 * i + 1) % COUNT_OF(patterns)], splits[num_random(seed, 2 * i + 2) % COUNT_OF(splits)]);
        const bool is_strict = num_random(seed, 23) % 4 == 0;
        if (is_strict) at += (size_t)snprintf(rules + at, sizeof rules - at, "strict\n");
        if (num_random(seed, 24) % 2 == 0) snprintf(rules + at, sizeof rules - at, "all\n");
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
        cmocka_unit_test(models_give_the_outputs_of_the_whole),
        cmocka_unit_test(experts_are_cut_in_every_graph),
        cmocka_unit_test(strict_refuses_what_no_rule_cuts),
        cmocka_unit_test(models_of_few_bits_stay_near_the_whole),
        cmocka_unit_test(named_splits_give_the_outputs_of_the_whole),
        cmocka_unit_test(quantised_weights_are_slices_of_the_whole_ones),
        cmocka_unit_test(scales_of_split_rows_are_those_of_one_rank_unless_local_ones_are_asked_for),
        cmocka_unit_test(ids_of_few_bits_find_their_words),
        cmocka_unit_test(heads_of_zeros_stay_zeros),
        cmocka_unit_test(texts_are_those_of_the_whole),
        cmocka_unit_test(packages_hold_each_ranks_own_and_what_all_have_once),
        cmocka_unit_test(every_allocation_of_a_cut_may_fail),
        cmocka_unit_test(what_cannot_be_is_refused_with_the_numbers),
        cmocka_unit_test(more_ranks_than_heads_are_refused_where_heads_are_asked_for),
        cmocka_unit_test(any_policy_plans_or_is_refused),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);   /* of one test alone */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
