/* Floating point in single and double precision (PTX ISA 9.7.3): IEEE operations in every rounding mode, bit for bit, and the approximate functions,
 * which are computed in double and rounded once: within the documented error of the hardware's, and not its bits. */
#include <fenv.h>

#include "decode.h"
#include "sim/machine/lanes.h"
#include "sim/math/real.h"

#include "num/num.h"

/* ---- the common cases: to nearest ---- */

LANES_2(add_rn, float, float, float, canonical(a + b))
LANES_2(sub_rn, float, float, float, canonical(a - b))
LANES_2(mul_rn, float, float, float, canonical(a * b))
LANES_2(add_rn_ftz, float, float, float, flush(canonical(flush(a) + flush(b))))
LANES_2(sub_rn_ftz, float, float, float, flush(canonical(flush(a) - flush(b))))
LANES_3(fma_rn, float, float, float, float, canonical(fmaf(a, b, c)))
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) LANES_3(fma_rn_fast, float, float, float, float, canonical(__builtin_fmaf(a, b, c)))
#endif

/* Double precision keeps the payload of a NaN and makes it quiet. Of several NaNs the second factor or term counts first, then fma's addend (an H200's). */

static inline uint64_t quiet64(uint64_t a) { return (a & INT64_MAX) > 0x7ff0000000000000ull ? a | 0x0008000000000000ull : a; }
static inline double nan_of_two(double a, double b, double r) { return isnan(b) ? f64_from(quiet64(f64_bits(b))) : isnan(a) ? f64_from(quiet64(f64_bits(a))) : r; }
static inline double nan_of_three(double a, double b, double c, double r) { return isnan(b) ? nan_of_two(a, b, r) : nan_of_two(a, c, r); }

LANES_2(add_rn64, double, double, double, nan_of_two(a, b, a + b))
LANES_2(sub_rn64, double, double, double, nan_of_two(a, b, a - b))
LANES_2(mul_rn64, double, double, double, nan_of_two(a, b, a * b))
LANES_3(fma_rn64, double, double, double, double, nan_of_three(a, b, c, fma(a, b, c)))

/* ---- every mode ---- */

typedef enum operation { ADD, SUB, MUL, FMA, DIV, RCP, SQRT } operation;

static int host_rounding(const sim_op *op) {
    if (sim_has(&op->mods, SIM_MOD_rz)) return FE_TOWARDZERO;
    if (sim_has(&op->mods, SIM_MOD_rm)) return FE_DOWNWARD;
    if (sim_has(&op->mods, SIM_MOD_rp)) return FE_UPWARD;
    return FE_TONEAREST;
}

/* Operands and results pass through volatile memory, so that no arithmetic leaves the region of its rounding mode. */
static void compute32(operation what, int rounding, const float *a, const float *b, const float *c, float *r, int count) {
    volatile float x, y, z, result;
    int before = fegetround();
    fesetround(rounding);
    for (int i = 0; i < count; i++) {
        x = a[i];
        y = b[i];
        z = c[i];
        switch (what) {
        case ADD: result = x + y; break;
        case SUB: result = x - y; break;
        case MUL: result = x * y; break;
        case FMA: result = fmaf(x, y, z); break;
        case DIV: result = x / y; break;
        case RCP: result = 1.0f / x; break;
        default: result = sqrtf(x); break;
        }
        r[i] = result;
    }
    fesetround(before);
}

static void compute64(operation what, int rounding, const double *a, const double *b, const double *c, double *r, int count) {
    volatile double x, y, z, result;
    int before = fegetround();
    fesetround(rounding);
    for (int i = 0; i < count; i++) {
        x = a[i];
        y = b[i];
        z = c[i];
        switch (what) {
        case ADD: result = nan_of_two(x, y, x + y); break;
        case SUB: result = nan_of_two(x, y, x - y); break;
        case MUL: result = nan_of_two(x, y, x * y); break;
        case FMA: result = nan_of_three(x, y, z, fma(x, y, z)); break;
        case DIV: result = nan_of_two(y, x, x / y);   /* the sequence for quotients looks at the dividend first */ break;
        case RCP: result = 1.0 / x; break;
        default: result = sqrt(x); break;
        }
        r[i] = result;
    }
    fesetround(before);
}

