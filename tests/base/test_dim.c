/* Symbolic dimensions: what folds to what, and random expressions against direct evaluation. */
#include "support/support.h"

#include <string.h>

#include "base/base.h"

static dw_context *context;
static dim_table *table;
static arena strings;

static int setup(void **state) {
    (void)state;
    if (dw_context_create(NULL, &context) != DW_OK || dim_table_create(context, &table) != DW_OK) return -1;
    arena_init(&strings, context);
    dim_symbol(table, "s", 1, 4096);
    dim_symbol(table, "b", 1, 64);
    dim_symbol(table, "z", -100, 100);
    dim_symbol(table, "u", 0, DIM_UNBOUNDED);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    arena_free(&strings);
    dim_table_destroy(table);
    dw_context_destroy(context);
    return 0;
}

static dim parsed(dim_table *into, const char *source) {
    scanner scanner;
    dim result = NULL;
    if (scan_open(&scanner, &strings, "test", source, strlen(source)) != DW_OK || dim_parse(&scanner, into, &result) != DW_OK ||
        scan_end_of_line(&scanner) != DW_OK) {
        fail_msg("%s: %s", source, dw_context_error(context));
    }
    return result;
}

static const char *printed(const dim_table *of, dim d) {
    text text;
    text_init(&text, context);
    dim_print(&text, of, d);
    const char *kept = arena_text(&strings, text_string(&text));
    text_free(&text);
    assert_non_null(kept);
    return kept;
}

static void parse_fails(const char *source, dw_status expected, const char *part) {
    scanner scanner;
    dim result = parsed(table, "s");
    assert_int_equal(scan_open(&scanner, &strings, "test", source, strlen(source)), DW_OK);
    test_assert_fails(context, dim_parse(&scanner, table, &result), expected, part);
    assert_null(result);
}

static void expressions_fold_to_their_canonical_form(void **state) {
    (void)state;
    static const struct { const char *source, *canonical; } cases[] = {
        {"1+s*b", "b*s+1"},
        {"s-s", "0"},
        {"(s+1)*(s-1)", "s*s-1"},
        {"-s", "-s"},
        {"3-2*s", "-2*s+3"},
        {"(16*s+5)/8", "2*s"},
        {"(9*s)/8", "s+s/8"},
        {"-(-s/8)", "s/8"},
        {"-((-s)/8)", "(s+7)/8"},
        {"(0-s)/8", "-((s+7)/8)"},
        {"s/(-8)", "-((s+7)/8)"},
        {"2*s/8", "s/4"},
        {"(2*s+3)/8", "(s+1)/4"},
        {"((s/4)+3)/4", "(s+12)/16"},
        {"(s+4095)/4096", "1"},
        {"(s+4094)/4096", "(s+4094)/4096"},
        {"s/4097", "0"},
        {"(s-1)/4096", "0"},
        {"s/(s+1)", "0"},
        {"(s*768)/(12*s)", "64"},
        {"(b*s*64)/(64*b)", "s"},
        {"((s+1)*(b+2))/(b+2)", "s+1"},
        {"(s*b+s)/(s*3)", "(b+1)/3"},
        {"(b*s)/(b*8)", "s/8"},
        {"(b*s+b/2)/s", "b+(b/2)/s"},
        {"s%4", "s%4"},
        {"(8*s)%4", "0"},
        {"(8*s+3)%4", "3"},
        {"(6*s)%4", "2*(s%2)"},
        {"s%4097", "s"},
        {"(s+4096)%4097", "s-1"},
        {"(s+8192)%4096", "s%4096"},
        {"(s%8)%4", "s%4"},
        {"(s%8+b)%8", "(b+s)%8"},
        {"s%-4", "-((-s)%4)"},
        {"(s*b+7)%s", "7%s"},
        {"min(s,4096)", "s"},
        {"min(b,s,100)", "min(b,s)"},
        {"min(s,min(b,s))", "min(b,s)"},
        {"max(s,0)", "s"},
        {"max(s,1,z)-1", "max(s,z)-1"},
        {"max(max(b,u),max(s,b))", "max(b,max(s,u))"},
        {"min(8*((s+7)/8),s)", "s"},
        {"max(s-s%8,s)", "s"},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const char *canonical = printed(table, parsed(table, cases[i].source));
        if (strcmp(canonical, cases[i].canonical) != 0) {
            fail_msg("%s gives %s, not %s", cases[i].source, canonical, cases[i].canonical);
        }
        assert_ptr_equal(parsed(table, canonical), parsed(table, cases[i].source));
    }
}

