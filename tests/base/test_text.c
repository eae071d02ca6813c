/* The growing string and the string map. */
#include "support/support.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

static void an_empty_text_reads_as_the_empty_string(void **state) {
    text text;
    text_init(&text, *state);
    assert_string_equal(text_string(&text), "");
    assert_int_equal(text_status(&text), DW_OK);
    text_add(&text, "");
    assert_string_equal(text_string(&text), "");
    text_free(&text);
}

static void text_grows_by_appending(void **state) {
    text text;
    text_init(&text, *state);
    for (int i = 0; i < 1000; i++) {
        text_add(&text, "ab");
        text_add_n(&text, "cdef", 1);
        text_printf(&text, "%d", i % 10);
    }
    assert_int_equal(text.length, 4000);
    assert_int_equal(strlen(text_string(&text)), 4000);
    assert_memory_equal(text_string(&text) + 3996, "abc9", 5);
    text_free(&text);
}

static void json_strings_are_quoted_and_escaped(void **state) {
    text text;
    text_init(&text, *state);
    text_json_string(&text, "a\"b\\c\n\t\r\b\f\x01\x1f/\xc3\xa9");
    assert_string_equal(text_string(&text), "\"a\\\"b\\\\c\\n\\t\\r\\b\\f\\u0001\\u001f/\xc3\xa9\"");
    text_free(&text);
}

static void real_is(dw_context *context, double number, const char *expected) {
    text text;
    text_init(&text, context);
    text_real(&text, number);
    assert_string_equal(text_string(&text), expected);
    text_free(&text);
}

static void reals_are_short_and_told_from_integers(void **state) {
    real_is(*state, 0.1, "0.1");
    real_is(*state, 2, "2.0");
    real_is(*state, -0.0, "-0.0");
    real_is(*state, 1e-5, "1e-05");
    real_is(*state, 1e300, "1e+300");
    real_is(*state, 1.0 / 3, "0.3333333333333333");
    real_is(*state, 0.1 + 0.2, "0.30000000000000004");
    real_is(*state, INFINITY, "inf");
    real_is(*state, -INFINITY, "-inf");
    real_is(*state, NAN, "nan");
}

static void reals_read_back_as_the_same_bits(void **state) {
    dw_context *context = *state;
    arena arena;
    arena_init(&arena, context);
    uint64_t bits = 12345;
    for (int i = 0; i < 2000; i++) {
        double number, back;
        bits = bits * 6364136223846793005u + 1442695040888963407u;
        memcpy(&number, &bits, sizeof number);
        if (!isfinite(number)) continue;
        text text;
        text_init(&text, context);
        text_real(&text, number);
        scanner scanner;
        assert_int_equal(scan_open(&scanner, &arena, "test", text.bytes, text.length), DW_OK);
        assert_int_equal(scanner.kind, SCAN_REAL);
        assert_int_equal(scan_real(&scanner, &back), DW_OK);
        assert_memory_equal(&back, &number, sizeof number);
        text_free(&text);
    }
    arena_free(&arena);
}

static void reals_do_not_follow_the_locale(void **state) {
    if (setlocale(LC_NUMERIC, "de_DE.UTF-8") == NULL) {
        print_message("the locale de_DE.UTF-8, whose decimal point is a comma, is not installed here\n");
        skip();
    }
    real_is(*state, 0.5, "0.5");
    arena arena;
    arena_init(&arena, *state);
    scanner scanner;
    double number;
    assert_int_equal(scan_open(&scanner, &arena, "test", "2.25", 4), DW_OK);
    assert_int_equal(scan_real(&scanner, &number), DW_OK);
    assert_true(number == 2.25);
    arena_free(&arena);
    setlocale(LC_NUMERIC, "C");
}

static dw_status use_text(dw_context *context, void *argument) {
    (void)argument;
    text text;
    text_init(&text, context);
    for (int i = 0; i < 300; i++) {
        text_printf(&text, "line %d ", i);
        text_json_string(&text, "x\n");
        text_real(&text, i / 7.0);
    }
    dw_status status = text_status(&text);
    if (status == DW_OK) assert_non_null(strstr(text_string(&text), "line 299 \"x\\n\""));
    text_free(&text);
    return status;
}

static void a_failed_append_is_told_at_the_end(void **state) {
    (void)state;
    test_every_allocation(use_text, NULL);
}

static void a_map_finds_what_was_set_in_order_of_insertion(void **state) {
    arena arena;
    arena_init(&arena, *state);
    map map;
    map_init(&map, &arena);
    assert_null(map_find(&map, "absent"));
    static int values[2000];
    char key[32];
    for (int i = 0; i < 2000; i++) {
        snprintf(key, sizeof key, "layers.%d.weight", i * 7919 % 2000);
        assert_int_equal(map_set(&map, key, &values[i]), DW_OK);
    }
    assert_int_equal(map.count, 2000);
    for (int i = 0; i < 2000; i++) {
        snprintf(key, sizeof key, "layers.%d.weight", i * 7919 % 2000);
        assert_ptr_equal(map_find(&map, key), &values[i]);
        assert_string_equal(map.entries[i].key, key);
    }
    assert_null(map_find(&map, "layers.2000.weight"));
    assert_null(map_find(&map, ""));
    assert_int_equal(map_set(&map, "layers.0.weight", &map), DW_OK);
    assert_int_equal(map.count, 2000);
    assert_ptr_equal(map_find(&map, "layers.0.weight"), &map);
    arena_free(&arena);
}

static dw_status use_map(dw_context *context, void *argument) {
    (void)argument;
    arena arena;
    arena_init(&arena, context);
    map map;
    map_init(&map, &arena);
    dw_status status = DW_OK;
    for (int i = 0; i < 500 && status == DW_OK; i++) {
        char key[16];
        snprintf(key, sizeof key, "%d", i);
        size_t count = map.count;
        status = map_set(&map, key, &map);
        if (status != DW_OK) {
            assert_int_equal(map.count, count);
            if (count > 0) assert_non_null(map_find(&map, "0"));
        }
    }
    arena_free(&arena);
    return status;
}

static void a_map_that_could_not_grow_stays_whole(void **state) {
    (void)state;
    test_every_allocation(use_map, NULL);
}

static void hashes_depend_on_bytes_and_seed(void **state) {
    (void)state;
    assert_true(base_hash("abc", 3, 0) == base_hash("abcd", 3, 0));
    assert_true(base_hash("abc", 3, 0) != base_hash("abd", 3, 0));
    assert_true(base_hash("abc", 3, 0) != base_hash("abc", 3, 1));
    assert_true(base_hash("", 0, 0) == 0x2d06800538d394c2u);   /* XXH3's own test vector */
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(an_empty_text_reads_as_the_empty_string, setup, teardown),
        cmocka_unit_test_setup_teardown(text_grows_by_appending, setup, teardown),
        cmocka_unit_test_setup_teardown(json_strings_are_quoted_and_escaped, setup, teardown),
        cmocka_unit_test_setup_teardown(reals_are_short_and_told_from_integers, setup, teardown),
        cmocka_unit_test_setup_teardown(reals_read_back_as_the_same_bits, setup, teardown),
        cmocka_unit_test_setup_teardown(reals_do_not_follow_the_locale, setup, teardown),
        cmocka_unit_test(a_failed_append_is_told_at_the_end),
        cmocka_unit_test_setup_teardown(a_map_finds_what_was_set_in_order_of_insertion, setup, teardown),
        cmocka_unit_test(a_map_that_could_not_grow_stays_whole),
        cmocka_unit_test(hashes_depend_on_bytes_and_seed),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
