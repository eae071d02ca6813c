/* The errors that kernels/cpu/math.h states, beside double: all floats in steps of a prime number of codes, which meets every exponent
 * thousands of times, and the neighbours of what is special. */
#include "support/support.h"

#include <float.h>
#include <math.h>

#include "kernels/cpu/math.h"

enum { STEP = 4099 };   /* of codes: about a million floats */

typedef struct worst { double error; float at; } worst;

/* |got - exact| in steps of the float at exact; of subnormal numbers when it is smaller. */
static double ulps(float got, double exact) {
    if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
    if (isinf((float)exact) || isinf(got)) return (float)exact == got ? 0 : INFINITY;
    int exponent;
    frexp(exact, &exponent);
    if (exponent < FLT_MIN_EXP) exponent = FLT_MIN_EXP;
    return fabs((double)got - exact) / ldexp(1.0, exponent - FLT_MANT_DIG);
}

/* |got - exact| beside |x|, in 2^-22; of numbers too small to have that precision, in steps of a subnormal number. */
static double beside(float x, float got, double exact) {
    if (isnan(exact)) return isnan(got) ? 0 : INFINITY;
    if (isinf((float)exact) || isinf(got)) return (float)exact == got ? 0 : INFINITY;
    double unit = fabs((double)x) * 0x1p-22;
    return fabs((double)got - exact) / (unit > 0x1p-148 ? unit : 0x1p-148);
}

static void note(worst *worst, double error, float at) {
    if (error > worst->error) *worst = (struct worst){error, at};
}

static void check(const char *name, const worst *worst, double bound) {
    print_message("%-10s %.3f at %a, at most %.1f is stated\n", name, worst->error, (double)worst->at, bound);
    if (worst->error > bound) fail_msg("%s: %.3f at %a", name, worst->error, (double)worst->at);
}

static double exact_sigmoid(double x) { return 1 / (1 + exp(-x)); }
static double exact_gelu(double x) { return isinf(x) ? (x > 0 ? x : NAN) : x * erfc(-x * M_SQRT1_2) / 2; }
static double exact_gelu_tanh(double x) { return x * exact_sigmoid(2 * sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)); }
static double exact_quick_gelu(double x) { return x * exact_sigmoid(1.702 * x); }

static void errors_are_what_the_header_says(void **state) {
    (void)state;
    worst of_exp = {0}, of_sigmoid = {0}, of_silu = {0}, of_tanh = {0}, of_erf = {0}, of_gelu = {0}, of_gelu_tanh = {0}, of_quick_gelu = {0};
    for (int64_t code = 0; code <= UINT32_MAX; code += STEP) {
        float x = cpu_float((int32_t)(uint32_t)code);
        if (isnan(x)) continue;
        note(&of_exp, ulps(cpu_exp(x), exp((double)x)), x);
        if (x > -88.72f) note(&of_sigmoid, ulps(cpu_sigmoid(x), exact_sigmoid((double)x)), x);
        else assert_true(cpu_sigmoid(x) == 0.0f);
        note(&of_tanh, ulps(cpu_tanh(x), tanh((double)x)), x);
        note(&of_erf, ulps(cpu_erf(x), erf((double)x)), x);
        if (isinf(x)) continue;
        if (x > -88.72f) note(&of_silu, ulps(cpu_silu(x), (double)x * exact_sigmoid((double)x)), x);
        else assert_true(cpu_silu(x) == 0.0f);
        note(&of_gelu, beside(x, cpu_gelu(x), exact_gelu((double)x)), x);
        note(&of_quick_gelu, beside(x, cpu_quick_gelu(x), exact_quick_gelu((double)x)), x);
        note(&of_gelu_tanh, beside(x, cpu_gelu_tanh(x), exact_gelu_tanh((double)x)), x);
    }
    check("exp", &of_exp, 1.5);
    check("sigmoid", &of_sigmoid, 2.5);
    check("silu", &of_silu, 3);
    check("tanh", &of_tanh, 2.5);
    check("erf", &of_erf, 2);
    check("gelu", &of_gelu, 1);
    check("gelu_tanh", &of_gelu_tanh, 1);
    check("quick_gelu", &of_quick_gelu, 1);
}

static void ends_and_nan_are_right(void **state) {
    (void)state;
    assert_true(cpu_exp(0.0f) == 1.0f);
    assert_true(cpu_exp(88.73f) == INFINITY && cpu_exp(INFINITY) == INFINITY && isfinite(cpu_exp(88.72f)));
    assert_true(cpu_exp(-104.0f) == 0.0f && cpu_exp(-INFINITY) == 0.0f && cpu_exp(-103.9f) > 0.0f);
    assert_true(cpu_tanh(INFINITY) == 1.0f && cpu_tanh(-INFINITY) == -1.0f && cpu_erf(INFINITY) == 1.0f && cpu_erf(-INFINITY) == -1.0f);
    assert_true(cpu_tanh(-0.0f) == 0.0f && cpu_erf(-0.0f) == 0.0f && cpu_sigmoid(-INFINITY) == 0.0f && cpu_sigmoid(INFINITY) == 1.0f);
    assert_true(isnan(cpu_exp(NAN)) && isnan(cpu_tanh(NAN)) && isnan(cpu_erf(NAN)) && isnan(cpu_sigmoid(NAN)) && isnan(cpu_silu(NAN)));
    assert_true(isnan(cpu_gelu(NAN)) && isnan(cpu_gelu_tanh(NAN)) && isnan(cpu_quick_gelu(NAN)) && isnan(cpu_relu(NAN)));
    assert_true(cpu_relu(-1.0f) == 0.0f && cpu_relu(2.0f) == 2.0f);
}

int main(void) {
    const struct CMUnitTest tests[] = {cmocka_unit_test(errors_are_what_the_header_says), cmocka_unit_test(ends_and_nan_are_right)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
