/* Models that ranks run together: the bits that their collectives mean, by threads and by a caller's engine, whatever a rank is delayed by; ranks that differ; and ranks that fail, of which the
 * others learn by name and op. */
#include "engine/engine.h"
#include "support/ranks.h"
#include "support/session.h"
#include "support/support.h"
#include "support/wire.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

/* Every collective, over both axes of a mesh; x has rows by rank. take fails where an index is outside. */
static const char GRAPH[] =
    "graph ranks\n"
    "  symbol s 1..64\n"
    "  input x f32[s,12]\n"
    "  input i i64[2]\n"
    "  const c f32[4] = 1, 2, 3, 4\n"
    "  %1 = all_reduce x {over=\"tp\",ranks=3,by=\"sum\"} at \"layer.0\"\n"
    "  %2 = all_gather %1 {axis=0,over=\"dp\",ranks=2} at \"layer.1\"\n"
    "  %3 = take c, i {axis=0} at \"layer.2\"\n"
    "  %4 = reshape %3 {shape=[1,2]}\n"
    "  %5 = all_reduce %4 {over=\"dp\",ranks=2,by=\"max\"} at \"layer.3\"\n"
    "  %6 = reduce_scatter %2 {axis=1,over=\"tp\",ranks=3,by=\"sum\"} at \"layer.4\"\n"
    "  %7 = all_to_all %6 {over=\"dp\",ranks=2,split=0,concat=1} at \"layer.5\"\n"
    "  %8 = all_reduce c {over=\"tp\",ranks=3,by=\"sum\"} at \"layer.6\"\n"
    "  output y %7\n"
    "  output z %5\n"
    "  output w %8\n";
enum { WORLD = 6, DP = 2, TP = 3, ROWS_MOST = 8, COLS = 12 };
static const char MESH[] = "dp=2,tp=3";

static float x_of(int rank, int64_t row, int64_t col, int run) { return (float)num_random_normal((uint64_t)(rank + 1) * 1000 + (uint64_t)run, (uint64_t)(row * COLS + col)); }

static dw_status make_model(dw_context *context, dw_comm *comm, const char *text, unsigned flags, dw_model **model) {
    dw_graph *graph;
    *model = NULL;
    rank_ok(context, dw_graph_parse(context, "text", text, strlen(text), &graph));
    return dw_model_create(context, graph, &(dw_model_options){.comm = comm, .flags = flags}, model);
}

/* The sum over tp of the ranks that lie with rank in dp. */
static float reduced(int dp, int64_t row, int64_t col, int run) {
    float sum = x_of(dp * TP, row, col, run);
    for (int t = 1; t < TP; t++) sum += x_of(dp * TP + t, row, col, run);
    return sum;
}

typedef struct run_data { float x[ROWS_MOST * COLS], y[2 * ROWS_MOST * COLS], z[2], w[4]; int64_t i[2]; } run_data;

static dw_status run_once(dw_session *session, int rank, int64_t rows, int64_t index, int run, run_data *d) {
    dw_named_tensor inputs[] = {{.name = "x"}, {.name = "i"}}, outputs[] = {{.name = "y"}, {.name = "z"}, {.name = "w"}};
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < COLS; col++) d->x[row * COLS + col] = x_of(rank, row, col, run);
    d->i[0] = index;
    d->i[1] = rank % 2;
    op_tensor_init(&inputs[0].tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){rows, COLS}, d->x);
    op_tensor_init(&inputs[1].tensor, DW_FORMAT_i64, DW_SCALE_plain, 1, (int64_t[]){2}, d->i);
    op_tensor_init(&outputs[0].tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){rows, 2 * (COLS / TP)}, d->y);
    op_tensor_init(&outputs[1].tensor, DW_FORMAT_f32, DW_SCALE_plain, 2, (int64_t[]){1, 2}, d->z);
    op_tensor_init(&outputs[2].tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){4}, d->w);
    return dw_session_run(session, 2, inputs, 3, outputs);
}

static void check_results(dw_context *context, int rank, int64_t rows, int run, const run_data *d) {
    const int dp = rank / TP, tp = rank % TP;
    /* %2: rows of both dp; %6: sum over tp (all alike), columns of tp; %7: rows of dp, columns of both */
    for (int64_t row = 0; row < rows; row++)
        for (int64_t col = 0; col < 2 * (COLS / TP); col++) {
            const float one = reduced(dp, row, tp * (COLS / TP) + col % (COLS / TP), run);
            float sum = one;
            for (int t = 1; t < TP; t++) sum += one;
            rank_assert(context, d->y[row * 2 * (COLS / TP) + col] == sum);
        }
    rank_assert(context, d->z[1] == 2 && d->w[0] == 3 && d->w[3] == 12);
}

