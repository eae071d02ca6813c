/* The rows of chip.def as capabilities, and what can be asked of capabilities. Does not look at the machine: the device layer's probe does. */
#include "chip/chip.h"

#include <math.h>
#include <string.h>

#include "num/num.h"

typedef struct chip_row {
    const char *name;
    chip_kind kind;
    int arch, units;
    double clock_ghz, launch_us, gbytes_per_s_max;
    double nominal[CHIP_RATE_COUNT];   /* in units of rate.def; of a CPU, of a thread */
    double memory_gb, cache_mb, shared_kb;
    uint64_t features;
} chip_row;

#define HAS(feature) (UINT64_C(1) << CHIP_##feature)
#define CHIP_GPU(name, arch, sms, ghz, gbs, us, f32, bf16, fp8, fp4, k96, gb, l2, shared, features)     \
    {#name, CHIP_GPU, arch, sms, ghz, us, gbs, {[CHIP_RATE_memory] = gbs, [CHIP_RATE_f32] = f32, [CHIP_RATE_bf16] = bf16, [CHIP_RATE_fp8] = fp8, \
                                                [CHIP_RATE_fp4] = fp4, [CHIP_RATE_fp4_k96] = k96}, gb, l2, shared, features},
#define CHIP_CPU(name, ghz, gbs, gbs_max, us, f32, bf16, cache, features)                                \
    {#name, CHIP_CPU, 0, 1, ghz, us, gbs_max, {[CHIP_RATE_memory] = gbs, [CHIP_RATE_f32] = f32 * 1e-3, [CHIP_RATE_bf16] = bf16 * 1e-3, [CHIP_RATE_fp8] = bf16 * 1e-3, \
                                               [CHIP_RATE_fp4] = bf16 * 1e-3}, 0, cache, 0, features},
#define CHIP_MEASURED(...)
#define CHIP_PROCESSOR(...)
static const chip_row rows[] = {
#include "chip/chip.def"
};
#undef CHIP_GPU
#undef CHIP_CPU
#undef CHIP_MEASURED
#undef CHIP_PROCESSOR
#undef HAS

enum { WHOLE, ALONE, UNIT, FIT };
#define CHIP_GPU(...)
#define CHIP_CPU(...)
#define CHIP_PROCESSOR(...)
#define CHIP_MEASURED(chip, rate, by, value, date, source) {#chip, CHIP_RATE_##rate, (by) == ALONE, value, date, source},
static const chip_measurement measurements[] = {
#include "chip/chip.def"
};
#undef CHIP_MEASURED
#undef CHIP_PROCESSOR

#define CHIP_MEASURED(...)
#define CHIP_PROCESSOR(name, level, vendor, family, ghz, gbs, f32, bf16, date) {name, #level, #vendor, family, ghz, gbs, f32, bf16, date},
static const struct { const char *name, *level, *vendor; int family; double clock_ghz, gbytes_per_s, f32, bf16; const char *date; } processors[] = {
#include "chip/chip.def"
};
#undef CHIP_GPU
#undef CHIP_CPU
#undef CHIP_MEASURED
#undef CHIP_PROCESSOR

static const chip_link_row links[] = {
#define CHIP_LINK(name, us, gbs, date, source) {#name, us * 1e-6, gbs * 1e9, date, source},
#include "chip/link.def"
#undef CHIP_LINK
};

const chip_link_row *chip_link_get(chip_link link) { return &links[link]; }

typedef enum rate_scope { OF_CHIP, OF_PRODUCTS, OF_UNIT } rate_scope;
typedef struct rate_row { const char *name, *unit; double scale; rate_scope of; } rate_row;
static const rate_row rate_rows[] = {
#define CHIP_RATE(name, unit, scale, of, meaning) {#name, unit, scale, OF_##of},
#include "chip/rate.def"
#undef CHIP_RATE
};

static const char fitted_on[] = "h200";   /* whose rates the shares in kernels' estimates were fitted to */

static const char *const feature_names[] = {
#define CHIP_FEATURE(name, meaning) #name,
#include "chip/feature.def"
#undef CHIP_FEATURE
};

static const char *const feature_meanings[] = {
#define CHIP_FEATURE(name, meaning) meaning,
#include "chip/feature.def"
#undef CHIP_FEATURE
};

static double smaller(double a, double b) { return a < b ? a : b; }

