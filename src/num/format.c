/* What the codes of each element format mean: a codec that works from the columns of format.def for any format, and the
 * common conversions once more in the fast form of small.h. Knows nothing of blocks. */
#include "num/num.h"

#include <math.h>
#include <string.h>

#include "num/small.h"

/* A block format's bits are its element's: enum constants let its row name them. */
enum {
#define DW_ELEMENT(name, bits, class, exponent, mantissa, bias, infinity, nan, max, doc) BITS_##name = (bits),
#define DW_BLOCK(name, element, scale, rows, cols, second, doc)
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
};

static const num_format table[DW_FORMAT_COUNT] = {
#define DW_ELEMENT(name_, bits_, class_, exponent_, mantissa_, bias_, infinity_, nan_, max_, doc_)                        \
    [DW_FORMAT_##name_] = {.name = #name_, .doc = doc_, .class = NUM_##class_, .bits = (bits_),                            \
                           .exponent_bits = (exponent_), .mantissa_bits = (mantissa_), .bias = (bias_),                   \
                           .has_infinity = (infinity_), .nan = NUM_NAN_##nan_, .max = (max_),                             \
                           .element = DW_FORMAT_##name_, .scale = DW_FORMAT_COUNT},
#define DW_BLOCK(name_, element_, scale_, rows_, cols_, second_, doc_)                                                    \
    [DW_FORMAT_##name_] = {.name = #name_, .doc = doc_, .class = NUM_BLOCK, .bits = BITS_##element_,                       \
                           .element = DW_FORMAT_##element_, .scale = DW_FORMAT_##scale_,                                  \
                           .rows = (rows_), .cols = (cols_), .second = (second_)},
#include "deepwell/format.def"
#undef DW_ELEMENT
#undef DW_BLOCK
};

const num_format *num_info(dw_format format) { return &table[format]; }

static bool is_format(dw_format format) { return (unsigned)format < DW_FORMAT_COUNT; }

const char *dw_format_name(dw_format format) { return is_format(format) ? table[format].name : "?"; }

dw_format dw_format_find(const char *name) {
    for (int i = 0; name != NULL && i < DW_FORMAT_COUNT; i++)
        if (strcmp(table[i].name, name) == 0) return (dw_format)i;
    return DW_FORMAT_COUNT;
}

int dw_format_is_block(dw_format format) { return is_format(format) && table[format].class == NUM_BLOCK; }

int dw_format_bits(dw_format format) { return is_format(format) ? table[format].bits : 0; }

/* ---- the codec of the columns ---- */

static uint64_t mask_of(int bits) { return bits >= 64 ? UINT64_MAX : (UINT64_C(1) << bits) - 1; }

/* The magnitude codes of a FLOAT format: its largest finite value, and what stands for more. */
static uint64_t max_code(const num_format *f) {
    uint64_t all_ones = mask_of(f->bits - 1);
    switch (f->nan) {
    case NUM_NAN_IEEE: return (mask_of(f->exponent_bits) << f->mantissa_bits) - 1;
    case NUM_NAN_ALL_ONES: return all_ones - 1;
    case NUM_NAN_NONE: break;
    }
    return all_ones;
}

static uint64_t nan_code(const num_format *f) { return mask_of(f->bits - 1); }

/* value times 2^exponent: exact where the power is a normal number, as of all formats of up to 32 bits, and sooner than by ldexp. */
static double scaled(double value, int exponent) {
    if (exponent < -1022 || exponent > 1023) return ldexp(value, exponent);
    const uint64_t bits = (uint64_t)(exponent + 1023) << 52;
    double power;
    memcpy(&power, &bits, sizeof power);
    return value * power;
}

static double decode_float(const num_format *f, uint64_t code) {
    uint64_t magnitude = code & mask_of(f->bits - 1);
    bool negative = (code >> (f->bits - 1)) & 1;
    double value;
    if (magnitude > max_code(f)) {
        value = f->has_infinity && magnitude == max_code(f) + 1 ? (double)INFINITY : (double)NAN;
    } else {
        int exponent = (int)(magnitude >> f->mantissa_bits);
        uint64_t mantissa = magnitude & mask_of(f->mantissa_bits);
        if (exponent == 0) exponent = 1;   /* subnormal: no leading one, the exponent of the smallest normal number */
        else mantissa |= UINT64_C(1) << f->mantissa_bits;
        value = scaled((double)mantissa, exponent - f->bias - f->mantissa_bits);
    }
    return negative ? -value : value;
}

static uint64_t encode_float(const num_format *f, double value, bool saturate) {
    if (isnan(value)) return nan_code(f);   /* without a NaN this is +max */
    uint64_t sign = signbit(value) ? UINT64_C(1) << (f->bits - 1) : 0;
    double magnitude = fabs(value);
    uint64_t code;
    if (isinf(magnitude)) {
        code = max_code(f) + 1;
    } else {
        int exponent = magnitude > 0 ? ilogb(magnitude) : 1 - f->bias;
        if (exponent < 1 - f->bias) exponent = 1 - f->bias;
        if (exponent > f->bias + 1) return encode_float(f, signbit(value) ? -(double)INFINITY : (double)INFINITY, saturate);
        double steps = rint(ldexp(magnitude, f->mantissa_bits - exponent));
        /* A normal number's steps contain its leading one, which adds one to the exponent field; so does a carry. */
        code = ((uint64_t)(exponent + f->bias - 1) << f->mantissa_bits) + (uint64_t)steps;
    }
    if (code > max_code(f)) {
        if (saturate || f->nan == NUM_NAN_NONE) code = max_code(f);
        else code = max_code(f) + 1;        /* infinity, or NaN where there is none */
    }
    return code | sign;
}

static double decode_scale(const num_format *f, uint64_t code) {
    code &= mask_of(f->bits);
    return code == mask_of(f->bits) ? (double)NAN : scaled(1.0, (int)code - f->bias);
}

static uint64_t encode_scale(const num_format *f, double value, bool saturate) {
    uint64_t nan = mask_of(f->bits);
    if (isnan(value)) return nan;
    double magnitude = fabs(value);
    if (magnitude > f->max) return saturate ? nan - 1 : nan;
    if (magnitude <= ldexp(1.0, -f->bias)) return 0;
    int exponent = ilogb(magnitude);
    if (magnitude > ldexp(1.0, exponent)) exponent++;
    return (uint64_t)(exponent + f->bias);
}

static double decode_signed(const num_format *f, uint64_t code) {
    uint64_t sign = UINT64_C(1) << (f->bits - 1);
    code &= mask_of(f->bits);
    return code & sign ? -(double)(mask_of(f->bits) - code) - 1.0 : (double)code;
}

static uint64_t encode_integer(const num_format *f, double value, bool is_signed) {
    if (isnan(value)) return 0;
    double rounded = rint(value);
    uint64_t largest = is_signed ? mask_of(f->bits - 1) : mask_of(f->bits);
    if (rounded >= f->max) return largest;
    if (rounded >= 0) return (uint64_t)rounded;
    if (!is_signed) return 0;
    if (rounded <= -f->max) rounded = fmax(rounded, f->bits == 64 ? -f->max : -f->max - 1.0);
    return (uint64_t)(int64_t)rounded & mask_of(f->bits);
}

double num_decode(dw_format format, uint64_t code) {
    const num_format *f = &table[table[format].element];
    switch (f->class) {
    case NUM_BOOL: return (code & 0xff) != 0;
    case NUM_UNSIGNED: return (double)(code & mask_of(f->bits));
    case NUM_SIGNED: return decode_signed(f, code);
    case NUM_FLOAT: return decode_float(f, code);
    case NUM_SCALE: return decode_scale(f, code);
    case NUM_BLOCK: break;
    }
    return 0;
}

uint64_t num_encode(dw_format format, double value, bool saturate) {
    const num_format *f = &table[table[format].element];
    switch (f->class) {
    case NUM_BOOL: return value != 0;
    case NUM_UNSIGNED: return encode_integer(f, value, false);
    case NUM_SIGNED: return encode_integer(f, value, true);
    case NUM_FLOAT: return encode_float(f, value, saturate);
    case NUM_SCALE: return encode_scale(f, value, saturate);
    case NUM_BLOCK: break;
    }
    return 0;
}

/* ---- the fast conversions ---- */

float num_bf16_to_f32(uint16_t code) { return small_from_bf16(code); }
uint16_t num_f32_to_bf16(float value) { return (uint16_t)small_bf16(value); }
uint16_t num_f32_to_f16(float value) { return (uint16_t)small_f16(value); }
uint8_t num_f32_to_e4m3(float value) { return (uint8_t)small_e4m3(value); }
uint8_t num_f32_to_e5m2(float value) { return (uint8_t)small_e5m2(value); }
uint8_t num_f32_to_e3m2(float value) { return (uint8_t)small_e3m2(value); }
uint8_t num_f32_to_e2m3(float value) { return (uint8_t)small_e2m3(value); }
uint8_t num_f32_to_e2m1(float value) { return (uint8_t)small_e2m1(value); }

float num_f16_to_f32(uint16_t code) { return small_from_f16(code); }
float num_e4m3_to_f32(uint8_t code) { return small_from_e4m3(code); }
float num_e5m2_to_f32(uint8_t code) { return small_from_e5m2(code); }
float num_e3m2_to_f32(uint8_t code) { return small_from_e3m2(code); }
float num_e2m3_to_f32(uint8_t code) { return small_from_e2m3(code); }
float num_e2m1_to_f32(uint8_t code) { return small_from_e2m1(code); }
float num_e8m0_to_f32(uint8_t code) { return small_from_e8m0(code); }

/* By 16, so that compilers vectorise whatever count is. */
#define ROW(name, from, to, convert)                                                           \
    void name(const from *restrict x, to *restrict y, int64_t count)                           \
    {                                                                                          \
        int64_t i = 0;                                                                         \
        for (; i + 16 <= count; i += 16)                                                       \
            for (int j = 0; j < 16; j++) y[i + j] = convert(x[i + j]);                         \
        for (; i < count; i++) y[i] = convert(x[i]);                                           \
    }
ROW(num_f32_to_bf16_row, float, uint16_t, num_f32_to_bf16)
ROW(num_bf16_to_f32_row, uint16_t, float, num_bf16_to_f32)
ROW(num_f32_to_f16_row, float, uint16_t, num_f32_to_f16)
ROW(num_f16_to_f32_row, uint16_t, float, num_f16_to_f32)
#undef ROW

/* ---- elements in memory ---- */

/* The first byte of element index, and how far its code is shifted up from that byte's lowest bit. */
static const uint8_t *locate(int bits, const void *data, int64_t index, int *shift) {
    int64_t bit = index * bits;
    *shift = (int)(bit % 8);
    return (const uint8_t *)data + bit / 8;
}

static uint64_t load_code(int bits, const void *data, int64_t index) {
    int shift;
    const uint8_t *at = locate(bits, data, index, &shift);
    int bytes = (shift + bits + 7) / 8;
    uint64_t code = 0;
    for (int i = 0; i < bytes; i++) code |= (uint64_t)at[i] << (8 * i);
    return (code >> shift) & mask_of(bits);
}

static void store_code(int bits, void *data, int64_t index, uint64_t code) {
    int shift;
    uint8_t *at = (uint8_t *)data + (locate(bits, data, index, &shift) - (const uint8_t *)data);
    int bytes = (shift + bits + 7) / 8;
    for (int i = 0; i < bytes; i++) {
        /* The code's and the mask's part in this byte: only the first byte has bits below the code. */
        uint64_t part = i == 0 ? code << shift : code >> (8 * i - shift);
        uint64_t mask = i == 0 ? mask_of(bits) << shift : mask_of(bits) >> (8 * i - shift);
        at[i] = (uint8_t)((at[i] & ~mask) | (part & mask));
    }
}

double num_load(dw_format format, const void *data, int64_t index) {
    double value;
    num_load_row(format, data, index, 1, 1, &value);
    return value;
}

/* What is common by a loop that compilers vectorise where elements are neighbours; anything else by the columns of format.def. */
#define LOAD_ROW(type, convert)                                                                               \
    {                                                                                                         \
        const uint8_t *at = (const uint8_t *)data + begin * (int64_t)sizeof(type);                            \
        type code;                                                                                            \
        if (stride == 1) {                                                                                    \
            for (int64_t i = 0; i < count; i++) {                                                             \
                memcpy(&code, at + i * (int64_t)sizeof code, sizeof code);                                    \
                values[i] = (double)convert(code);                                                            \
            }                                                                                                 \
            return;                                                                                           \
        }                                                                                                     \
        for (int64_t i = 0; i < count; i++) {                                                                 \
            memcpy(&code, at + i * stride * (int64_t)sizeof code, sizeof code);                               \
            values[i] = (double)convert(code);                                                                \
        }                                                                                                     \
        return;                                                                                               \
    }
void num_load_row(dw_format format, const void *data, int64_t begin, int64_t stride, int64_t count, double *values) {
    const num_format *f = &table[format];
    switch (f->element) {
    case DW_FORMAT_f32: LOAD_ROW(float, )
    case DW_FORMAT_bf16: LOAD_ROW(uint16_t, small_from_bf16)
    case DW_FORMAT_f16: LOAD_ROW(uint16_t, small_from_f16)
    case DW_FORMAT_e4m3: LOAD_ROW(uint8_t, small_from_e4m3)
    case DW_FORMAT_e5m2: LOAD_ROW(uint8_t, small_from_e5m2)
    case DW_FORMAT_e2m1:
        for (int64_t i = 0; i < count; i++) {
            const int64_t index = begin + i * stride;
            values[i] = (double)small_from_e2m1(((const uint8_t *)data)[index / 2] >> (index % 2 * 4) & 15);
        }
        return;
    default:
        for (int64_t i = 0; i < count; i++) values[i] = num_decode(format, load_code(f->bits, data, begin + i * stride));
    }
}
#undef LOAD_ROW

void num_store(dw_format format, void *data, int64_t index, double value, bool saturate) {
    const num_format *f = &table[format];
    store_code(f->bits, data, index, num_encode(f->element, value, saturate));
}