typedef struct plan_of_runs { int runs; bool delays; int threads; } plan_of_runs;

static void pause_at_random(int rank, int run) {
    const uint64_t random = num_random((uint64_t)rank * 77 + 5, (uint64_t)run);
    if (random % 3 != 0) return;
    nanosleep(&(struct timespec){.tv_nsec = (long)(random / 3 % 1000000)}, NULL);
}

static void run_all(int rank, dw_context *context, dw_comm *comm, void *user) {
    const plan_of_runs *p = user;
    dw_model *model;
    dw_session *session;
    run_data d;
    rank_ok(context, make_model(context, comm, GRAPH, DW_MODEL_VERIFY, &model));
    rank_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "s=8"}, &session));
    for (int run = 0; run < p->runs; run++) {
        const int64_t rows = run % 4 == 3 ? 1 : run % 4 + 2;
        if (p->delays) pause_at_random(rank, run);
        rank_ok(context, run_once(session, rank, rows, 0, run, &d));
        check_results(context, rank, rows, run, &d);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void ranks_have_the_bits_that_are_meant(void **state) {
    (void)state;
    dw_collectives engines[RANKS_MOST];
    wire *w = wire_create(MESH, 0, 0, DW_OK, engines);
    ranks_run(&(ranks){.world = WORLD, .mesh = MESH, .user = &(plan_of_runs){.runs = 20}}, run_all);
    ranks_run(&(ranks){.world = WORLD, .mesh = MESH, .threads = 2, .user = &(plan_of_runs){.runs = 5}}, run_all);
    ranks_run(&(ranks){.world = WORLD, .mesh = MESH, .engines = engines, .user = &(plan_of_runs){.runs = 20}}, run_all);
    wire_destroy(w);
}

static void ranks_that_are_delayed_at_random_compute_the_same(void **state) {
    (void)state;
    ranks_run(&(ranks){.world = WORLD, .mesh = MESH, .user = &(plan_of_runs){.runs = 1000, .delays = true}}, run_all);
}

/* ---- models that differ ---- */

static void make_other_models(int rank, dw_context *context, dw_comm *comm, void *user) {
    dw_model *model;
    (void)user;
    char other[sizeof GRAPH];
    memcpy(other, GRAPH, sizeof GRAPH);
    if (rank == 4) *strstr(other, "max") = 's', memcpy(strstr(other, "sax"), "sum", 3);
    rank_assert(context, make_model(context, comm, other, 0, &model) == DW_MISMATCH && model == NULL);
    rank_assert(context, strstr(dw_context_error(context), "rank 4 has another graph than rank 0") != NULL);
    rank_assert(context, make_model(context, comm, GRAPH, rank == 1 ? DW_MODEL_VERIFY : 0, &model) == DW_MISMATCH && model == NULL);
    rank_assert(context, strstr(dw_context_error(context), "rank 1 has another options of the model than rank 0") != NULL);
    /* one cannot make it at all: its own words, and nobody waits */
    static const char no_weight[] = "graph g\n  param w f32[2]\n  input x f32[2]\n  %1 = add x, w\n  output y %1\n";
    rank_assert(context, make_model(context, comm, rank == 3 ? no_weight : GRAPH, 0, &model) == DW_NOT_FOUND && model == NULL);
    rank_assert(context, strstr(dw_context_error(context), rank == 3 ? "weight w has no data" : "rank 3 failed: NOT_FOUND: weight w has no data") != NULL);
    rank_ok(context, make_model(context, comm, GRAPH, 0, &model));   /* and all may go on */
    dw_model_destroy(model);
}

static void models_that_differ_are_not_run(void **state) {
    (void)state;
    dw_collectives engines[RANKS_MOST];
    wire *w = wire_create(MESH, 0, 0, DW_OK, engines);
    ranks_run(&(ranks){.world = WORLD, .mesh = MESH}, make_other_models);
    ranks_run(&(ranks){.world = WORLD, .mesh = MESH, .engines = engines}, make_other_models);
    wire_destroy(w);
}

static void make_for_other_mesh(int rank, dw_context *context, dw_comm *comm, void *user) {
    dw_model *model;
    (void)rank;
    rank_assert(context, make_model(context, comm, GRAPH, 0, &model) == DW_MISMATCH);
    rank_assert(context, strstr(dw_context_error(context), user) != NULL);
}

static void a_plan_for_a_gpu_refuses_collectives_by_name(void **state) {
    (void)state;
    dw_context *context;
    dw_graph *graph;
    dw_model *model;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_ok(context, dw_graph_parse(context, "text", GRAPH, strlen(GRAPH), &graph));
    test_assert_fails(context, dw_model_create(context, graph, &(dw_model_options){.chip = "h200", .flags = DW_MODEL_PLAN_ONLY}, &model), DW_UNSUPPORTED,
                      "all_reduce: no kernel for h200 runs this: collectives of GPUs call NCCL, for which there is no row yet; ranks run on the CPU (op %1 all_reduce, layer.0)");
    dw_context_destroy(context);
}

static dw_status kernel_of_mine(const dw_kernel_call *call) {
    (void)call;
    return DW_OK;
}

static void collectives_are_of_the_mesh(void **state) {
    (void)state;
    dw_context *context;
    dw_model *model;
    ranks_run(&(ranks){.world = 4, .mesh = "dp=2,tp=2", .user = "all_reduce %1 is over 3 ranks of tp, and the mesh is dp=2,tp=2"}, make_for_other_mesh);
    ranks_run(&(ranks){.world = 2, .mesh = "dp=2", .user = "all_reduce %1 is over 'tp', which is no axis of the mesh dp=2"}, make_for_other_mesh);
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    test_assert_fails(context, make_model(context, NULL, GRAPH, 0, &model), DW_INVALID, "all_reduce %1 is over 3 ranks of tp, and this rank is alone: give the model a communicator");
    assert_int_equal(make_model(context, NULL, GRAPH, DW_MODEL_PLAN_ONLY, &model), DW_OK);   /* planning asks nobody */
    dw_model_destroy(model);
    dw_registry *registry;
    assert_ok(context, dw_registry_create(context, &registry));
    test_assert_fails(context, dw_registry_add(registry, &(dw_kernel_options){.name = "mine", .op = "all_reduce", .run = kernel_of_mine}), DW_UNSUPPORTED, "registered kernel mine: all_reduce reaches other ranks");
    dw_registry_destroy(registry);
    dw_context_destroy(context);
}

/* ---- ranks that fail ---- */

enum { FAILURES = 100 };

/* Each time another rank has an index outside of its table, or sizes of its own. All have an error, and the next run is as if nothing had been. */
static void fail_in_turn(int rank, dw_context *context, dw_comm *comm, void *user) {
    dw_model *model;
    dw_session *session;
    run_data d;
    const int times = *(const int *)user;
    rank_ok(context, make_model(context, comm, GRAPH, 0, &model));
    rank_ok(context, dw_session_create(context, model, &(dw_session_options){.dims = "s=8"}, &session));
    for (int run = 0; run < times; run++) {
        const int failing = run % WORLD;
        char words[64];
        snprintf(words, sizeof words, "rank %d failed at step", failing);
        const dw_status status = run_once(session, rank, 3, rank == failing ? 99 : 1, run, &d);
        const char *message = dw_context_error(context);
        rank_assert(context, status == DW_INVALID);
        if (rank == failing) rank_assert(context, strstr(message, "index 99 is outside axis 0") != NULL && strstr(message, "rank") == NULL);
        /* those in its dp learn of it at the max; the others of tp, from who has learned, at reduce_scatter */
        else rank_assert(context, strstr(message, "failed at step") != NULL && strstr(message, "index 99") != NULL && (strstr(message, "layer.3") != NULL || strstr(message, "layer.4") != NULL));
        if (rank % TP == failing % TP && rank != failing) rank_assert(context, strstr(message, words) != NULL);
        rank_ok(context, run_once(session, rank, 2, 0, run, &d));
        check_results(context, rank, 2, run, &d);
        const dw_status sizes = run_once(session, rank, rank == failing ? 4 : 3, 0, run, &d);
        rank_assert(context, sizes == DW_MISMATCH);
        rank_ok(context, run_once(session, rank, 5, 0, run, &d));
        check_results(context, rank, 5, run, &d);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void a_failure_of_one_is_an_error_of_all(void **state) {
    (void)state;
    dw_collectives engines[RANKS_MOST];
    int times = FAILURES;
    ranks_run(&(ranks){.world = WORLD, .mesh = MESH, .user = &times}, fail_in_turn);
    wire *w = wire_create(MESH, 0, 0, DW_OK, engines);
    times = WORLD;
    ranks_run(&(ranks){.world = WORLD, .mesh = MESH, .engines = engines, .user = &times}, fail_in_turn);
    wire_destroy(w);
}

/* Rank 1 leaves after its first run, or does not come to the second. */
typedef struct leaving { bool destroys; } leaving;
static const char TWO[] = "graph two\n  input x f32[4]\n  %1 = all_reduce x {over=\"tp\",ranks=3,by=\"sum\"} at \"mlp.down\"\n  output y %1\n";

static dw_status run_two_into(dw_session *session, float y[4]) {
    float x[4] = {1, 2, 3, 4};
    dw_named_tensor in = {.name = "x"}, out = {.name = "y"};
    op_tensor_init(&in.tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){4}, x);
    op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){4}, y);
    return dw_session_run(session, 1, &in, 1, &out);
}