static void equal_expressions_are_one_pointer(void **state) {
    (void)state;
    dim s = dim_symbol(table, "s", 0, 1), b = dim_symbol(table, "b", 0, 1);
    assert_ptr_equal(dim_add(table, s, b), dim_add(table, b, s));
    assert_ptr_equal(dim_mul(table, s, dim_add(table, b, dim_constant(table, 1))), dim_add(table, dim_mul(table, b, s), s));
    assert_ptr_equal(dim_sub(table, dim_add(table, s, b), b), s);
    const dim factors[] = {s, b, s};
    assert_ptr_equal(dim_product(table, factors, 3), parsed(table, "s*s*b"));
    assert_ptr_equal(dim_product(table, NULL, 0), dim_constant(table, 1));
}

static void a_symbol_keeps_its_first_range(void **state) {
    (void)state;
    int64_t min, max;
    int index;
    assert_true(dim_is_symbol(dim_symbol(table, "s", 7, 9), &index));
    assert_int_equal(index, dim_symbol_find(table, "s"));
    assert_string_equal(dim_symbol_name(table, index), "s");
    dim_symbol_range(table, index, &min, &max);
    assert_true(min == 1 && max == 4096);
    assert_int_equal(dim_symbol_find(table, "absent"), -1);
}

static void a_range_narrows_and_never_widens(void **state) {
    (void)state;
    int64_t min, max;
    int index;
    assert_true(dim_is_symbol(dim_symbol(table, "narrowing", 0, DIM_UNBOUNDED), &index));
    assert_int_equal(dim_symbol_set_range(table, index, 1, 100), DW_OK);
    dim_symbol_range(table, index, &min, &max);
    assert_true(min == 1 && max == 100);
    test_assert_fails(context, dim_symbol_set_range(table, index, 0, 100), DW_INVALID, "not within that from 1 to 100");
    test_assert_fails(context, dim_symbol_set_range(table, index, 50, 49), DW_INVALID, "is empty");
    dim_symbol_range(table, index, &min, &max);
    assert_true(min == 1 && max == 100);
}

static void symbols_must_be_names(void **state) {
    (void)state;
    static const char *const wrong[] = {"", "0s", "a b", "a-b", "%1", ".x", "inf", "nan", "s\xc3"};
    for (size_t i = 0; i < COUNT_OF(wrong); i++) {
        assert_null(dim_symbol(table, wrong[i], 0, 1));
        test_assert_fails(context, base_last_status(context), DW_INVALID, "cannot name a symbol");
    }
    assert_null(dim_symbol(table, "empty", 3, 2));
    test_assert_fails(context, base_last_status(context), DW_INVALID, "the range from 3 to 2 is empty");
    assert_int_equal(dim_symbol_find(table, "empty"), -1);
}

static void ranges_follow_interval_arithmetic(void **state) {
    (void)state;
    static const struct { const char *source; int64_t min, max; } cases[] = {
        {"7", 7, 7},
        {"b*s+1", 2, 262145},
        {"s-b", -63, 4095},
        {"z*z", 0, 10000},
        {"z*z*z", -1000000, 1000000},
        {"-3*z", -300, 300},
        {"(s+7)/8", 1, 512},
        {"z/8", -13, 12},
        {"s/z", -4096, 4096},
        {"z%8", 0, 7},
        {"s%(b+1)", 0, 64},
        {"min(s,z)", -100, 100},
        {"max(s,z)", 1, 4096},
        {"u", 0, INT64_MAX},
        {"2*u-s", -4096, INT64_MAX},
        {"s-u", INT64_MIN, 4096},
        {"u*u+3", 3, INT64_MAX},
        {"u/8", 0, INT64_MAX},
        {"s/(u+1)", 0, 4096},
        {"u%8", 0, 7},
        {"s*9000000000000000000", 9000000000000000000, INT64_MAX},
        {"s-(7*s)/8", 1, 512},
        {"(3*b*s)/8-(b*s)/4", 0, 32768},
        {"(z+1)/2-z/2", 0, 1},
        {"u-u/3", 0, INT64_MAX},
        {"s/3-b", -64, 1364},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        int64_t min, max;
        dim_range(table, parsed(table, cases[i].source), &min, &max);
        if (min != cases[i].min || max != cases[i].max) {
            fail_msg("%s: from %lld to %lld", cases[i].source, (long long)min, (long long)max);
        }
    }
}

