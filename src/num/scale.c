/* The rules of block scales (rules.h) brought to where scales lie. */
#include "num/scale.h"

#include <math.h>

#include "num/rules.h"
#include "num/small.h"

void scale_second(float amax, bool has_second, float *second, scale_rule *rule) {
    if (has_second) {
        rule->encode = rules_nv_encode_of(*second);
    } else {
        rule->encode = rules_nv_encode(amax);
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
        int32_t code = rules_mx_scale(amax, (float)num_info(v->f->element)->max, rule->round == NUM_ROUND_FLOOR);
        ((uint8_t *)v->m->scales)[index] = (uint8_t)code;
        return rules_mx_inverse(code);
    }
    if (v->f->scale == DW_FORMAT_e4m3) {
        int32_t code = rules_nv_scale(amax, rule->encode);
        ((uint8_t *)v->m->scales)[index] = (uint8_t)code;
        return rules_nv_inverse(code, rule->decode);
    }
    float *scale = (float *)v->m->scales + index;
    if (rules_is_nan(amax)) return *scale = small_float(0x7fffffff);
    float bounded = rules_fp8_bounded(amax);
    *scale = bounded / 448.0f;
    return 448.0f / bounded;
}

bool num_can_search(dw_format format) { return num_info(format)->class == NUM_BLOCK && num_info(format)->element == DW_FORMAT_e2m1; }

int scale_near(const num_view *v, size_t index, float amax, const scale_rule *rule, scale_candidate found[SCALE_CANDIDATES], float *unit) {
    static const int steps[SCALE_CANDIDATES] = RULES_NV_STEPS;
    int code = ((const uint8_t *)v->m->scales)[index], count = 0;
    if (rule->round != NUM_ROUND_SEARCH || code == 0 || !isfinite(amax)) return 1;
    if (v->f->scale == DW_FORMAT_e8m0) {
        for (; count < 2; count++) found[count] = (scale_candidate){(uint8_t)(code - count), rules_mx_inverse(code - count), count == 0 ? 1.0f : 0.5f};
        *unit = found[0].inverse;
        return count;
    }
    if (code > 0x7e) return 1;   /* under a second level below zero scales are, too */
    for (int i = 0; i < SCALE_CANDIDATES; i++) {
        int near = code + steps[i];
        if (near < 1 || near > 0x7e) continue;
        float value = num_e4m3_to_f32((uint8_t)near);
        found[count++] = (scale_candidate){(uint8_t)near, rules_nv_inverse(near, rule->decode), value};
    }
    *unit = rule->encode;
    return count;
}
