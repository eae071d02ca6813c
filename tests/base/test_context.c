/* The context: messages, allocation, cancellation. */
#include "support/support.h"

#include <string.h>

#include "base/base.h"

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

static void every_status_has_a_name_and_a_meaning(void **state) {
    (void)state;
    for (int status = 0; status < DW_STATUS_COUNT; status++) {
        assert_string_not_equal(dw_status_name(status), "?");
        assert_true(strlen(dw_status_meaning(status)) > 3);
    }
    assert_string_equal(dw_status_name(DW_STATUS_COUNT), "?");
    assert_string_equal(dw_status_meaning((dw_status)-1), "?");
    assert_string_equal(dw_status_name(DW_OK), "OK");
}

static void the_error_is_empty_before_the_first(void **state) { assert_string_equal(dw_context_error(*state), ""); }

static void a_failure_reads_status_text_and_place(void **state) {
    dw_context *context = *state;
    assert_int_equal(base_fail(context, DW_MISMATCH, "matmul: k of a is %d", 7), DW_MISMATCH);
    assert_string_equal(dw_context_error(context), "MISMATCH: matmul: k of a is 7");
    assert_int_equal(base_fail_at(context, DW_MISMATCH, "op %%%d", 3), DW_MISMATCH);
    assert_string_equal(dw_context_error(context), "MISMATCH: matmul: k of a is 7 (op %3)");
}

static void a_message_may_quote_the_last_one(void **state) {
    dw_context *context = *state;
    base_fail(context, DW_IO, "first");
    base_fail(context, DW_CORRUPT, "after \"%s\"", dw_context_error(context));
    assert_string_equal(dw_context_error(context), "CORRUPT: after \"IO: first\"");
}

static void a_message_too_long_is_clipped_with_dots(void **state) {
    dw_context *context = *state;
    base_fail(context, DW_LIMIT, "%10000d", 1);
    size_t length = strlen(dw_context_error(context));
    assert_int_equal(length, 4095);
    assert_string_equal(dw_context_error(context) + length - 3, "...");
    base_fail_at(context, DW_LIMIT, "no room");
    assert_int_equal(strlen(dw_context_error(context)), 4095);
    base_fail(context, DW_LIMIT, "short");
    base_fail_at(context, DW_LIMIT, "%10000d", 1);
    length = strlen(dw_context_error(context));
    assert_int_equal(length, 4095);
    assert_string_equal(dw_context_error(context) + length - 3, "...");
}

static void options_out_of_range_are_refused(void **state) {
    (void)state;
    dw_context *context = (dw_context *)1;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = -1}, &context), DW_INVALID);
    assert_null(context);
    dw_allocator no_release = {0};
    assert_int_equal(dw_context_create(&(dw_context_options){.allocator = &no_release}, &context), DW_INVALID);
    assert_int_equal(dw_context_create(NULL, NULL), DW_INVALID);
}

static void threads_are_as_asked_for_or_at_least_one(void **state) {
    assert_true(dw_context_threads(*state) >= 1);
    dw_context *context;
    assert_int_equal(dw_context_create(&(dw_context_options){.threads = 3}, &context), DW_OK);
    assert_int_equal(dw_context_threads(context), 3);
    dw_context_destroy(context);
}

static void allocations_are_aligned_and_failures_are_told(void **state) {
    dw_context *context = *state;
    for (size_t align = 1; align <= 4096; align *= 2) {
        void *memory;
        assert_int_equal(base_alloc(context, 100, align, &memory), DW_OK);
        assert_int_equal((uintptr_t)memory % align, 0);
        memset(memory, 1, 100);
        base_release(context, memory, 100, align);
    }
    for (size_t bytes = 2000000; bytes <= 16000000; bytes = bytes * 3 / 2) {   /* in large pages, where there are any, and what does not fill the last one */
        void *memory;
        assert_int_equal(base_alloc(context, bytes, 4096, &memory), DW_OK);
        assert_int_equal((uintptr_t)memory % 4096, 0);
        memset(memory, 1, bytes);
        base_release(context, memory, bytes, 4096);
    }
    void *memory = context;
    assert_int_equal(base_alloc(context, 0, 16, &memory), DW_OK);
    assert_null(memory);
    base_release(context, NULL, 0, 16);
    test_assert_fails(context, base_alloc(context, SIZE_MAX - 100, 64, &memory), DW_NO_MEMORY, "aligned to 64");
    assert_null(memory);
}

static int say_yes(void *user) { return ++*(int *)user > 1; }

static void cancellation_is_polled(void **state) {
    assert_int_equal(base_poll(*state), DW_OK);
    int calls = 0;
    dw_context *context;
    assert_int_equal(dw_context_create(&(dw_context_options){.cancelled = say_yes, .cancelled_user = &calls}, &context), DW_OK);
    assert_int_equal(base_poll(context), DW_OK);
    test_assert_fails(context, base_poll(context), DW_CANCELLED, "asked to stop");
    dw_context_destroy(context);
}

static void keep_line(void *user, dw_log_level level, const char *line) {
    snprintf(user, 100, "%d %s", (int)level, line);
}

static void the_log_goes_to_the_callers_function(void **state) {
    base_log(*state, DW_LOG_INFO, "to nobody");
    char line[100] = "";
    dw_context *context;
    assert_int_equal(dw_context_create(&(dw_context_options){.log = keep_line, .log_user = line}, &context), DW_OK);
    base_log(context, DW_LOG_INFO, "read %s", "x.pt2");
    assert_string_equal(line, "1 read x.pt2");
    dw_context_destroy(context);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_status_has_a_name_and_a_meaning),
        cmocka_unit_test_setup_teardown(the_error_is_empty_before_the_first, setup, teardown),
        cmocka_unit_test_setup_teardown(a_failure_reads_status_text_and_place, setup, teardown),
        cmocka_unit_test_setup_teardown(a_message_may_quote_the_last_one, setup, teardown),
        cmocka_unit_test_setup_teardown(a_message_too_long_is_clipped_with_dots, setup, teardown),
        cmocka_unit_test(options_out_of_range_are_refused),
        cmocka_unit_test_setup_teardown(threads_are_as_asked_for_or_at_least_one, setup, teardown),
        cmocka_unit_test_setup_teardown(allocations_are_aligned_and_failures_are_told, setup, teardown),
        cmocka_unit_test_setup_teardown(cancellation_is_polled, setup, teardown),
        cmocka_unit_test_setup_teardown(the_log_goes_to_the_callers_function, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
