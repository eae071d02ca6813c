/* What ranks have of weights that are cut: slices of the whole ones with the scales of these, words, heads of zeros, and packages of all that. */
#include "engine/engine.h"
#include "support/ranks.h"
#include "support/session.h"
#include "support/sharded.h"
#include "support/support.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

/* ---- weights ---- */

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
    rank_ok(context, sharded_open_products(context, &(dw_model_options){.comm = comm, .precision = run->precision, .shard = "all", .kernels = PLAIN, .flags = DW_MODEL_VERIFY}, &model));
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
            assert_ok(context, sharded_open_products(context, &(dw_model_options){.precision = run.precision, .kernels = PLAIN}, &whole));
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
    rank_ok(context, sharded_open_products(context, &(dw_model_options){.comm = comm, .precision = run->precision, .shard = "all"}, &model));
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
        assert_ok(context, sharded_open_products(context, &(dw_model_options){.precision = run.precision}, &model));
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

int main(int argc, char **argv) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantised_weights_are_slices_of_the_whole_ones),
        cmocka_unit_test(scales_of_split_rows_are_those_of_one_rank_unless_local_ones_are_asked_for),
        cmocka_unit_test(ids_of_few_bits_find_their_words),
        cmocka_unit_test(heads_of_zeros_stay_zeros),
        cmocka_unit_test(packages_hold_each_ranks_own_and_what_all_have_once),
    };
    if (argc > 1) cmocka_set_test_filter(argv[1]);   /* of one test alone */
    return cmocka_run_group_tests(tests, NULL, NULL);
}