static void order_is_proven_by_ranges_and_bounds_of_functions(void **state) {
    (void)state;
    static const struct { const char *smaller, *larger; bool le, lt; } cases[] = {
        {"s", "s", true, false},
        {"s", "s+1", true, true},
        {"s", "s+b", true, true},
        {"s", "s*b", false, false},   /* true, but not by intervals */
        {"s", "b", false, false},
        {"s", "4096", true, false},
        {"0", "u", true, false},
        {"s", "u", false, false},
        {"s", "8*((s+7)/8)", true, false},
        {"8*(s/8)", "s", true, false},
        {"8*((s+7)/8)", "s+8", true, true},
        {"s%8", "s", true, false},
        {"s/2", "s", true, false},
        {"min(s,b)", "s", true, false},
        {"min(s,b)", "max(s,z)", true, false},
        {"z", "max(s,z)", true, false},
        {"z", "min(s,z)", false, false},
    };
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        dim smaller = parsed(table, cases[i].smaller), larger = parsed(table, cases[i].larger);
        if (dim_always_le(table, smaller, larger) != cases[i].le || dim_always_lt(table, smaller, larger) != cases[i].lt) {
            fail_msg("%s against %s", cases[i].smaller, cases[i].larger);
        }
    }
}

static void exact_division_finds_the_quotient_or_none(void **state) {
    (void)state;
    dim s1b2 = parsed(table, "(s+1)*(b+2)");
    assert_ptr_equal(dim_divide_exact(table, s1b2, parsed(table, "b+2")), parsed(table, "s+1"));
    assert_ptr_equal(dim_divide_exact(table, parsed(table, "-6*s*b"), parsed(table, "2*b")), parsed(table, "-3*s"));
    assert_ptr_equal(dim_divide_exact(table, parsed(table, "0"), parsed(table, "s")), parsed(table, "0"));
    assert_null(dim_divide_exact(table, s1b2, parsed(table, "b+1")));
    assert_null(dim_divide_exact(table, parsed(table, "s"), parsed(table, "2")));
    assert_null(dim_divide_exact(table, parsed(table, "7"), parsed(table, "2")));
    assert_null(dim_divide_exact(table, parsed(table, "s"), parsed(table, "0")));
    assert_null(dim_divide_exact(table, parsed(table, "s"), parsed(table, "b")));
    dim quotient = s1b2;
    assert_int_equal(dim_divide(table, parsed(table, "s"), parsed(table, "b"), &quotient), DW_OK);
    assert_null(quotient);
}

static void an_expression_can_be_taken_apart(void **state) {
    (void)state;
    dim d = parsed(table, "3*b*(s/8)-s+7"), product, a, b;
    int64_t coefficient, value;
    assert_int_equal(dim_kind_of(d), DIM_SUM);
    assert_int_equal(dim_term_count(d), 3);
    dim_term(d, 0, &coefficient, &product);
    assert_true(coefficient == 3 && dim_kind_of(product) == DIM_PRODUCT && dim_factor_count(product) == 2);
    assert_ptr_equal(dim_factor(product, 0), parsed(table, "b"));
    assert_int_equal(dim_kind_of(dim_factor(product, 1)), DIM_FLOORDIV);
    dim_operands(dim_factor(product, 1), &a, &b);
    assert_ptr_equal(a, parsed(table, "s"));
    assert_true(dim_is_constant(b, &value) && value == 8);
    dim_term(d, 1, &coefficient, &product);
    assert_true(coefficient == -1 && dim_is_symbol(product, NULL));
    dim_term(d, 2, &coefficient, &product);
    assert_true(coefficient == 7 && dim_is_constant(product, &value) && value == 1);
    assert_int_equal(dim_factor_count(product), 0);
    assert_int_equal(dim_term_count(parsed(table, "0")), 0);
    assert_int_equal(dim_kind_of(parsed(table, "0")), DIM_CONSTANT);
    assert_int_equal(dim_kind_of(parsed(table, "3*s")), DIM_PRODUCT);
    assert_int_equal(dim_kind_of(parsed(table, "s%3")), DIM_MOD);
    assert_int_equal(dim_kind_of(parsed(table, "min(s,b)")), DIM_MIN);
    assert_int_equal(dim_kind_of(parsed(table, "max(s,b)")), DIM_MAX);
}