/* ---- flushing: what rounds, to 24 bits as if exponents had no end, to less than the smallest normal number becomes zero, though rounded in its place it may be that number (an H200's) ---- */

static const float least_normal = 0x1p-126f;

/* Which of these results of magnitude 2^-126 are less before they are put in their place? a, b and c are flushed already. */
static void flush_least(operation what, int rounding, const float *a, const float *b, const float *c, float *r, int count) {
    for (int i = 0; i < count; i++) {
        if (fabsf(r[i]) != least_normal) continue;
        /* Where the result is tiny, so are product and addend: the smaller factor has room for 2^64. */
        float x = fabsf(a[i]) < fabsf(b[i]) ? a[i] * 0x1p64f : a[i], y = fabsf(a[i]) < fabsf(b[i]) ? b[i] : b[i] * 0x1p64f, z = what == FMA ? c[i] * 0x1p64f : 0.0f, wide;
        if (what == DIV || what == RCP) {   /* a quotient less than 2^-126 is less by more than a rounding adds */
            const double part = what == DIV ? fabs((double)a[i]) : 1.0, whole = fabs((double)(what == DIV ? b[i] : a[i]));
            if (part < whole * 0x1p-126) r[i] = copysignf(0.0f, r[i]);
            continue;
        }
        if (what != MUL && what != FMA) continue;
        compute32(what, rounding, &x, &y, &z, &wide, 1);
        if (fabsf(wide) < 0x1p-62f) r[i] = copysignf(0.0f, r[i]);
    }
}

#define FLUSHED_ROW(name, what, expression)                                                                     \
    static sim_flow name(sim_warp *w, const sim_op *op, uint32_t mask) {                                        \
        float a[LANES], b[LANES], c[LANES], r[LANES];                                                           \
        const float *as = ROW(float, 1), *bs = ROW(float, 2), *cs = op->arg[3] != SIM_NO_ROW ? ROW(float, 3) : as; \
        bool least = false;                                                                                     \
        for (int i = 0; i < LANES; i++) {                                                                       \
            a[i] = flush(as[i]);                                                                                \
            b[i] = flush(bs[i]);                                                                                \
            c[i] = flush(cs[i]);                                                                                \
            r[i] = flush(canonical(expression));                                                                \
            least |= fabsf(r[i]) == least_normal;                                                               \
        }                                                                                                       \
        if (least) flush_least(what, FE_TONEAREST, a, b, c, r, LANES);                                          \
        STORE_ROW(float, 0, r, mask);                                                                           \
        return SIM_NEXT;                                                                                        \
    }
FLUSHED_ROW(mul_rn_ftz, MUL, a[i] * b[i])
FLUSHED_ROW(fma_rn_ftz, FMA, fmaf(a[i], b[i], c[i]))
#if defined(__x86_64__)
__attribute__((target("avx2,fma"))) FLUSHED_ROW(fma_rn_ftz_fast, FMA, __builtin_fmaf(a[i], b[i], c[i]))
#endif

/* count floats of each row: 32, or 64 of pairs. */
static sim_flow any32(sim_warp *w, const sim_op *op, uint32_t mask, int count) {
    float in[3][2 * LANES], out[2 * LANES];
    bool ftz = sim_has(&op->mods, SIM_MOD_ftz);
    for (int k = 0; k < 3; k++) {
        const float *row = op->arg[k + 1] != SIM_NO_ROW ? ROW(float, k + 1) : ROW(float, 1);
        for (int i = 0; i < count; i++) in[k][i] = ftz ? flush(row[i]) : row[i];
    }
    compute32((operation)op->small, host_rounding(op), in[0], in[1], in[2], out, count);
    if (ftz) flush_least((operation)op->small, host_rounding(op), in[0], in[1], in[2], out, count);
    for (int i = 0; i < count; i++) {
        out[i] = canonical(out[i]);
        if (ftz) out[i] = flush(out[i]);
        if (sim_has(&op->mods, SIM_MOD_sat)) out[i] = saturate(out[i]);
    }
    if (count == LANES) {
        STORE_ROW(float, 0, out, mask);
        return SIM_NEXT;
    }
    uint64_t pairs[LANES];
    memcpy(pairs, out, sizeof pairs);
    STORE_ROW(uint64_t, 0, pairs, mask);
    return SIM_NEXT;
}

