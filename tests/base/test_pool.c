/* The thread pool; also run under the thread sanitizer. */
#include "support/support.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/base.h"

enum { TASKS = 1000 };

typedef struct tally {
    int runs[TASKS];            /* not atomic: each task is one thread's, and pool_run's return orders it before the check */
    int workers[TASKS];
} tally;

static void count_task(void *argument, int64_t task, int worker) {
    tally *tally = argument;
    tally->runs[task]++;
    tally->workers[task] = worker;
}

static void every_task_runs_once_on_a_worker_of_the_pool(void **state) {
    (void)state;
    static const int threads[] = {1, 2, 3, 7};
    static tally tally;
    for (size_t i = 0; i < COUNT_OF(threads); i++) {
        dw_context *context;
        pool *pool;
        assert_int_equal(dw_context_create(NULL, &context), DW_OK);
        assert_int_equal(pool_create(context, threads[i], &pool), DW_OK);
        assert_int_equal(pool_threads(pool), threads[i]);
        memset(&tally, 0, sizeof tally);
        int expected[TASKS] = {0};
        for (int round = 0; round < 300; round++) {
            int count = round * 37 % (TASKS + 1);
            pool_run(pool, count, count_task, &tally);
            for (int task = 0; task < count; task++) expected[task]++;
        }
        assert_memory_equal(tally.runs, expected, sizeof expected);
        for (int task = 0; task < TASKS; task++) assert_in_range(tally.workers[task], 0, threads[i] - 1);
        pool_destroy(pool);
        dw_context_destroy(context);
    }
}

static void sleeping_workers_wake(void **state) {
    (void)state;
    dw_context *context;
    pool *pool;
    static tally tally;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(pool_create(context, 3, &pool), DW_OK);
    memset(&tally, 0, sizeof tally);
    for (int round = 0; round < 20; round++) {
        nanosleep(&(struct timespec){.tv_nsec = 2000000}, NULL);   /* far longer than they spin */
        pool_run(pool, 100, count_task, &tally);
    }
    for (int task = 0; task < 100; task++) assert_int_equal(tally.runs[task], 20);
    pool_destroy(pool);
    dw_context_destroy(context);
}

/* Waits, for task 0, until another thread has run task 1. */
static void meet(void *argument, int64_t task, int worker) {
    _Atomic int *met = argument;
    (void)worker;
    atomic_fetch_add(met, 1);
    while (task < 2 && atomic_load(met) < 2) nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
}

static void the_caller_and_a_worker_run_at_the_same_time(void **state) {
    (void)state;
    dw_context *context;
    pool *pool;
    _Atomic int met = 0;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &context), DW_OK);
    assert_int_equal(base_pool(context, &pool), DW_OK);
    struct pool *again;
    assert_int_equal(base_pool(context, &again), DW_OK);
    assert_ptr_equal(pool, again);
    pool_run(pool, 2, meet, &met);   /* hangs when one thread has to run both */
    assert_int_equal(met, 2);
    dw_context_destroy(context);
}

static void nothing_runs_for_no_task_and_one_runs_on_the_caller(void **state) {
    (void)state;
    dw_context *context;
    pool *pool;
    static tally tally;
    memset(&tally, 0, sizeof tally);
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &context), DW_OK);
    assert_int_equal(base_pool(context, &pool), DW_OK);
    pool_run(pool, 0, count_task, &tally);
    pool_run(pool, -5, count_task, &tally);
    assert_int_equal(tally.runs[0], 0);
    pool_run(pool, 1, count_task, &tally);
    assert_true(tally.runs[0] == 1 && tally.workers[0] == 0);
    dw_context_destroy(context);
}

typedef struct sums { double parts[64]; } sums;

static void sum_part(void *argument, int64_t task, int worker) {
    sums *sums = argument;
    (void)worker;
    double sum = 0;
    for (int i = 1; i < 2000; i++) sum += 1.0 / (double)(task * 2000 + i);
    sums->parts[task] = sum;
}

static void sums_of_a_fixed_split_are_the_same_bits_at_any_number_of_threads(void **state) {
    (void)state;
    sums expected;
    for (int threads = 1; threads <= 4; threads++) {
        dw_context *context;
        pool *pool;
        sums sums;
        assert_int_equal(dw_context_create(&(dw_context_options){.threads = threads}, &context), DW_OK);
        assert_int_equal(base_pool(context, &pool), DW_OK);
        pool_run(pool, 64, sum_part, &sums);
        if (threads == 1) expected = sums;
        assert_memory_equal(&sums, &expected, sizeof sums);
        dw_context_destroy(context);
    }
}

static void a_forked_child_runs_on_threads_of_its_own(void **state) {
    (void)state;
    dw_context *context;
    pool *pool;
    _Atomic int met = 0;
    static tally tally;
    memset(&tally, 0, sizeof tally);
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 3}, &context), DW_OK);
    assert_int_equal(base_pool(context, &pool), DW_OK);
    pool_run(pool, TASKS, count_task, &tally);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        alarm(20);
        pool_run(pool, 2, meet, &met);
        pool_run(pool, TASKS, count_task, &tally);
        int wrong = met != 2;
        for (int task = 0; task < TASKS; task++) wrong += tally.runs[task] != 2;
        dw_context_destroy(context);
        _exit(wrong > 0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    pool_run(pool, TASKS, count_task, &tally);   /* the parent's threads are as they were */
    for (int task = 0; task < TASKS; task++) assert_int_equal(tally.runs[task], 2);

    child = fork();   /* and a child that only lets go of it ends */
    if (child == 0) {
        alarm(20);
        dw_context_destroy(context);
        _exit(0);
    }
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    dw_context_destroy(context);
}