static void text_does_not_depend_on_the_order_of_creation(void **state) {
    (void)state;
    static const char source[] = "min(s,b)*3+b*s-(b*s+z)/7+z%5";
    dim_table *other;
    assert_int_equal(dim_table_create(context, &other), DW_OK);
    dim_symbol(other, "z", -100, 100);
    parsed(other, "b%5+z/7");
    dim_table *fresh;
    assert_int_equal(dim_table_create(context, &fresh), DW_OK);
    dim_symbol(fresh, "z", -100, 100);
    assert_string_equal(printed(other, parsed(other, source)), printed(fresh, parsed(fresh, source)));
    dim_table_destroy(other);
    dim_table_destroy(fresh);
}

static void rewriting_substitutes_and_folds_anew(void **state) {
    (void)state;
    dim d = parsed(table, "(b*s+7)/8+max(s,z)");
    dim replacement[8] = {NULL};
    replacement[dim_symbol_find(table, "s")] = parsed(table, "8*b");
    assert_string_equal(printed(table, dim_rewrite(table, table, d, replacement)), "b*b+max(8*b,z)");
    assert_ptr_equal(dim_rewrite(table, table, d, NULL), d);

    dim_table *other;
    assert_int_equal(dim_table_create(context, &other), DW_OK);
    dim there = dim_rewrite(other, table, d, NULL);
    assert_string_equal(printed(other, there), printed(table, d));
    int64_t min, max, other_min, other_max;
    dim_range(table, d, &min, &max);
    dim_range(other, there, &other_min, &other_max);
    assert_true(min == other_min && max == other_max);
    dim_table_destroy(other);
}

static void limits_and_zero_divisors_are_errors(void **state) {
    (void)state;
    dim s = parsed(table, "s"), zero = parsed(table, "0");
    assert_null(dim_floordiv(table, s, zero));
    test_assert_fails(context, base_last_status(context), DW_INVALID, "division by zero");
    assert_null(dim_mod(table, s, zero));
    test_assert_fails(context, base_last_status(context), DW_INVALID, "by zero");
    assert_null(dim_mul(table, dim_constant(table, INT64_MAX), dim_constant(table, 2)));
    test_assert_fails(context, base_last_status(context), DW_LIMIT, "does not fit 64 bits");
    assert_null(dim_add(table, dim_constant(table, INT64_MAX), dim_constant(table, 1)));
    test_assert_fails(context, base_last_status(context), DW_LIMIT, "does not fit 64 bits");
    assert_null(dim_constant(table, INT64_MIN));
    assert_int_equal(base_last_status(context), DW_LIMIT);
    assert_null(dim_add(table, NULL, s));
    assert_null(dim_min(table, s, NULL));
    assert_null(dim_rewrite(table, table, NULL, NULL));

    dim power = s;
    for (int i = 1; i < 16; i++) power = dim_mul(table, power, s);
    assert_non_null(power);
    assert_null(dim_mul(table, power, s));
    test_assert_fails(context, base_last_status(context), DW_LIMIT, "more than 16 factors");

    dim sum = zero;
    char name[16];
    for (int i = 0; i < 256; i++) {
        snprintf(name, sizeof name, "many%d", i);
        sum = dim_add(table, sum, dim_symbol(table, name, 0, 10));
    }
    assert_non_null(sum);
    assert_null(dim_add(table, sum, s));
    test_assert_fails(context, base_last_status(context), DW_LIMIT, "more than 256 terms");

    dim deep = s, factor = parsed(table, "z+3"), divisor = parsed(table, "u+3");
    for (int i = 0; i < 63; i++) deep = dim_floordiv(table, dim_add(table, deep, s), divisor);
    assert_non_null(deep);
    assert_null(dim_floordiv(table, dim_add(table, deep, s), divisor));
    test_assert_fails(context, base_last_status(context), DW_LIMIT, "nested 65 deep");
    dim wide = s;   /* every round uses it twice */
    for (int i = 0; i < 60 && wide != NULL; i++) wide = dim_floordiv(table, dim_mul(table, wide, factor), divisor);
    assert_null(wide);
    test_assert_fails(context, base_last_status(context), DW_LIMIT, "at most 64 and 2000");

    dim least = s;
    for (int i = 0; i < 31; i++) {
        snprintf(name, sizeof name, "many%d", i);
        least = dim_min(table, least, dim_symbol(table, name, 0, 10));
    }
    assert_non_null(least);
    assert_null(dim_min(table, least, parsed(table, "z")));
    test_assert_fails(context, base_last_status(context), DW_LIMIT, "more than 32 operands");
}

