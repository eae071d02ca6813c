/* Arenas and checked size arithmetic. */
#include "support/support.h"

#include <string.h>

#include "base/base.h"

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

static void size_arithmetic_notices_overflow(void **state) {
    (void)state;
    size_t size = 7;
    assert_true(base_mul_size(SIZE_MAX / 3, 3, &size) && size == SIZE_MAX);
    assert_true(base_mul_size(0, SIZE_MAX, &size) && size == 0);
    assert_false(base_mul_size(SIZE_MAX / 3 + 1, 3, &size));
    assert_true(base_add_size(SIZE_MAX - 1, 1, &size) && size == SIZE_MAX);
    assert_false(base_add_size(SIZE_MAX, 1, &size));
    assert_true(base_align_up(0, 16) == 0 && base_align_up(1, 16) == 16 && base_align_up(32, 16) == 32);
}

static void int64_arithmetic_agrees_with_a_wider_type(void **state) {
    (void)state;
    const int64_t edges[] = {0, 1, -1, 2, -2, 3, 3037000499, -3037000500, INT64_MAX / 2, INT64_MIN / 2, INT64_MAX - 1, INT64_MIN + 1,
                             INT64_MAX, INT64_MIN};
    for (size_t i = 0; i < COUNT_OF(edges); i++) {
        for (size_t j = 0; j < COUNT_OF(edges); j++) {
            int64_t result, expected;
            bool overflows = __builtin_mul_overflow(edges[i], edges[j], &expected);
            assert_int_equal(base_mul_i64(edges[i], edges[j], &result), !overflows);
            if (!overflows) assert_true(result == expected);
            overflows = __builtin_add_overflow(edges[i], edges[j], &expected);
            assert_int_equal(base_add_i64(edges[i], edges[j], &result), !overflows);
            if (!overflows) assert_true(result == expected);
        }
    }
}

static void memory_is_zeroed_aligned_and_apart(void **state) {
    arena arena;
    arena_init(&arena, *state);
    char *pieces[300];
    for (size_t i = 0; i < COUNT_OF(pieces); i++) {
        size_t bytes = (i * i) % 5000;
        pieces[i] = arena_new(&arena, bytes, 1);
        assert_non_null(pieces[i]);
        assert_int_equal((uintptr_t)pieces[i] % 16, 0);
        for (size_t j = 0; j < bytes; j++) assert_int_equal(pieces[i][j], 0);
        memset(pieces[i], (int)i, bytes);
    }
    for (size_t i = 0; i < COUNT_OF(pieces); i++) {
        for (size_t j = 0; j < (i * i) % 5000; j++) assert_int_equal(pieces[i][j], (char)i);
    }
    arena_free(&arena);
    assert_non_null(arena_new(&arena, 3, 8));
    arena_free(&arena);
}

static void small_things_share_blocks_and_big_ones_leave_them_their_room(void **state) {
    (void)state;
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    arena arena;
    arena_init(&arena, context);
    size_t before = memory.calls;
    for (int i = 0; i < 100; i++) assert_non_null(arena_new(&arena, 1, 16));
    assert_int_equal(memory.calls - before, 1);
    assert_non_null(arena_new(&arena, 1, 1 << 20));
    assert_int_equal(memory.calls - before, 2);
    for (int i = 0; i < 100; i++) assert_non_null(arena_new(&arena, 1, 16));
    assert_int_equal(memory.calls - before, 2);
    arena_free(&arena);
    dw_context_destroy(context);
    assert_int_equal(memory.live_bytes, 0);
}

static void sizes_beyond_the_address_space_are_refused(void **state) {
    dw_context *context = *state;
    arena arena;
    arena_init(&arena, context);
    assert_null(arena_new(&arena, SIZE_MAX / 2, 4));
    test_assert_fails(context, base_last_status(context), DW_NO_MEMORY, "4 bytes do not fit the address space");
    assert_null(arena_new(&arena, SIZE_MAX, 1));
    test_assert_fails(context, base_last_status(context), DW_NO_MEMORY, "do not fit the address space");
    assert_null(arena_new(&arena, SIZE_MAX - 40, 1));
    assert_int_equal(base_last_status(context), DW_NO_MEMORY);
    assert_null(arena_text_n(&arena, "", SIZE_MAX));
    assert_int_equal(base_last_status(context), DW_NO_MEMORY);
    size_t capacity = SIZE_MAX / 2 + 1;
    assert_null(arena_grow(&arena, NULL, capacity, &capacity, 1));
    arena_free(&arena);
}

static void text_is_copied_and_formatted(void **state) {
    arena arena;
    arena_init(&arena, *state);
    assert_string_equal(arena_text(&arena, "attention"), "attention");
    assert_string_equal(arena_text_n(&arena, "attention", 3), "att");
    assert_string_equal(arena_text_n(&arena, "", 0), "");
    assert_string_equal(arena_printf(&arena, "blocks.%d.%s", 3, "mlp"), "blocks.3.mlp");
    char *padded = arena_printf(&arena, "%9000d", 7);
    assert_int_equal(strlen(padded), 9000);
    arena_free(&arena);
}

static void an_array_keeps_its_contents_as_it_grows(void **state) {
    arena arena;
    arena_init(&arena, *state);
    int *array = NULL;
    size_t capacity = 0;
    for (size_t count = 0; count < 1000; count++) {
        array = arena_grow(&arena, array, count, &capacity, sizeof *array);
        assert_true(array != NULL && count < capacity);
        array[count] = (int)count;
    }
    for (int i = 0; i < 1000; i++) assert_int_equal(array[i], i);
    arena_free(&arena);
}

static dw_status use_arena(dw_context *context, void *argument) {
    (void)argument;
    arena arena;
    arena_init(&arena, context);
    dw_status status = DW_OK;
    size_t capacity = 0;
    int *array = NULL;
    for (size_t i = 0; i < 5000 && status == DW_OK; i++) {
        int *grown = arena_grow(&arena, array, i, &capacity, sizeof *array);
        if (grown != NULL) array = grown;
        if (grown == NULL || arena_printf(&arena, "%zu", i) == NULL) status = DW_NO_MEMORY;
    }
    arena_free(&arena);
    return status;
}

static void every_failing_allocation_is_an_error_without_leak(void **state) {
    (void)state;
    test_every_allocation(use_arena, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(size_arithmetic_notices_overflow),
        cmocka_unit_test(int64_arithmetic_agrees_with_a_wider_type),
        cmocka_unit_test_setup_teardown(memory_is_zeroed_aligned_and_apart, setup, teardown),
        cmocka_unit_test(small_things_share_blocks_and_big_ones_leave_them_their_room),
        cmocka_unit_test_setup_teardown(sizes_beyond_the_address_space_are_refused, setup, teardown),
        cmocka_unit_test_setup_teardown(text_is_copied_and_formatted, setup, teardown),
        cmocka_unit_test_setup_teardown(an_array_keeps_its_contents_as_it_grows, setup, teardown),
        cmocka_unit_test(every_failing_allocation_is_an_error_without_leak),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
