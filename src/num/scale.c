/* The rules of block scales, as num.h states them at num_quantize. Sources: OCP MX 1.0 section 6.3; PTX ISA "cvt" (ue8m0, satfinite);
 * NVFP4: Transformer Engine, core_nvfp4.cuh, whose order of operations is part of the rule: multiplying by a reciprocal and dividing
 * give different codes. */
#include "num/scale.h"

#include <float.h>
#include <math.h>

#include "num/small.h"

/* ceil(log2(amax / max)) or floor(log2 amax) - floor(log2 max), by the bits of both numbers. The first is cvt.rp of
 * amax * fl(1 / max) wherever that product is a normal number. */
static uint8_t mx_scale(float amax, float max, num_round round) {
    if (isnan(amax)) return 0xff;
    if (isinf(amax)) return 0xfe;
    int32_t a = small_bits(amax), m = small_bits(max);
    int exponent = (a >> 23) - (m >> 23);
    if (round != NUM_ROUND_FLOOR && (a & 0x7fffff) > (m & 0x7fffff)) exponent++;
    int code = exponent + 127;
    return (uint8_t)(code < 0 ? 0 : code);
}

/* 2^-e, exact; NaN for a NaN scale. */
static float mx_inverse(uint8_t code) {
    if (code == 0xff) return small_float(0x7fffffff);
    return small_float(code == 0xfe ? 0x00400000 : (254 - code) << 23);
}

static float nv_inverse(float scale, float decode) {
    if (isnan(scale)) return scale;
    return scale == 0 ? 0.0f : fminf(1.0f / (scale * decode), FLT_MAX);
}

void scale_second(float amax, bool has_second, float *second, scale_rule *rule) {
    if (has_second) {
        rule->encode = fminf(1.0f / *second, FLT_MAX);
    } else {
        float encode = fminf((448.0f * 6.0f) / amax, FLT_MAX);
        rule->encode = amax == 0 || encode == 0 ? 1.0f : encode;
        *second = 1.0f / rule->encode;
    }
    rule->decode = *second;
}

float num_second_level(float amax, float *second) {
    scale_rule rule = {0};
    scale_second(amax, false, second, &rule);
    return rule.encode;
}

float scale_block(const num_view *v, size_t index, float amax, const scale_rule *rule) {
    if (v->f->scale == DW_FORMAT_e8m0) {
        uint8_t code = mx_scale(amax, (float)num_info(v->f->element)->max, rule->round);
        ((uint8_t *)v->m->scales)[index] = code;
        return mx_inverse(code);
    }
    if (v->f->scale == DW_FORMAT_e4m3) {
        uint8_t code = num_f32_to_e4m3(amax * (rule->encode * (1.0f / 6.0f)));
        ((uint8_t *)v->m->scales)[index] = code;
        return nv_inverse(num_e4m3_to_f32(code), rule->decode);
    }
    float *scale = (float *)v->m->scales + index;
    if (isnan(amax)) return *scale = small_float(0x7fffffff);
    /* At least 448 * 2^-126, at most FLT_MAX: neither the scale nor its reciprocal leaves the normal numbers. */
    float bounded = amax == 0 ? 448.0f : fminf(fmaxf(amax, 448.0f * 0x1p-126f), FLT_MAX);
    *scale = bounded / 448.0f;
    return 448.0f / bounded;
}

bool num_can_search(dw_format format) { return num_info(format)->class == NUM_BLOCK && num_info(format)->element == DW_FORMAT_e2m1; }

int scale_near(const num_view *v, size_t index, float amax, const scale_rule *rule, scale_candidate found[SCALE_CANDIDATES], float *unit) {
    static const int steps[SCALE_CANDIDATES] = {0, -1, 1, -2, 2, 3, 4, 5, 6};
    int code = ((const uint8_t *)v->m->scales)[index], count = 0;
    if (rule->round != NUM_ROUND_SEARCH || code == 0 || !isfinite(amax)) return 1;
    if (v->f->scale == DW_FORMAT_e8m0) {
        for (; count < 2; count++) found[count] = (scale_candidate){(uint8_t)(code - count), mx_inverse((uint8_t)(code - count)), count == 0 ? 1.0f : 0.5f};
        *unit = found[0].inverse;
        return count;
    }
    for (int i = 0; i < SCALE_CANDIDATES; i++) {
        int near = code + steps[i];
        if (near < 1 || near > 0x7e) continue;
        float value = num_e4m3_to_f32((uint8_t)near);
        found[count++] = (scale_candidate){(uint8_t)near, nv_inverse(value, rule->decode), value};
    }
    *unit = rule->encode;
    return count;
}