static sim_flow any_f32(sim_warp *w, const sim_op *op, uint32_t mask) { return any32(w, op, mask, LANES); }
static sim_flow any_f32x2(sim_warp *w, const sim_op *op, uint32_t mask) { return any32(w, op, mask, 2 * LANES); }

static sim_flow any_f64(sim_warp *w, const sim_op *op, uint32_t mask) {
    double out[LANES];
    const double *b = op->arg[2] != SIM_NO_ROW ? ROW(double, 2) : ROW(double, 1), *c = op->arg[3] != SIM_NO_ROW ? ROW(double, 3) : ROW(double, 1);
    compute64((operation)op->small, host_rounding(op), ROW(double, 1), b, c, out, LANES);
    STORE_ROW(double, 0, out, mask);
    return SIM_NEXT;
}

/* Halves and fp32 (PTX ISA 9.7.5): a, and of fma b, are converted first. */
static sim_flow any_mixed(sim_warp *w, const sim_op *op, uint32_t mask) {
    const bool product = op->small == FMA;
    float in[3][LANES], out[LANES];
    for (int k = 0; k < (product ? 2 : 1); k++) {
        const uint16_t *row = ROW(uint16_t, k + 1);
        for (int i = 0; i < LANES; i++) in[k][i] = op->type == PTX_bf16 ? num_bf16_to_f32(row[i]) : num_f16_to_f32(row[i]);
    }
    memcpy(in[product ? 2 : 1], ROW(float, product ? 3 : 2), sizeof in[0]);
    if (!product) memset(in[2], 0, sizeof in[2]);
    compute32((operation)op->small, host_rounding(op), in[0], in[1], in[2], out, LANES);
    for (int i = 0; i < LANES; i++) out[i] = sim_has(&op->mods, SIM_MOD_sat) ? saturate(canonical(out[i])) : canonical(out[i]);
    STORE_ROW(float, 0, out, mask);
    return SIM_NEXT;
}

static bool plain(const sim_decoding *d) {
    return !sim_mod(d, SIM_MOD_rz) && !sim_mod(d, SIM_MOD_rm) && !sim_mod(d, SIM_MOD_rp) && !sim_mod(d, SIM_MOD_sat);
}

static sim_handler any(sim_decoding *d, operation what, sim_handler handler) {
    d->op->small = (uint8_t)what;
    return handler;
}

static sim_handler fast32(sim_decoding *d, operation what, sim_handler nearest, sim_handler nearest_ftz) {
    if (!plain(d)) return any(d, what, any_f32);
    return sim_mod(d, SIM_MOD_ftz) ? nearest_ftz : nearest;
}

sim_handler select_add_f32(sim_decoding *d) { return fast32(d, ADD, add_rn, add_rn_ftz); }
sim_handler select_sub_f32(sim_decoding *d) { return fast32(d, SUB, sub_rn, sub_rn_ftz); }
sim_handler select_mul_f32(sim_decoding *d) { return fast32(d, MUL, mul_rn, mul_rn_ftz); }

sim_handler select_fma_f32(sim_decoding *d) {
#if defined(__x86_64__)
    if (__builtin_cpu_supports("fma") && __builtin_cpu_supports("avx2")) return fast32(d, FMA, fma_rn_fast, fma_rn_ftz_fast);
#endif
    return fast32(d, FMA, fma_rn, fma_rn_ftz);
}

sim_handler select_add_mixed(sim_decoding *d) { return any(d, ADD, any_mixed); }
sim_handler select_sub_mixed(sim_decoding *d) { return any(d, SUB, any_mixed); }
sim_handler select_fma_mixed(sim_decoding *d) { return any(d, FMA, any_mixed); }