int chip_count(void) { return (int)COUNT_OF(rows); }
const char *chip_name(int index) { return rows[index].name; }
const char *chip_feature_name(chip_feature feature) { return (unsigned)feature < CHIP_FEATURE_COUNT ? feature_names[feature] : "?"; }
const char *chip_feature_meaning(chip_feature feature) { return (unsigned)feature < CHIP_FEATURE_COUNT ? feature_meanings[feature] : "?"; }

const char *chip_rate_name(chip_rate rate) { return rate_rows[rate].name; }
const char *chip_rate_unit(chip_rate rate) { return rate_rows[rate].unit; }
double chip_rate_scale(chip_rate rate) { return rate_rows[rate].scale; }
bool chip_rate_is_of_unit(chip_rate rate) { return rate_rows[rate].of == OF_UNIT; }
const chip_measurement *chip_measurement_at(int index) { return index < (int)COUNT_OF(measurements) ? &measurements[index] : NULL; }

/* What was measured of whole kernels; NULL: nobody did. */
static const chip_measurement *find_measurement(const char *chip, chip_rate rate, bool alone) {
    for (size_t i = 0; i < COUNT_OF(measurements); i++)
        if (measurements[i].rate == rate && measurements[i].alone == alone && strcmp(measurements[i].chip, chip) == 0) return &measurements[i];
    return NULL;
}

static const chip_row *find_row(const char *name) {
    for (size_t i = 0; i < COUNT_OF(rows); i++)
        if (strcmp(rows[i].name, name) == 0) return &rows[i];
    return NULL;
}

/* The part of its nominal rate that the chip reaches that the estimates were fitted on; it has no FP4, whose part is taken to be that of FP8. */
static double reached(chip_rate rate) {
    if (rate == CHIP_RATE_fp4 || rate == CHIP_RATE_fp4_k96) rate = CHIP_RATE_fp8;
    const chip_measurement *m = find_measurement(fitted_on, rate, false);
    return m != NULL ? m->value / find_row(fitted_on)->nominal[rate] : 1;
}

/* Of the first chip with the same tensor units: what one multiprocessor of it does is expected of the others. */
static const chip_measurement *find_alike(const chip_row *row, chip_rate rate) {
    const uint64_t generation = row->features & (UINT64_C(1) << CHIP_wgmma | UINT64_C(1) << CHIP_tcgen05);
    for (size_t i = 0; i < COUNT_OF(measurements) && rate_rows[rate].of == OF_UNIT && generation != 0; i++)
        if (measurements[i].rate == rate && !measurements[i].alone && (find_row(measurements[i].chip)->features & generation) != 0) return &measurements[i];
    return NULL;
}

static chip_rates rates_of(const chip_row *row, chip_rate rate, double scale) {
    const chip_measurement *m = find_measurement(row->name, rate, false);
    const double unit = rate_rows[rate].scale, most = rate == CHIP_RATE_memory ? row->gbytes_per_s_max : INFINITY;
    chip_rates r = {.nominal = smaller(row->nominal[rate] * scale, most) * unit, .measured = m != NULL ? m->value * unit : 0};
    if (m == NULL) m = find_alike(row, rate);
    r.expected = m != NULL ? m->value * unit : row->kind == CHIP_GPU && r.nominal > 0 ? r.nominal * reached(rate) : r.nominal;
    return r;
}

void chip_row_caps(int index, int threads, chip_caps *caps) {
    const chip_row *row = &rows[index];
    const int units = row->kind == CHIP_CPU && threads > 0 ? threads : row->units;
    *caps = (chip_caps){
        .kind = row->kind,
        .arch = row->arch,
        .features = row->features,
        .units = units,
        .clock_hz = row->clock_ghz * 1e9,
        .launch_s = row->launch_us * 1e-6,
        .memory_bytes = (size_t)(row->memory_gb * 1e9),
        .cache_bytes = (size_t)(row->cache_mb * 1048576),
        .shared_bytes = (size_t)(row->shared_kb * 1024),
    };
    for (int i = 0; i < CHIP_RATE_COUNT; i++) caps->rates[i] = rates_of(row, (chip_rate)i, row->kind == CHIP_CPU ? units : 1);
    snprintf(caps->name, sizeof caps->name, "%s", row->name);
}

static void set_expected(chip_caps *caps, chip_rate rate, double of_thread, double most) { caps->rates[rate].measured = caps->rates[rate].expected = smaller(of_thread * caps->units, most); }

