/* The tokens of the text forms. */
#include "support/support.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base.h"

static dw_context *context;
static arena strings;

static int setup(void **state) {
    (void)state;
    if (dw_context_create(NULL, &context) != DW_OK) return -1;
    arena_init(&strings, context);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    arena_free(&strings);
    dw_context_destroy(context);
    return 0;
}

/* The tokens of source, one letter and text each: N name, V value, I integer, R real, S string, ';' newline, else punctuation. */
static void tokens_are(const char *source, const char *expected) {
    text tokens;
    text_init(&tokens, context);
    size_t length = strlen(source);
    char *bytes = malloc(length + 1);   /* exactly as long as it is, for the address sanitizer */
    memcpy(bytes, source, length + 1);
    bytes = realloc(bytes, length > 0 ? length : 1);
    scanner scanner;
    dw_status status = scan_open(&scanner, &strings, "test", bytes, length);
    for (; status == DW_OK && scanner.kind != SCAN_END; status = scan_next(&scanner)) {
        if (tokens.length > 0) text_add(&tokens, " ");
        switch (scanner.kind) {
        case SCAN_NEWLINE: text_add(&tokens, ";"); break;
        case SCAN_NAME: text_printf(&tokens, "N%s", scanner.token); break;
        case SCAN_VALUE: text_printf(&tokens, "V%lld", (long long)scanner.integer); break;
        case SCAN_INTEGER: text_printf(&tokens, "I%lld", (long long)scanner.integer); break;
        case SCAN_REAL: text_printf(&tokens, "R%g", scanner.real); break;
        case SCAN_STRING: text_printf(&tokens, "S%s", scanner.token); break;
        case SCAN_PUNCTUATION: text_add(&tokens, scanner.token); break;
        case SCAN_END: break;
        }
    }
    free(bytes);
    assert_int_equal(status, DW_OK);
    assert_string_equal(text_string(&tokens), expected);
    text_free(&tokens);
}

static void fails_with(const char *source, size_t length, const char *part) {
    scanner scanner;
    dw_status status = scan_open(&scanner, &strings, "test", source, length);
    while (status == DW_OK && scanner.kind != SCAN_END) status = scan_next(&scanner);
    test_assert_fails(context, status, DW_SYNTAX, part);
}

static void a_graph_line_reads_as_its_tokens(void **state) {
    (void)state;
    tokens_are("  %1 = matmul x, w1 {bt=true}  # comment\n", "V1 = Nmatmul Nx , Nw1 { Nbt = Ntrue } ;");
    tokens_are("input x bf16[s0,4096]", "Ninput Nx Nbf16 [ Ns0 , I4096 ]");
    tokens_are("a=@0x2b0000 # 41.2 us", "Na = @ I2818048");
    tokens_are("model.layers.0.weight _x $ a$b", "Nmodel.layers.0.weight N_x $ Na$b");
    tokens_are("", "");
    tokens_are("\r\n\n", "; ;");
}

static void numbers_read_as_integers_and_reals(void **state) {
    (void)state;
    tokens_are("0 7 9223372036854775807,-9223372036854775808", "I0 I7 I9223372036854775807 , I-9223372036854775808");
    tokens_are("0x1F 0xff", "I31 I255");
}

static void a_minus_belongs_to_a_number_except_after_an_operand(void **state) {
    (void)state;
    tokens_are("[-1,s-1]", "[ I-1 , Ns - I1 ]");
    tokens_are("(a)-1 x[2]-3 %4-1 2-1", "( Na ) - I1 Nx [ I2 ] - I3 V4 - I1 I2 - I1");
    tokens_are("{a=-inf,b=inf,c=nan,d=-0x10}", "{ Na = R-inf , Nb = Rinf , Nc = Rnan , Nd = I-16 }");
    tokens_are("=-infinite", "= - Ninfinite");
    tokens_are("-x", "- Nx");
}

static void reals_need_a_digit_after_the_point(void **state) {
    (void)state;
    tokens_are("=1.5,2e3,2.5E-3,1e+2", "= R1.5 , R2000 , R0.0025 , R100");
    tokens_are("1..3 4. 5.x", "I1 . . I3 I4 . I5 . Nx");
}

static void percent_without_a_number_is_punctuation(void **state) {
    (void)state;
    tokens_are("s%4 s%b %x", "Ns V4 Ns % Nb % Nx");
}

static void strings_unescape_as_json(void **state) {
    (void)state;
    tokens_are("\"a b\" \"\\\"\\\\\\/\\n\" \"\\u0041\\u00e9\\u20ac\\ud83d\\ude00\" \"\"", "Sa b S\"\\/\n SA\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80 S");
    tokens_are("\"# no comment\"", "S# no comment");
}

static void strings_printed_as_json_read_back(void **state) {
    (void)state;
    char all[256];
    for (int i = 1; i < 256; i++) all[i - 1] = (char)i;
    all[255] = '\0';
    text printed;
    text_init(&printed, context);
    text_json_string(&printed, all);
    scanner scanner;
    const char *back;
    assert_int_equal(scan_open(&scanner, &strings, "test", printed.bytes, printed.length), DW_OK);
    assert_int_equal(scan_string(&scanner, &back), DW_OK);
    assert_string_equal(back, all);
    text_free(&printed);
}