sim_handler select_add_f64(sim_decoding *d) { return plain(d) ? add_rn64 : any(d, ADD, any_f64); }
sim_handler select_sub_f64(sim_decoding *d) { return plain(d) ? sub_rn64 : any(d, SUB, any_f64); }
sim_handler select_mul_f64(sim_decoding *d) { return plain(d) ? mul_rn64 : any(d, MUL, any_f64); }
sim_handler select_fma_f64(sim_decoding *d) { return plain(d) ? fma_rn64 : any(d, FMA, any_f64); }
sim_handler select_add_f32x2(sim_decoding *d) { return any(d, ADD, any_f32x2); }
sim_handler select_sub_f32x2(sim_decoding *d) { return any(d, SUB, any_f32x2); }
sim_handler select_mul_f32x2(sim_decoding *d) { return any(d, MUL, any_f32x2); }
sim_handler select_fma_f32x2(sim_decoding *d) { return any(d, FMA, any_f32x2); }
sim_handler select_div_f32(sim_decoding *d) { return any(d, DIV, any_f32); }
sim_handler select_rcp_f32(sim_decoding *d) { return any(d, RCP, any_f32); }
sim_handler select_sqrt_f32(sim_decoding *d) { return any(d, SQRT, any_f32); }
sim_handler select_div_f64(sim_decoding *d) { return any(d, DIV, any_f64); }
sim_handler select_rcp_f64(sim_decoding *d) { return any(d, RCP, any_f64); }
sim_handler select_sqrt_f64(sim_decoding *d) { return any(d, SQRT, any_f64); }

/* ---- approximate functions ---- */

typedef enum approximation { APPROX_RCP, APPROX_SQRT, APPROX_RSQRT, APPROX_SIN, APPROX_COS, APPROX_LG2, APPROX_EX2, APPROX_TANH } approximation;

static double approximate(approximation what, double x) {
    switch (what) {
    case APPROX_RCP: return 1.0 / x;
    case APPROX_SQRT: return sqrt(x);
    case APPROX_RSQRT: return 1.0 / sqrt(x);
    case APPROX_SIN: return sin(x);
    case APPROX_COS: return cos(x);
    case APPROX_LG2: return log2(x);
    case APPROX_EX2: return exp2(x);
    default: return tanh(x);
    }
}

static sim_flow approx_f32(sim_warp *w, const sim_op *op, uint32_t mask) {
    const float *as = ROW(float, 1);
    float out[LANES];
    bool ftz = sim_has(&op->mods, SIM_MOD_ftz);
    for (int i = 0; i < LANES; i++) {
        float a = ftz ? flush(as[i]) : as[i];
        out[i] = canonical((float)approximate((approximation)op->small, (double)a));
        if (ftz) out[i] = flush(out[i]);
    }
    STORE_ROW(float, 0, out, mask);
    return SIM_NEXT;
}

static sim_handler approx(sim_decoding *d, approximation what) {
    d->op->small = (uint8_t)what;
    return approx_f32;
}

sim_handler select_rcp_approx(sim_decoding *d) { return approx(d, APPROX_RCP); }
sim_handler select_sqrt_approx(sim_decoding *d) { return approx(d, APPROX_SQRT); }
sim_handler select_rsqrt_approx(sim_decoding *d) { return approx(d, APPROX_RSQRT); }
sim_handler select_sin_approx(sim_decoding *d) { return approx(d, APPROX_SIN); }
sim_handler select_cos_approx(sim_decoding *d) { return approx(d, APPROX_COS); }
sim_handler select_lg2_approx(sim_decoding *d) { return approx(d, APPROX_LG2); }
sim_handler select_ex2_approx(sim_decoding *d) { return approx(d, APPROX_EX2); }
sim_handler select_tanh_approx(sim_decoding *d) { return approx(d, APPROX_TANH); }

/* Divisors above 2^126 give zero, or NaN for an infinite dividend: of the documented sequence a * (1 / b). .full scales, and does not. */
static inline float divided(float a, float b, bool full, bool ftz) {
    if (ftz) {
        a = flush(a);
        b = flush(b);
    }
    float r = (float)((double)a / (double)b);
    if (!full && fabsf(b) > 0x1p126f && isfinite(b)) r = isinf(a) ? f32_from(F32_NAN) : copysignf(0.0f, r);
    r = canonical(r);
    return ftz ? flush(r) : r;
}

LANES_2(div_approx_32, float, float, float, divided(a, b, sim_has(&op->mods, SIM_MOD_full), sim_has(&op->mods, SIM_MOD_ftz)))

