/* Communicators: how ranks meet, what they compare, and what is refused. Models over ranks are test_ranks.c's. */
#include "support/ranks.h"
#include "support/support.h"
#include "support/wire.h"

#include <pthread.h>
#include <string.h>

/* ---- what is refused before anybody is waited for ---- */

static dw_status create(dw_context *context, const dw_comm_options *options) {
    dw_comm *comm;
    const dw_status status = dw_comm_create(context, NULL, options, &comm);
    dw_comm_destroy(comm);
    return status;
}

static void options_that_cannot_be_are_refused(void **state) {
    (void)state;
    static const struct { dw_comm_options options; dw_status status; const char *words; } cases[] = {
        {{.rank = 0, .world = -1}, DW_INVALID, "a world of -1 ranks: it has 1 to 4096"},
        {{.rank = 2, .world = 2}, DW_INVALID, "rank 2 of 2: ranks are counted from 0"},
        {{.rank = -1, .world = 2}, DW_INVALID, "rank -1 of 2"},
        {{.world = 2, .timeout_s = -1}, DW_INVALID, "a timeout of -1 s"},
        {{.world = 2}, DW_INVALID, "needs to meet"},
        {{.world = 4, .mesh = "dp=2,tp=4"}, DW_INVALID, "mesh dp=2,tp=4 has 8 ranks, and the world has 4"},
        {{.world = 4, .mesh = ""}, DW_SYNTAX, "a name and '=' are expected"},
        {{.world = 4, .mesh = "tp"}, DW_SYNTAX, "a name and '=' are expected"},
        {{.world = 4, .mesh = "tp="}, DW_SYNTAX, "a size is expected behind '='"},
        {{.world = 4, .mesh = "tp=4;"}, DW_SYNTAX, "',' is expected between axes"},
        {{.world = 4, .mesh = "tp=4,"}, DW_SYNTAX, "a name and '=' are expected"},
        {{.world = 4, .mesh = "tp=0"}, DW_INVALID, "an axis has 1 rank or more"},
        {{.world = 4, .mesh = "tp=2,tp=2"}, DW_INVALID, "an axis is there twice"},
        {{.world = 4, .mesh = "tp=99999999999999999999"}, DW_LIMIT, "it has more than 4096 ranks"},
        {{.world = 4, .mesh = "a=64,b=64,c=2"}, DW_LIMIT, "it has more than 4096 ranks"},
        {{.world = 4, .mesh = "a=1,b=1,c=1,d=1,e=1,f=4"}, DW_LIMIT, "it has more than 5 axes"},
        {{.world = 4, .mesh = "a_name_of_sixteen=4"}, DW_LIMIT, "more than 15 letters"},
    };
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    for (size_t i = 0; i < COUNT_OF(cases); i++) test_assert_fails(context, create(context, &cases[i].options), cases[i].status, cases[i].words);
    dw_comm *comm;
    test_assert_fails(context, dw_comm_create(context, "cuda:1", &(dw_comm_options){.world = 1}, &comm), DW_UNSUPPORTED, "NCCL");
    test_assert_fails(context, create(context, &(dw_comm_options){.world = 2, .engine = &(dw_collectives){0}}), DW_INVALID, "no all_gather");
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

static void an_id_is_checked_before_it_is_followed(void **state) {
    (void)state;
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    uint8_t id[DW_COMM_ID_BYTES], other[DW_COMM_ID_BYTES] = {0};
    size_t bytes = sizeof id - 1;
    test_assert_fails(context, dw_comm_id(context, NULL, id, &bytes), DW_LIMIT, "an id has 64 bytes");
    bytes = sizeof id;
    test_assert_fails(context, dw_comm_id(context, "cuda", id, &bytes), DW_UNSUPPORTED, "NCCL");
    assert_int_equal(dw_comm_id(context, "cpu", id, &bytes), DW_OK);
    dw_comm_options options = {.world = 2, .id = other, .id_bytes = sizeof other, .timeout_s = 0.01};
    test_assert_fails(context, create(context, &options), DW_INVALID, "none that dw_comm_id gave");
    for (size_t i = 0; i < 32; i++) {
        memcpy(other, id, sizeof id);
        other[i] ^= 4;
        test_assert_fails(context, create(context, &options), DW_INVALID, "the id is");
    }
    options.id_bytes = 8;
    test_assert_fails(context, create(context, &options), DW_INVALID, "an id has 64 bytes, and this one 8");
    options = (dw_comm_options){.world = 65, .id = id, .id_bytes = bytes, .timeout_s = 0.01};
    test_assert_fails(context, create(context, &options), DW_LIMIT, "65 ranks in one process");
    dw_context_destroy(context);
    assert_int_equal(memory.live_count, 0);
}

static void one_rank_needs_nobody(void **state) {
    (void)state;
    dw_context *context;
    dw_comm *comm;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(dw_comm_create(context, NULL, NULL, &comm), DW_OK);
    assert_string_equal(dw_comm_mesh(comm), "tp=1");
    assert_int_equal(dw_comm_world(comm), 1);
    dw_comm_destroy(comm);
    dw_context_destroy(context);
}

/* ---- ranks that differ, or do not come ---- */

typedef struct attempt { dw_comm_options options; const void *id; dw_status status; char words[512]; double seconds; } attempt;

static void *attempt_one(void *argument) {
    attempt *a = argument;
    dw_context *context;
    dw_comm *comm;
    rank_assert(NULL, dw_context_create(&(dw_context_options){.threads = 1}, &context) == DW_OK);
    const double begin = base_now();
    a->options.id = a->id;
    a->options.id_bytes = DW_COMM_ID_BYTES;
    a->status = dw_comm_create(context, NULL, &a->options, &comm);
    a->seconds = base_now() - begin;
    snprintf(a->words, sizeof a->words, "%s", dw_context_error(context));
    dw_comm_destroy(comm);
    dw_context_destroy(context);
    return NULL;
}

static void attempt_all(int count, attempt *attempts) {
    pthread_t handles[RANKS_MOST];
    uint8_t id[DW_COMM_ID_BYTES];
    size_t bytes = sizeof id;
    dw_context *context;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(dw_comm_id(context, NULL, id, &bytes), DW_OK);
    for (int i = 0; i < count; i++) {
        attempts[i].id = id;
        assert_int_equal(pthread_create(&handles[i], NULL, attempt_one, &attempts[i]), 0);
    }
    for (int i = 0; i < count; i++) pthread_join(handles[i], NULL);
    dw_context_destroy(context);
}

static void ranks_of_other_meshes_do_not_begin(void **state) {
    (void)state;
    attempt a[4];
    for (int i = 0; i < 4; i++) a[i] = (attempt){.options = {.rank = i, .world = 4, .mesh = i == 2 ? "tp=2,dp=2" : "dp=2,tp=2"}};
    attempt_all(4, a);
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a[i].status, DW_MISMATCH);
        assert_non_null(strstr(a[i].words, "rank 2 has another mesh than rank 0"));
    }
}