static void broken_text_is_an_error_with_its_place(void **state) {
    (void)state;
    parse_fails("", DW_SYNTAX, "test:1: expected a dimension, found the end");
    parse_fails("s+", DW_SYNTAX, "expected a dimension");
    parse_fails("(s", DW_SYNTAX, "expected ')'");
    parse_fails("min(s)", DW_SYNTAX, "a second operand of min");
    parse_fails("max(s,", DW_SYNTAX, "expected a dimension");
    parse_fails("s/0", DW_INVALID, "division by zero (test:1)");
    parse_fails("s%0", DW_INVALID, "by zero (test:1)");
    parse_fails("9223372036854775807*s+9223372036854775807*s", DW_LIMIT, "(test:1)");
    char nested[1001];
    memset(nested, '(', 1000);
    nested[1000] = '\0';
    parse_fails(nested, DW_SYNTAX, "nested deeper than 200");
}

static void evaluation_notices_overflow_and_zero_divisors(void **state) {
    (void)state;
    int64_t values[400] = {0}, result;
    int s = dim_symbol_find(table, "s"), z = dim_symbol_find(table, "z"), u = dim_symbol_find(table, "u");
    values[s] = 10;
    values[z] = 0;
    values[u] = INT64_MAX;
    assert_int_equal(dim_eval(context, parsed(table, "(s+7)/8*100-s%3"), values, &result), DW_OK);
    assert_int_equal(result, 199);
    test_assert_fails(context, dim_eval(context, parsed(table, "s/z"), values, &result), DW_INVALID, "10 is divided by zero");
    test_assert_fails(context, dim_eval(context, parsed(table, "s%z"), values, &result), DW_INVALID, "divided by zero");
    test_assert_fails(context, dim_eval(context, parsed(table, "u+s"), values, &result), DW_LIMIT, "does not fit 64 bits");
    test_assert_fails(context, dim_eval(context, parsed(table, "u*u"), values, &result), DW_LIMIT, "does not fit 64 bits");
}

/* ---- random expressions ------------------------------------------------------------------------------------------------------- */

enum { SYMBOLS = 4, POINTS = 12 };

/* An expression with its value at each of POINTS assignments, or not defined there (division by zero, or too large to be told). */
typedef struct sample {
    dim d;
    int64_t values[POINTS];
    bool is_defined[POINTS];
} sample;

static uint64_t random_state;

static int64_t random_below(int64_t count) {
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)count);
}

static int64_t floored(int64_t a, int64_t b) {
    int64_t quotient = a / b;
    return quotient * b == a || (a < 0) == (b < 0) ? quotient : quotient - 1;
}