void chip_take_processor(chip_caps *caps, const char *vendor, int family) {
    const chip_row *row = find_row(caps->name);
    for (size_t i = 0; i < COUNT_OF(processors); i++) {
        if (strcmp(processors[i].level, caps->name) != 0 || strcmp(processors[i].vendor, vendor) != 0 || processors[i].family != family) continue;
        caps->clock_hz = processors[i].clock_ghz * 1e9;
        set_expected(caps, CHIP_RATE_memory, processors[i].gbytes_per_s * 1e9, row->gbytes_per_s_max * 1e9);
        set_expected(caps, CHIP_RATE_f32, processors[i].f32 * 1e9, INFINITY);
        for (int rate = CHIP_RATE_bf16; rate <= CHIP_RATE_fp4; rate++) set_expected(caps, (chip_rate)rate, processors[i].bf16 * 1e9, INFINITY);   /* fewer bits are multiplied as bf16 */
        snprintf(caps->processor, sizeof caps->processor, "%s, %s", processors[i].name, processors[i].date);
    }
}

void chip_scale(chip_caps *caps, int units) {
    const double part = (double)units / caps->units;
    for (int i = 0; i < CHIP_RATE_COUNT; i++) {
        if (rate_rows[i].of != OF_PRODUCTS) continue;
        caps->rates[i].nominal *= part;
        caps->rates[i].measured *= part;
        caps->rates[i].expected *= part;
    }
    caps->units = units;
}

dw_status chip_find(dw_context *context, const char *name, int threads, chip_caps *caps) {
    for (int i = 0; i < chip_count(); i++) {
        if (strcmp(rows[i].name, name) != 0) continue;
        chip_row_caps(i, threads, caps);
        return DW_OK;
    }
    char list[512] = "";
    for (int i = 0; i < chip_count(); i++) {
        size_t length = strlen(list);
        snprintf(list + length, sizeof list - length, "%s%s", i > 0 ? ", " : "", rows[i].name);
    }
    return base_fail(context, DW_NOT_FOUND, "chip '%s' is not known; choose one of %s", name, list);
}

double chip_flops(const chip_caps *caps, dw_format format) {
    const chip_rates *rates = caps->rates;
    const num_format *info = num_info(format);
    if (dw_format_is_block(format)) info = num_info(info->element);
    chip_rate rate = CHIP_RATE_f32;
    if (info->class == NUM_FLOAT && info->bits <= 16) rate = info->bits == 16 ? CHIP_RATE_bf16 : info->bits == 4 ? CHIP_RATE_fp4 : CHIP_RATE_fp8;
    if (rate == CHIP_RATE_fp4 && !(rates[rate].nominal > 0)) rate = CHIP_RATE_fp8;
    if (rate == CHIP_RATE_fp8 && !(rates[rate].nominal > 0)) rate = CHIP_RATE_bf16;
    if (rate == CHIP_RATE_bf16 && !(rates[rate].nominal > 0)) rate = CHIP_RATE_f32;
    return rates[rate].expected;
}

/* 16 is known of sm_90 (CUDA Programming Guide, "Thread Block Clusters") and of the sm_100 family; of the others only what is portable. */
int chip_cluster_blocks(const chip_caps *caps) {
    if (!chip_has(caps, CHIP_tma)) return 1;
    return chip_has(caps, CHIP_wgmma) || chip_has(caps, CHIP_tcgen05) ? 16 : 8;
}

uint64_t chip_hash(const chip_caps *caps) {
    const uint64_t features = caps->features & ~CHIP_LIBRARIES, level[] = {(uint64_t)caps->kind, (uint64_t)caps->arch, features};
    if (caps->kind == CHIP_CPU) return base_hash(level, sizeof level, base_hash(caps->name, strlen(caps->name), 0));
    const chip_rates *r = caps->rates;
    const double rates[] = {caps->clock_hz, r[CHIP_RATE_memory].nominal, caps->launch_s, r[CHIP_RATE_f32].nominal, r[CHIP_RATE_bf16].nominal, r[CHIP_RATE_fp8].nominal,
                            r[CHIP_RATE_fp4].nominal};
    const uint64_t facts[] = {(uint64_t)caps->kind, (uint64_t)caps->arch, features, (uint64_t)caps->units,
                              caps->memory_bytes, caps->cache_bytes, caps->shared_bytes};
    uint64_t hash = base_hash(caps->name, strlen(caps->name), 0);
    hash = base_hash(rates, sizeof rates, hash);
    return base_hash(facts, sizeof facts, hash);
}

