/* The rows of chip.def as capabilities, and what can be asked of capabilities. Does not look at the machine: the device layer's probe does. */
#include "chip/chip.h"

#include <string.h>

#include "num/num.h"

typedef struct chip_row {
    const char *name;
    chip_kind kind;
    int arch, units;
    double clock_ghz, gbytes_per_s, gbytes_per_s_max, launch_us;
    double gflops_f32, gflops_bf16, gflops_fp8, gflops_fp4;
    double memory_gb, cache_mb, shared_kb;
    uint64_t features;
} chip_row;

#define HAS(feature) (UINT64_C(1) << CHIP_##feature)
#define CHIP_GPU(name, arch, sms, ghz, gbs, us, f32, bf16, fp8, fp4, gb, l2, shared, features)                                   \
    {#name, CHIP_GPU, arch, sms, ghz, gbs, gbs, us, f32 * 1e3, bf16 * 1e3, fp8 * 1e3, fp4 * 1e3, gb, l2, shared, features},
#define CHIP_CPU(name, ghz, gbs, gbs_max, us, f32, bf16, cache, features)                                                      \
    {#name, CHIP_CPU, 0, 1, ghz, gbs, gbs_max, us, f32, bf16, bf16, bf16, 0, cache, 0, features},
static const chip_row rows[] = {
#include "chip/chip.def"
};
#undef CHIP_GPU
#undef CHIP_CPU
#undef HAS

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

void chip_row_caps(int index, int threads, chip_caps *caps) {
    const chip_row *row = &rows[index];
    int units = row->kind == CHIP_CPU && threads > 0 ? threads : row->units;
    double scale = row->kind == CHIP_CPU ? units : 1;
    *caps = (chip_caps){
        .kind = row->kind,
        .arch = row->arch,
        .features = row->features,
        .units = units,
        .clock_hz = row->clock_ghz * 1e9,
        .bytes_per_s = smaller(row->gbytes_per_s * scale, row->gbytes_per_s_max) * 1e9,
        .launch_s = row->launch_us * 1e-6,
        .flops_f32 = row->gflops_f32 * scale * 1e9,
        .flops_bf16 = row->gflops_bf16 * scale * 1e9,
        .flops_fp8 = row->gflops_fp8 * scale * 1e9,
        .flops_fp4 = row->gflops_fp4 * scale * 1e9,
        .memory_bytes = (size_t)(row->memory_gb * 1e9),
        .cache_bytes = (size_t)(row->cache_mb * 1048576),
        .shared_bytes = (size_t)(row->shared_kb * 1024),
    };
    snprintf(caps->name, sizeof caps->name, "%s", row->name);
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
    const num_format *info = num_info(format);
    if (dw_format_is_block(format)) info = num_info(info->element);
    double rate = caps->flops_f32;
    if (info->class == NUM_FLOAT) {
        if (info->bits == 16) rate = caps->flops_bf16;
        if (info->bits == 8 || info->bits == 6) rate = caps->flops_fp8 > 0 ? caps->flops_fp8 : caps->flops_bf16;
        if (info->bits == 4) rate = caps->flops_fp4 > 0 ? caps->flops_fp4 : caps->flops_fp8 > 0 ? caps->flops_fp8 : caps->flops_bf16;
    }
    return rate > 0 ? rate : caps->flops_f32;
}

/* 16 is known of sm_90 (CUDA Programming Guide, "Thread Block Clusters") and of the sm_100 family; of the others only what is portable. */
int chip_cluster_blocks(const chip_caps *caps) {
    if (!chip_has(caps, CHIP_tma)) return 1;
    return chip_has(caps, CHIP_wgmma) || chip_has(caps, CHIP_tcgen05) ? 16 : 8;
}

uint64_t chip_hash(const chip_caps *caps) {
    const uint64_t features = caps->features & ~CHIP_LIBRARIES, level[] = {(uint64_t)caps->kind, (uint64_t)caps->arch, features};
    if (caps->kind == CHIP_CPU) return base_hash(level, sizeof level, base_hash(caps->name, strlen(caps->name), 0));
    const double rates[] = {caps->clock_hz, caps->bytes_per_s, caps->launch_s, caps->flops_f32, caps->flops_bf16, caps->flops_fp8, caps->flops_fp4};
    const uint64_t facts[] = {(uint64_t)caps->kind, (uint64_t)caps->arch, features, (uint64_t)caps->units,
                              caps->memory_bytes, caps->cache_bytes, caps->shared_bytes};
    uint64_t hash = base_hash(caps->name, strlen(caps->name), 0);
    hash = base_hash(rates, sizeof rates, hash);
    return base_hash(facts, sizeof facts, hash);
}

void chip_print(text *text, const chip_caps *caps) {
    text_printf(text, "%s%s%s%s: ", caps->name, caps->model[0] ? " (" : "", caps->model, caps->model[0] ? ")" : "");
    if (caps->kind == CHIP_CPU) {
        text_printf(text, "%d thread%s", caps->units, caps->units == 1 ? "" : "s");
    } else {
        text_printf(text, "sm_%d, %d multiprocessors", caps->arch, caps->units);
    }
    text_printf(text, ", %.4g GFLOP/s f32, %.4g bf16", caps->flops_f32 * 1e-9, caps->flops_bf16 * 1e-9);
    if (caps->kind == CHIP_GPU && caps->flops_fp8 > 0) text_printf(text, ", %.4g fp8", caps->flops_fp8 * 1e-9);
    if (caps->kind == CHIP_GPU && caps->flops_fp4 > 0) text_printf(text, ", %.4g fp4", caps->flops_fp4 * 1e-9);
    text_printf(text, ", %.4g GB/s (%s)", caps->bytes_per_s * 1e-9, caps->measured ? "measured" : "from the chip table");
    if (caps->memory_bytes > 0) text_printf(text, ", %.1f GB", (double)caps->memory_bytes * 1e-9);
    const char *separator = "; ";
    for (int i = 0; i < CHIP_FEATURE_COUNT; i++) {
        if (!chip_has(caps, (chip_feature)i)) continue;
        text_printf(text, "%s%s", separator, chip_feature_name((chip_feature)i));
        separator = ", ";
    }
    text_add(text, "\n");
}