static sample combined(dim_table *in, char operation, sample a, sample b) {
    sample result;
    switch (operation) {
    case '+': result.d = dim_add(in, a.d, b.d); break;
    case '-': result.d = dim_sub(in, a.d, b.d); break;
    case '*': result.d = dim_mul(in, a.d, b.d); break;
    case '/': result.d = dim_floordiv(in, a.d, b.d); break;
    case '%': result.d = dim_mod(in, a.d, b.d); break;
    case '<': result.d = dim_min(in, a.d, b.d); break;
    default: result.d = dim_max(in, a.d, b.d); break;
    }
    for (int i = 0; i < POINTS; i++) {
        int64_t x = a.values[i], y = b.values[i];
        bool divides = operation == '/' || operation == '%';
        result.is_defined[i] = a.is_defined[i] && b.is_defined[i] && !(divides && y == 0);
        result.values[i] = 0;
        if (!result.is_defined[i]) continue;
        switch (operation) {
        case '+': result.values[i] = x + y; break;
        case '-': result.values[i] = x - y; break;
        case '*': result.values[i] = x * y; break;
        case '/': result.values[i] = floored(x, y); break;
        case '%': result.values[i] = x - y * floored(x, y); break;
        case '<': result.values[i] = x < y ? x : y; break;
        default: result.values[i] = x > y ? x : y; break;
        }
        if (result.values[i] > 1 << 30 || result.values[i] < -(1 << 30)) result.is_defined[i] = false;
    }
    return result;
}

static sample random_expression(dim_table *in, int64_t points[POINTS][SYMBOLS], int depth) {
    if (depth == 0 || random_below(5) == 0) {
        sample leaf;
        int symbol = (int)random_below(2 * SYMBOLS);
        int64_t constant = random_below(4) == 0 ? random_below(200) - 100 : 1 + random_below(16);
        leaf.d = symbol < SYMBOLS ? dim_symbol(in, dim_symbol_name(in, symbol), 0, 0) : dim_constant(in, constant);
        for (int i = 0; i < POINTS; i++) {
            leaf.is_defined[i] = true;
            leaf.values[i] = symbol < SYMBOLS ? points[i][symbol] : constant;
        }
        return leaf;
    }
    sample a = random_expression(in, points, depth - 1);
    sample b = random_expression(in, points, depth - 1);
    return combined(in, "+-*/%<>+*/%"[random_below(11)], a, b);
}

/* The values of a dim agree with direct evaluation wherever that is defined; its range holds them. */
static void assert_agrees(const dim_table *in, const sample *sample, int64_t points[POINTS][SYMBOLS], const char *what) {
    int64_t min, max;
    dim_range(in, sample->d, &min, &max);
    for (int i = 0; i < POINTS; i++) {
        if (!sample->is_defined[i]) continue;
        int64_t value = 0;
        dw_status status = dim_eval(context, sample->d, points[i], &value);
        if (status != DW_OK || value != sample->values[i]) {
            fail_msg("%s: %s is %lld, not %lld (%s) at %lld %lld %lld %lld", what, printed(in, sample->d), (long long)value,
                     (long long)sample->values[i], dw_status_name(status), (long long)points[i][0], (long long)points[i][1],
                     (long long)points[i][2], (long long)points[i][3]);
        }
        if (value < min || value > max) {
            fail_msg("%s: %s is %lld, outside %lld to %lld", what, printed(in, sample->d), (long long)value, (long long)min,
                     (long long)max);
        }
    }
}