/* ", 989 TFLOP/s bf16 (828 measured)"; of a CPU, whose rates are small and were measured together, ", 250 GFLOP/s f32". */
static void print_rate(text *text, const chip_caps *caps, chip_rate rate) {
    const chip_rates *r = &caps->rates[rate];
    if (!(r->nominal > 0)) return;
    if (caps->kind == CHIP_CPU) {
        text_printf(text, ", %.4g GFLOP/s %s", r->expected * 1e-9, rate_rows[rate].name);
        return;
    }
    text_printf(text, ", %.5g %s %s", r->nominal / rate_rows[rate].scale, rate_rows[rate].unit, rate_rows[rate].name);
    if (r->measured > 0) text_printf(text, " (%.5g measured)", r->measured / rate_rows[rate].scale);
}

void chip_print(text *text, const chip_caps *caps) {
    const chip_rates *memory = &caps->rates[CHIP_RATE_memory];
    text_printf(text, "%s%s%s%s: ", caps->name, caps->model[0] ? " (" : "", caps->model, caps->model[0] ? ")" : "");
    if (caps->kind == CHIP_CPU) {
        text_printf(text, "%d thread%s", caps->units, caps->units == 1 ? "" : "s");
    } else {
        text_printf(text, "sm_%d, %d multiprocessors", caps->arch, caps->units);
    }
    for (int i = CHIP_RATE_f32; i < (caps->kind == CHIP_CPU ? CHIP_RATE_fp8 : CHIP_RATE_COUNT); i++) print_rate(text, caps, (chip_rate)i);
    text_printf(text, ", %.5g GB/s (", (caps->kind == CHIP_CPU ? memory->expected : memory->nominal) * 1e-9);
    if (caps->kind == CHIP_GPU && memory->measured > 0) text_printf(text, "%.5g measured)", memory->measured * 1e-9);
    else if (caps->processor[0] != '\0') text_printf(text, "as measured of %s)", caps->processor);
    else text_add(text, memory->measured > 0 ? "measured)" : "from the chip table)");
    if (caps->memory_bytes > 0) text_printf(text, ", %.1f GB", (double)caps->memory_bytes * 1e-9);
    const char *separator = "; ";
    for (int i = 0; i < CHIP_FEATURE_COUNT; i++) {
        if (!chip_has(caps, (chip_feature)i)) continue;
        text_printf(text, "%s%s", separator, chip_feature_name((chip_feature)i));
        separator = ", ";
    }
    text_add(text, "\n");
}

void chip_print_rates(text *text, const chip_caps *caps) {
    text_printf(text, "%-11s %10s %10s  %-8s when and by what\n", "rate", "nominal", "measured", "");
    for (int i = 0; i < CHIP_RATE_COUNT; i++) {
        const rate_row *row = &rate_rows[i];
        char nominal[32] = "-", measured[32] = "?";
        if (caps->rates[i].nominal > 0) snprintf(nominal, sizeof nominal, "%.5g", caps->rates[i].nominal / row->scale);
        if (caps->rates[i].measured > 0) snprintf(measured, sizeof measured, "%.5g", caps->rates[i].measured / row->scale);
        else if (row->of == OF_PRODUCTS && !(caps->rates[i].nominal > 0)) snprintf(measured, sizeof measured, "-");
        const chip_measurement *whole = find_measurement(caps->name, (chip_rate)i, false), *alone = find_measurement(caps->name, (chip_rate)i, true);
        text_printf(text, "%-11s %10s %10s  ", row->name, nominal, measured);
        const chip_measurement *alike = find_alike(find_row(caps->name), (chip_rate)i);
        if (whole != NULL) text_printf(text, "%-8s %s: %s\n", row->unit, whole->date, whole->source);
        else if (alike != NULL) text_printf(text, "%-8s %.5g of %s is expected\n", row->unit, alike->value, alike->chip);
        else text_printf(text, "%s\n", row->unit);
        if (alone != NULL) text_printf(text, "%-11s %10s %10.5g  %-8s %s: %s\n", "", "alone", alone->value, row->unit, alone->date, alone->source);
    }
}