static void ranks_of_other_worlds_do_not_begin(void **state) {
    (void)state;
    attempt a[2] = {{.options = {.rank = 0, .world = 2, .timeout_s = 5}}, {.options = {.rank = 1, .world = 3, .timeout_s = 5}}};
    attempt_all(2, a);
    int told = 0;
    for (int i = 0; i < 2; i++) {
        assert_int_not_equal(a[i].status, DW_OK);
        assert_true(a[i].seconds < 4);                                /* nobody waits for who cannot come */
        told += strstr(a[i].words, "says that the world has") != NULL;
    }
    assert_int_equal(told, 1);
}

static void a_rank_that_does_not_come_is_named(void **state) {
    (void)state;
    attempt a[2] = {{.options = {.rank = 0, .world = 3, .timeout_s = 0.3}}, {.options = {.rank = 2, .world = 3, .timeout_s = 0.3}}};
    attempt_all(2, a);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(a[i].status, DW_LOST);
        assert_true(a[i].seconds < 0.3 + 2);
    }
    assert_true(strstr(a[0].words, "rank 1 did not come within 0.3 s") != NULL || strstr(a[1].words, "rank 1 did not come within 0.3 s") != NULL);
}

static void a_rank_comes_once(void **state) {
    (void)state;
    attempt a[3] = {{.options = {.rank = 0, .world = 2}}, {.options = {.rank = 1, .world = 2}}, {.options = {.rank = 1, .world = 2}}};
    attempt_all(3, a);
    int fine = 0;
    for (int i = 0; i < 3; i++) fine += a[i].status == DW_OK;
    assert_int_equal(fine, 2);
    assert_true(a[1].status == DW_INVALID || a[2].status == DW_INVALID);
}

/* ---- engines of the caller's ---- */

static void look_at_mesh(int rank, dw_context *context, dw_comm *comm, void *user) {
    (void)user;
    rank_assert(context, dw_comm_rank(comm) == rank && dw_comm_world(comm) == 6 && strcmp(dw_comm_mesh(comm), "dp=2,tp=3") == 0);
    rank_assert(context, op_mesh_place(comm_mesh(comm), rank, 0) == rank / 3 && op_mesh_place(comm_mesh(comm), rank, 1) == rank % 3);
}

static void ranks_meet_by_threads_and_by_an_engine(void **state) {
    (void)state;
    dw_collectives engines[RANKS_MOST];
    wire *w = wire_create("dp=2,tp=3", 0, 0, DW_OK, engines);
    ranks_run(&(ranks){.world = 6, .mesh = "dp=2,tp=3"}, look_at_mesh);
    ranks_run(&(ranks){.world = 6, .mesh = "dp=2,tp=3", .engines = engines}, look_at_mesh);
    wire_destroy(w);
}

static dw_status make_and_destroy(dw_context *context, void *argument) {
    uint8_t id[DW_COMM_ID_BYTES];
    size_t bytes = sizeof id;
    dw_comm *comm;
    (void)argument;
    TRY(dw_comm_id(context, NULL, id, &bytes));
    TRY(dw_comm_create(context, NULL, &(dw_comm_options){0}, &comm));
    dw_comm_destroy(comm);
    return DW_OK;
}

static void every_allocation_may_fail(void **state) {
    (void)state;
    test_every_allocation(make_and_destroy, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options_that_cannot_be_are_refused), cmocka_unit_test(an_id_is_checked_before_it_is_followed), cmocka_unit_test(one_rank_needs_nobody),
        cmocka_unit_test(ranks_of_other_meshes_do_not_begin), cmocka_unit_test(ranks_of_other_worlds_do_not_begin), cmocka_unit_test(a_rank_that_does_not_come_is_named),
        cmocka_unit_test(a_rank_comes_once), cmocka_unit_test(ranks_meet_by_threads_and_by_an_engine), cmocka_unit_test(every_allocation_may_fail),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