static void a_pool_needs_a_thread(void **state) {
    (void)state;
    dw_context *context;
    pool *pool = (struct pool *)1;
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    test_assert_fails(context, pool_create(context, 0, &pool), DW_INVALID, "0 threads asked for");
    assert_null(pool);
    pool_destroy(NULL);
    dw_context_destroy(context);
}

static dw_status use_pool(dw_context *context, void *argument) {
    pool *pool;
    TRY(base_pool(context, &pool));
    pool_run(pool, 3, count_task, argument);
    return DW_OK;
}

static void every_failing_allocation_is_an_error_without_leak(void **state) {
    (void)state;
    static tally tally;
    test_every_allocation(use_pool, &tally);
}

typedef struct shares { _Atomic int runs[16]; } shares;

static void count_share(void *argument, int64_t task, int worker) {
    (void)worker;
    shares *all = argument;
    atomic_fetch_add(&all->runs[task], 1);
}

/* Short jobs of changing counts, one right behind the other, on more threads than CPUs: a worker that is late for one meets the next. What
 * it took of the next would run twice, or the job would never end. */
static void late_workers_take_nothing_of_the_next_job(void **state) {
    (void)state;
    dw_context *context;
    pool *pool;
    shares all[2];
    assert_int_equal(dw_context_create(NULL, &context), DW_OK);
    assert_int_equal(pool_create(context, 12, &pool), DW_OK);
    for (int job = 0; job < 400000; job++) {
        int count = 2 + job % 13;
        shares *now = &all[job % 2];
        memset(now, 0, sizeof *now);
        pool_run(pool, count, count_share, now);
        for (int i = 0; i < 16; i++) assert_int_equal(now->runs[i], i < count);
    }
    pool_destroy(pool);
    dw_context_destroy(context);
}

enum { SHARERS = 3, ROUNDS = 400 };

typedef struct sharer {
    dw_context *context;
    int64_t sums[ROUNDS];
} sharer;

static void square_task(void *argument, int64_t task, int worker) {
    (void)worker;
    ((int64_t *)argument)[task] = task * task;
}

static void *share_main(void *argument) {
    sharer *sharer = argument;
    pool *pool;
    int64_t squares[TASKS];
    if (base_pool(sharer->context, &pool) != DW_OK) return NULL;
    for (int round = 0; round < ROUNDS; round++) {
        memset(squares, 0, sizeof squares);
        pool_run(pool, 1 + round % TASKS, square_task, squares);
        for (int i = 0; i < TASKS; i++) sharer->sums[round] += squares[i];
    }
    return NULL;
}

/* Contexts of three threads on the threads of one: each finds its own results, whether it had the workers or not. */
static void contexts_that_share_threads_run_side_by_side(void **state) {
    (void)state;
    dw_context *root;
    sharer sharers[SHARERS];
    pthread_t threads[SHARERS];
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 2}, &root), DW_OK);
    for (int i = 0; i < SHARERS; i++) {
        memset(&sharers[i], 0, sizeof sharers[i]);
        assert_int_equal(dw_context_create(&(dw_context_options){.threads = 7, .threads_of = root}, &sharers[i].context), DW_OK);
        assert_int_equal(dw_context_threads(sharers[i].context), 2);
    }
    for (int i = 0; i < SHARERS; i++) assert_int_equal(pthread_create(&threads[i], NULL, share_main, &sharers[i]), 0);
    for (int i = 0; i < SHARERS; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < SHARERS; i++) {
        for (int64_t round = 0, n; round < ROUNDS; round++) {
            n = 1 + round % TASKS;
            assert_int_equal(sharers[i].sums[round], (n - 1) * n * (2 * n - 1) / 6);
        }
        dw_context_destroy(sharers[i].context);
    }
    dw_context_destroy(root);
}

int main(void) {
    alarm(120);   /* a lost wake-up would hang */
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(late_workers_take_nothing_of_the_next_job),
        cmocka_unit_test(every_task_runs_once_on_a_worker_of_the_pool),
        cmocka_unit_test(sleeping_workers_wake),
        cmocka_unit_test(the_caller_and_a_worker_run_at_the_same_time),
        cmocka_unit_test(nothing_runs_for_no_task_and_one_runs_on_the_caller),
        cmocka_unit_test(sums_of_a_fixed_split_are_the_same_bits_at_any_number_of_threads),
        cmocka_unit_test(a_forked_child_runs_on_threads_of_its_own),
        cmocka_unit_test(contexts_that_share_threads_run_side_by_side),
        cmocka_unit_test(a_pool_needs_a_thread),
        cmocka_unit_test(every_failing_allocation_is_an_error_without_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