static void random_expressions_agree_with_direct_evaluation(void **state) {
    (void)state;
    int made = 0, proven = 0;
    for (int round = 0; round < 3000; round++) {
        random_state = (uint64_t)round;
        dim_table *in;
        assert_int_equal(dim_table_create(context, &in), DW_OK);
        int64_t points[POINTS][SYMBOLS];
        for (int symbol = 0; symbol < SYMBOLS; symbol++) {
            static const int64_t least[] = {0, 1, 1, -20, 2}, span[] = {1, 8, 64, 40, 1000};
            int64_t min = least[random_below(5)], max = min + span[random_below(5)];
            char name[2] = {(char)('a' + symbol), '\0'};
            assert_non_null(dim_symbol(in, name, min, random_below(6) == 0 ? DIM_UNBOUNDED : max));
            for (int i = 0; i < POINTS; i++) {
                points[i][symbol] = i == 0 ? min : i == 1 ? max : min + random_below(max - min + 1);
            }
        }
        sample a = random_expression(in, points, 3), b = random_expression(in, points, 3);
        if (a.d == NULL || b.d == NULL) {   /* a constant division by zero, or a limit passed */
            assert_true(base_last_status(context) == DW_INVALID || base_last_status(context) == DW_LIMIT);
            dim_table_destroy(in);
            continue;
        }
        made++;
        assert_agrees(in, &a, points, "a");
        assert_agrees(in, &b, points, "b");
        assert_ptr_equal(parsed(in, printed(in, a.d)), a.d);
        assert_ptr_equal(dim_add(in, a.d, b.d), dim_add(in, b.d, a.d));
        assert_ptr_equal(dim_mul(in, a.d, b.d), dim_mul(in, b.d, a.d));

        if (dim_always_le(in, a.d, b.d)) {
            proven++;
            for (int i = 0; i < POINTS; i++) {
                if (a.is_defined[i] && b.is_defined[i] && a.values[i] > b.values[i]) {
                    fail_msg("%s <= %s was proven", printed(in, a.d), printed(in, b.d));
                }
            }
        }
        dim product = dim_mul(in, a.d, b.d);
        if (product != NULL && !dim_is_constant(b.d, NULL)) {
            dim quotient = dim_divide_exact(in, product, b.d);
            if (quotient != a.d) fail_msg("(%s) * (%s) divided by the second", printed(in, a.d), printed(in, b.d));
        }

        dim constants[SYMBOLS];
        for (int symbol = 0; symbol < SYMBOLS; symbol++) constants[symbol] = dim_constant(in, points[2][symbol]);
        dim bound = a.is_defined[2] ? dim_rewrite(in, in, a.d, constants) : NULL;
        int64_t value;
        if (a.is_defined[2]) assert_true(bound != NULL && dim_is_constant(bound, &value) && value == a.values[2]);
        dim_table_destroy(in);
    }
    assert_true(made > 2000 && proven > 100);
}

static dw_status use_dims(dw_context *context, void *argument) {
    (void)argument;
    dim_table *table;
    TRY(dim_table_create(context, &table));
    dw_status status = DW_OK;
    for (int i = 0; i < 40 && status == DW_OK; i++) {
        char name[16];
        snprintf(name, sizeof name, "s%d", i);
        dim s = dim_symbol(table, name, 1, 100);
        dim least = dim_min(table, dim_floordiv(table, dim_mul(table, s, dim_symbol(table, "b", 1, 8)), dim_constant(table, 8)), s);
        dim rest = dim_mod(table, dim_add(table, least, s), dim_symbol(table, "b", 1, 8));
        dim whole = dim_mul(table, dim_max(table, rest, least), dim_sub(table, s, dim_constant(table, i)));
        if (dim_rewrite(table, table, whole, NULL) == NULL) status = base_last_status(context);
    }
    dim_table_destroy(table);
    return status;
}

static void every_failing_allocation_is_an_error_without_leak(void **state) {
    (void)state;
    test_every_allocation(use_dims, NULL);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(expressions_fold_to_their_canonical_form),
        cmocka_unit_test(equal_expressions_are_one_pointer),
        cmocka_unit_test(a_symbol_keeps_its_first_range),
        cmocka_unit_test(a_range_narrows_and_never_widens),
        cmocka_unit_test(symbols_must_be_names),
        cmocka_unit_test(ranges_follow_interval_arithmetic),
        cmocka_unit_test(order_is_proven_by_ranges_and_bounds_of_functions),
        cmocka_unit_test(exact_division_finds_the_quotient_or_none),
        cmocka_unit_test(an_expression_can_be_taken_apart),
        cmocka_unit_test(text_does_not_depend_on_the_order_of_creation),
        cmocka_unit_test(rewriting_substitutes_and_folds_anew),
        cmocka_unit_test(limits_and_zero_divisors_are_errors),
        cmocka_unit_test(broken_text_is_an_error_with_its_place),
        cmocka_unit_test(evaluation_notices_overflow_and_zero_divisors),
        cmocka_unit_test(random_expressions_agree_with_direct_evaluation),
        cmocka_unit_test(every_failing_allocation_is_an_error_without_leak),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