sim_handler select_div_approx(sim_decoding *d) {
    (void)d;
    return div_approx_32;
}

/* The upper word of the result alone is computed; the lower is zero. Subnormals are flushed. */
static inline double flush64(double a) { return (f64_bits(a) & 0x7ff0000000000000ull) == 0 ? copysign(0.0, a) : a; }
static inline double gross(double a) { return f64_from(f64_bits(a) & 0xffffffff00000000ull); }

/* An H200's NaN of those with .ftz. */
static inline double gross_nan(double a) { return isnan(a) ? f64_from(0x7fffffff00000000ull) : a; }

LANES_1(rcp_gross_64, double, double, gross_nan(flush64(gross(1.0 / flush64(a)))))
LANES_1(rsqrt_gross_64, double, double, gross(1.0 / sqrt(flush64(a))))
LANES_1(rsqrt_gross_ftz_64, double, double, gross_nan(gross(1.0 / sqrt(flush64(a)))))

sim_handler select_rcp_gross(sim_decoding *d) {
    (void)d;
    return rcp_gross_64;
}

sim_handler select_rsqrt_gross(sim_decoding *d) {
    return sim_mod(d, SIM_MOD_ftz) ? rsqrt_gross_ftz_64 : rsqrt_gross_64;
}

/* ---- signs, classes ---- */

static inline uint32_t one_nan(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000 ? F32_NAN : bits; }
static inline uint64_t negated64(uint64_t a) { return (a & INT64_MAX) > 0x7ff0000000000000ull ? a | 0x0008000000000000ull : a ^ 0x8000000000000000ull; }

LANES_1(abs_32, uint32_t, uint32_t, one_nan(a & 0x7fffffff))
LANES_1(neg_32, uint32_t, uint32_t, one_nan(a ^ 0x80000000))
LANES_1(abs_32_ftz, uint32_t, uint32_t, one_nan(flush_bits(a) & 0x7fffffff))
LANES_1(neg_32_ftz, uint32_t, uint32_t, one_nan(flush_bits(a) ^ 0x80000000))
LANES_1(abs_64, uint64_t, uint64_t, (a & INT64_MAX) > 0x7ff0000000000000ull ? quiet64(a) : a & INT64_MAX)
LANES_1(neg_64, uint64_t, uint64_t, negated64(a))
LANES_2(copysign_32, uint32_t, uint32_t, uint32_t, (a & 0x80000000) | (b & 0x7fffffff))
LANES_2(copysign_64, uint64_t, uint64_t, uint64_t, (a & 0x8000000000000000ull) | (b & 0x7fffffffffffffffull))

sim_handler select_abs_f(sim_decoding *d) { return d->type == PTX_f64 ? abs_64 : sim_mod(d, SIM_MOD_ftz) ? abs_32_ftz : abs_32; }
sim_handler select_neg_f(sim_decoding *d) { return d->type == PTX_f64 ? neg_64 : sim_mod(d, SIM_MOD_ftz) ? neg_32_ftz : neg_32; }
sim_handler select_copysign(sim_decoding *d) { return d->type == PTX_f64 ? copysign_64 : copysign_32; }

static bool is_of_class(const sim_modifiers *m, int class) {
    if (sim_has(m, SIM_MOD_finite)) return class != FP_NAN && class != FP_INFINITE;
    if (sim_has(m, SIM_MOD_infinite)) return class == FP_INFINITE;
    if (sim_has(m, SIM_MOD_number)) return class != FP_NAN;
    if (sim_has(m, SIM_MOD_notanumber)) return class == FP_NAN;
    if (sim_has(m, SIM_MOD_normal)) return class == FP_NORMAL || class == FP_ZERO;
    return class == FP_SUBNORMAL;
}

static sim_flow do_testp(sim_warp *w, const sim_op *op, uint32_t mask) {
    uint32_t result = 0;
    for (int i = 0; i < LANES; i++) {
        int class = op->type == PTX_f64 ? fpclassify(ROW(double, 1)[i]) : fpclassify(ROW(float, 1)[i]);
        result |= (uint32_t)is_of_class(&op->mods, class) << i;
    }
    sim_store_mask(w, op->arg[0], result, mask);
    return SIM_NEXT;
}