static dw_status run_two(dw_session *session) { return run_two_into(session, (float[4]){0}); }

static void leave_early(int rank, dw_context *context, dw_comm *comm, void *user) {
    const leaving *l = user;
    dw_model *model;
    dw_session *session;
    rank_ok(context, make_model(context, comm, TWO, 0, &model));
    rank_ok(context, dw_session_create(context, model, NULL, &session));
    rank_ok(context, run_two(session));
    if (rank == 1 && !l->destroys) nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
    if (rank != 1) {
        const double begin = base_now();
        const dw_status status = run_two(session);
        rank_assert(context, status == DW_LOST && base_now() - begin < 0.3 + 2);
        const char *message = dw_context_error(context);
        if (l->destroys) rank_assert(context, strstr(message, "has left") != NULL);
        rank_assert(context, strstr(message, "all_reduce over tp") != NULL && strstr(message, "mlp.down") != NULL);
        rank_assert(context, run_two(session) == DW_LOST && strstr(dw_context_error(context), "the communicator broke before: LOST") != NULL);
        rank_assert(context, make_model(context, comm, TWO, 0, &(dw_model *){NULL}) == DW_LOST);
    }
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void a_rank_that_is_gone_is_an_error_in_time(void **state) {
    (void)state;
    ranks_run(&(ranks){.world = 3, .timeout_s = 0.3, .user = &(leaving){.destroys = true}}, leave_early);
    ranks_run(&(ranks){.world = 3, .timeout_s = 0.3, .user = &(leaving){.destroys = false}}, leave_early);
}

/* Rank 1 comes when the others have given up, and their operands are gone. */
static void come_too_late(int rank, dw_context *context, dw_comm *comm, void *user) {
    dw_model *model;
    dw_session *session;
    float y[4] = {-7, -7, -7, -7};
    (void)user;
    rank_ok(context, make_model(context, comm, TWO, 0, &model));
    rank_ok(context, dw_session_create(context, model, NULL, &session));
    if (rank == 1) nanosleep(&(struct timespec){.tv_nsec = 700000000}, NULL);
    rank_assert(context, run_two_into(session, y) == DW_LOST);
    rank_assert(context, y[0] == -7 && y[3] == -7);
    if (rank == 1) rank_assert(context, strstr(dw_context_error(context), "has left: its communicator was destroyed, or has given up (all_reduce over tp)") != NULL);
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void who_comes_too_late_reads_nothing(void **state) {
    (void)state;
    ranks_run(&(ranks){.world = 3, .timeout_s = 0.2}, come_too_late);
}

/* The engine fails at the call of that number, if there are so many. */
static void meet_a_failing_engine(int rank, dw_context *context, dw_comm *comm, void *user) {
    dw_model *model;
    dw_session *session;
    (void)rank;
    (void)user;
    if (make_model(context, comm, TWO, 0, &model) != DW_OK) {
        rank_assert(context, strstr(dw_context_error(context), "IO: all_gather of the caller's engine failed (7): the wire is cut (model over all ranks)") != NULL);
        return;
    }
    rank_ok(context, dw_session_create(context, model, NULL, &session));
    dw_status status = DW_OK;
    for (int run = 0; run < 3 && status == DW_OK; run++) status = run_two(session);
    rank_assert(context, status == DW_IO && strstr(dw_context_error(context), "all_gather of the caller's engine failed (7): the wire is cut (all_reduce over tp) (step 1, %1 all_reduce_ranks, mlp.down)") != NULL);
    dw_session_destroy(session);
    dw_model_destroy(model);
}

static void an_engine_that_fails_is_named(void **state) {
    (void)state;
    for (int call = 2; call < 7; call++) {   /* the first is that of dw_comm_create */
        dw_collectives engines[RANKS_MOST];
        wire *w = wire_create("tp=3", 1, call, DW_IO, engines);
        ranks_run(&(ranks){.world = 3, .mesh = "tp=3", .engines = engines}, meet_a_failing_engine);
        wire_destroy(w);
    }
}

/* ---- memory ---- */

/* One rank makes a communicator, a model and a session, and runs it. The other's allocations fail, one in each attempt. */
typedef struct life { int rank; test_memory memory; const void *id; dw_status status; } life;

static dw_status live(dw_context *context, const life *l) {
    dw_comm *comm;
    dw_model *model = NULL;
    dw_session *session = NULL;
    TRY(dw_comm_create(context, NULL, &(dw_comm_options){.rank = l->rank, .world = 2, .id = l->id, .id_bytes = DW_COMM_ID_BYTES, .timeout_s = 0.2}, &comm));
    static const char text[] = "graph two\n  input x f32[4]\n  %1 = all_reduce x {over=\"tp\",ranks=2,by=\"sum\"}\n  output y %1\n";
    dw_graph *graph;
    dw_status status = dw_graph_parse(context, "text", text, strlen(text), &graph);
    if (status == DW_OK) status = dw_model_create(context, graph, &(dw_model_options){.comm = comm}, &model);
    if (status == DW_OK) status = dw_session_create(context, model, NULL, &session);
    if (status == DW_OK) status = run_two(session);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_comm_destroy(comm);
    return status;
}

static void *live_apart(void *argument) {
    life *l = argument;
    dw_context *context = test_context_create(&l->memory, 1);
    l->status = context != NULL ? live(context, l) : DW_NO_MEMORY;
    dw_context_destroy(context);
    return NULL;
}

static void no_rank_waits_for_one_without_memory(void **state) {
    (void)state;
    bool failed = true;
    for (size_t fail_at = 1; failed; fail_at++) {
        uint8_t id[DW_COMM_ID_BYTES];
        size_t bytes = sizeof id;
        dw_context *context;
        pthread_t other;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        assert_ok(context, dw_comm_id(context, NULL, id, &bytes));
        life lives[2] = {{.rank = 0, .id = id}, {.rank = 1, .id = id, .memory = {.fail_at = fail_at}}};
        const double begin = base_now();
        assert_int_equal(pthread_create(&other, NULL, live_apart, &lives[1]), 0);
        live_apart(&lives[0]);
        pthread_join(other, NULL);
        dw_context_destroy(context);
        failed = lives[1].memory.calls >= fail_at;
        assert_int_equal(lives[1].status, failed ? DW_NO_MEMORY : DW_OK);
        if (lives[0].status != (failed ? lives[0].status == DW_NO_MEMORY ? DW_NO_MEMORY : DW_LOST : DW_OK)) fail_msg("allocation %zu: rank 0 has %s", fail_at, dw_status_name(lives[0].status));
        assert_true(base_now() - begin < 0.2 + 2);
        assert_int_equal(lives[0].memory.live_count + lives[1].memory.live_count, 0);
    }
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_have_the_bits_that_are_meant), cmocka_unit_test(ranks_that_are_delayed_at_random_compute_the_same), cmocka_unit_test(models_that_differ_are_not_run),
        cmocka_unit_test(collectives_are_of_the_mesh), cmocka_unit_test(a_plan_for_a_gpu_refuses_collectives_by_name), cmocka_unit_test(a_failure_of_one_is_an_error_of_all), cmocka_unit_test(a_rank_that_is_gone_is_an_error_in_time), cmocka_unit_test(who_comes_too_late_reads_nothing),
        cmocka_unit_test(an_engine_that_fails_is_named), cmocka_unit_test(no_rank_waits_for_one_without_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