static void broken_tokens_are_errors_with_their_line(void **state) {
    (void)state;
#define FAILS(source, part) fails_with(source, sizeof(source) - 1, part)
    FAILS("a\nb 9223372036854775808", "SYNTAX: test:2: an integer does not fit 64 bits");
    FAILS("=-9223372036854775809", "does not fit 64 bits");
    FAILS("0xfffffffffffffffff", "does not fit 64 bits");
    FAILS("12ab", "a number ends in a letter");
    FAILS("1.5x", "a number ends in a letter");
    FAILS("=1e999", "a real number does not fit 64 bits");
    FAILS("\"open", "a string does not end on its line");
    FAILS("\"open\n\"", "a string does not end on its line");
    FAILS("\"open\\", "a string does not end on its line");
    FAILS("\"open\\\"", "a string does not end on its line");
    FAILS("\"\\q\"", "an unknown escape");
    FAILS("\"\\u12\"", "four hex digits");
    FAILS("\"\\u0000\"", "\\u0000 in a string");
    FAILS("\"\\ud83d\"", "half of a surrogate pair");
    FAILS("\"\\ud83d\\u0041\"", "half of a surrogate pair");
    FAILS("\"\\ude00\"", "half of a surrogate pair");
    FAILS("\n\n\x01", "test:3: byte 0x01 outside a string");
    FAILS("a\0b", "byte 0x00 outside a string");
    FAILS("\xc3\xa9", "byte 0xc3 outside a string");
    char digits[600] = "1.";
    memset(digits + 2, '1', 500);
    fails_with(digits, 502, "longer than 390 characters");
}

static void expectations_say_what_was_found_instead(void **state) {
    (void)state;
    static const struct { const char *source, *found; } cases[] = {
        {"x", "found 'x'"}, {"%3", "found '%3'"}, {"17", "found '17'"},          {"1.5", "found '1.5'"},
        {"*", "found '*'"}, {"", "found the end"}, {"\n", "found the end of the line"}, {"\"s\"", "found \"s\""},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        scanner scanner;
        assert_int_equal(scan_open(&scanner, &strings, "g.txt", cases[i].source, strlen(cases[i].source)), DW_OK);
        test_assert_fails(context, scan_expect(&scanner, "{"), DW_SYNTAX, "g.txt:1: expected '{', found");
        assert_non_null(strstr(dw_context_error(context), cases[i].found));
    }
    scanner scanner;
    const char *string;
    int64_t integer;
    double real;
    assert_int_equal(scan_open(&scanner, &strings, "g.txt", "= =", 3), DW_OK);
    test_assert_fails(context, scan_name(&scanner, &string), DW_SYNTAX, "expected a name");
    assert_null(string);
    test_assert_fails(context, scan_string(&scanner, &string), DW_SYNTAX, "expected a string");
    test_assert_fails(context, scan_integer(&scanner, &integer), DW_SYNTAX, "expected an integer");
    test_assert_fails(context, scan_real(&scanner, &real), DW_SYNTAX, "expected a number");
    test_assert_fails(context, scan_end_of_line(&scanner), DW_SYNTAX, "expected the end of the line");
}

static void typed_reads_return_their_values(void **state) {
    (void)state;
    static const char source[] = "graph \"m\" 3 4 2.5 , \n\n\nend";
    scanner scanner;
    const char *name, *string;
    int64_t integer;
    double real, also_real;
    bool accepted;
    assert_int_equal(scan_open(&scanner, &strings, "test", source, sizeof source - 1), DW_OK);
    assert_true(scan_is(&scanner, "graph"));
    assert_int_equal(scan_name(&scanner, &name), DW_OK);
    assert_false(scan_is(&scanner, "m"));
    assert_int_equal(scan_string(&scanner, &string), DW_OK);
    assert_int_equal(scan_integer(&scanner, &integer), DW_OK);
    assert_int_equal(scan_real(&scanner, &real), DW_OK);
    assert_int_equal(scan_real(&scanner, &also_real), DW_OK);
    assert_int_equal(scan_accept(&scanner, ";", &accepted), DW_OK);
    assert_false(accepted);
    assert_int_equal(scan_accept(&scanner, ",", &accepted), DW_OK);
    assert_true(accepted);
    assert_int_equal(scan_end_of_line(&scanner), DW_OK);
    assert_int_equal(scanner.line, 4);
    assert_int_equal(scan_expect(&scanner, "end"), DW_OK);
    assert_int_equal(scan_end_of_line(&scanner), DW_OK);
    assert_string_equal(name, "graph");
    assert_string_equal(string, "m");
    assert_true(integer == 3 && real == 4 && also_real == 2.5);
}

static dw_status scan_names(dw_context *context, void *argument) {
    (void)argument;
    arena arena;
    arena_init(&arena, context);
    text source;
    text_init(&source, context);
    for (int i = 0; i < 600; i++) text_printf(&source, "name%d \"string\" ", i);
    dw_status status = text_status(&source);
    if (status == DW_OK) {
        scanner scanner;
        status = scan_open(&scanner, &arena, "test", source.bytes, source.length);
        while (status == DW_OK && scanner.kind != SCAN_END) status = scan_next(&scanner);
    }
    text_free(&source);
    arena_free(&arena);
    return status;
}

static void every_failing_allocation_is_an_error_without_leak(void **state) {
    (void)state;
    test_every_allocation(scan_names, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_graph_line_reads_as_its_tokens),
        cmocka_unit_test(numbers_read_as_integers_and_reals),
        cmocka_unit_test(a_minus_belongs_to_a_number_except_after_an_operand),
        cmocka_unit_test(reals_need_a_digit_after_the_point),
        cmocka_unit_test(percent_without_a_number_is_punctuation),
        cmocka_unit_test(strings_unescape_as_json),
        cmocka_unit_test(strings_printed_as_json_read_back),
        cmocka_unit_test(broken_tokens_are_errors_with_their_line),
        cmocka_unit_test(expectations_say_what_was_found_instead),
        cmocka_unit_test(typed_reads_return_their_values),
        cmocka_unit_test(every_failing_allocation_is_an_error_without_leak),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