sim_handler select_testp(sim_decoding *d) {
    (void)d;
    return do_testp;
}

/* ---- extremes: -0 is below +0; NaN loses, unless .NaN lets it win ---- */

static inline int32_t ordered32(uint32_t bits) { return (int32_t)(bits ^ ((uint32_t)((int32_t)bits >> 31) & 0x7fffffffu)); }
static inline bool nan_bits(uint32_t bits) { return (bits & 0x7fffffff) > 0x7f800000; }

static inline uint32_t extreme32(uint32_t a, uint32_t b, bool largest, bool nan_wins) {
    if (nan_bits(a) || nan_bits(b)) return nan_wins || (nan_bits(a) && nan_bits(b)) ? F32_NAN : nan_bits(a) ? b : a;
    return (ordered32(a) < ordered32(b)) == largest ? b : a;
}

LANES_2(min_plain, uint32_t, uint32_t, uint32_t, extreme32(a, b, false, false))
LANES_2(max_plain, uint32_t, uint32_t, uint32_t, extreme32(a, b, true, false))

static uint32_t extreme_any(const sim_op *op, uint32_t a, uint32_t b) {
    bool largest = op->small != 0, nan_wins = sim_has(&op->mods, SIM_MOD_NaN);
    if (sim_has(&op->mods, SIM_MOD_ftz)) {
        a = flush_bits(a);
        b = flush_bits(b);
    }
    uint32_t sign = (a ^ b) & 0x80000000;
    if (sim_has(&op->mods, SIM_MOD_abs)) {
        a &= 0x7fffffff;
        b &= 0x7fffffff;
    }
    uint32_t r = extreme32(a, b, largest, nan_wins);
    return sim_has(&op->mods, SIM_MOD_xorsign) && !nan_bits(r) ? (r & 0x7fffffff) | sign : r;
}

static sim_flow do_extreme(sim_warp *w, const sim_op *op, uint32_t mask) {
    const uint32_t *a = ROW(uint32_t, 1), *b = ROW(uint32_t, 2);
    uint32_t out[LANES];
    for (int i = 0; i < LANES; i++) {
        out[i] = extreme_any(op, a[i], b[i]);
        if (op->arg[3] != SIM_NO_ROW) out[i] = extreme_any(op, out[i], ROW(uint32_t, 3)[i]);
    }
    STORE_ROW(uint32_t, 0, out, mask);
    return SIM_NEXT;
}

static sim_handler select_extreme(sim_decoding *d, bool largest) {
    const sim_modifiers none = {0};
    d->op->small = largest;
    bool simple = memcmp(&d->mods, &none, sizeof none) == 0 && d->op->arg[3] == SIM_NO_ROW;
    sim_modifiers name = {0};
    name.bits[(largest ? SIM_MOD_max : SIM_MOD_min) / 64] = 1ull << ((largest ? SIM_MOD_max : SIM_MOD_min) % 64);
    simple |= memcmp(&d->mods, &name, sizeof name) == 0 && d->op->arg[3] == SIM_NO_ROW;   /* the instruction's own name is a modifier of atom */
    if (sim_mod(d, SIM_MOD_xorsign) != sim_mod(d, SIM_MOD_abs) && sim_mod(d, SIM_MOD_xorsign)) {
        d->why = ".xorsign goes with .abs";
        return NULL;
    }
    return !simple ? do_extreme : largest ? max_plain : min_plain;
}

sim_handler select_min_f32(sim_decoding *d) { return select_extreme(d, false); }
sim_handler select_max_f32(sim_decoding *d) { return select_extreme(d, true); }

static inline double extreme64(double a, double b, bool largest) {
    if (isnan(a) || isnan(b)) return isnan(a) && isnan(b) ? nan_of_two(a, b, b) : isnan(a) ? b : a;
    if (a == b) return (signbit(a) != 0) == largest ? b : a;
    return (a < b) == largest ? b : a;
}

LANES_2(min_64, double, double, double, extreme64(a, b, false))
LANES_2(max_64, double, double, double, extreme64(a, b, true))

sim_handler select_min_f64(sim_decoding *d) {
    (void)d;
    return min_64;
}

sim_handler select_max_f64(sim_decoding *d) {
    (void)d;
    return max_64;
}
