/* What this machine's CPU has: instruction sets that the operating system lets us use, caches, memory, model name; and a short
 * measurement of its bandwidth. Does not look for GPUs. */
#include "device/device.h"

#include <string.h>
#include <unistd.h>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

/* __builtin_cpu_supports asks cpuid and, for the wide registers, xgetbv. */
static uint64_t cpu_features(void) {
    uint64_t features = 0;
#if defined(__x86_64__)
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
                  __builtin_cpu_supports("avx512dq");
    if (avx2) features |= UINT64_C(1) << CHIP_avx2;
    if (avx512) features |= UINT64_C(1) << CHIP_avx512;
    if (avx512 && __builtin_cpu_supports("avx512vbmi")) features |= UINT64_C(1) << CHIP_avx512vbmi;
    if (avx512 && __builtin_cpu_supports("avx512vnni")) features |= UINT64_C(1) << CHIP_avx512vnni;
    if (avx512 && __builtin_cpu_supports("avx512bf16")) features |= UINT64_C(1) << CHIP_avx512bf16;
#endif
    return features;
}

/* Vendor and family, as cpuid has them; "" and 0 elsewhere. */
static int cpu_family(char vendor[13]) {
    vendor[0] = '\0';
#if defined(__x86_64__)
    unsigned a, words[4] = {0}, rest;
    if (!__get_cpuid(0, &a, &words[0], &words[2], &words[1]) || !__get_cpuid(1, &a, &rest, &rest, &rest)) return 0;
    memcpy(vendor, words, 12);
    vendor[12] = '\0';
    const unsigned family = a >> 8 & 0xf;
    return (int)(family == 0xf ? family + (a >> 20 & 0xff) : family);
#else
    return 0;
#endif
}

/* The model's name as Linux has it; left as it is elsewhere. */
static void read_model(char *model, size_t room) {
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (file == NULL) return;
    char line[256];
    while (fgets(line, sizeof line, file) != NULL) {
        if (strncmp(line, "model name", 10) != 0) continue;
        const char *colon = strchr(line, ':');
        if (colon == NULL) break;
        colon += strspn(colon, ": \t");
        snprintf(model, room, "%.*s", (int)strcspn(colon, "\n"), colon);
        break;
    }
    fclose(file);
}

static size_t positive(long value) { return value > 0 ? (size_t)value : 0; }

static size_t cache_bytes(void) {
#if defined(_SC_LEVEL3_CACHE_SIZE)
    size_t l3 = positive(sysconf(_SC_LEVEL3_CACHE_SIZE));
    return l3 > 0 ? l3 : positive(sysconf(_SC_LEVEL2_CACHE_SIZE));
#else
    return 0;
#endif
}

static dw_status fail_unknown(dw_context *context, const char *level) {
    char list[512] = "";
    for (int i = 0; i < chip_count(); i++) {
        chip_caps caps;
        chip_row_caps(i, 1, &caps);
        const size_t used = strlen(list);
        if (caps.kind == CHIP_CPU) snprintf(list + used, sizeof list - used, "%scpu:%.*s", used > 0 ? ", " : "", (int)(sizeof caps.name - strlen("cpu-")), caps.name + strlen("cpu-"));
    }
    return base_fail(context, DW_NOT_FOUND, "device 'cpu:%s' is not known; choose cpu, or one of its levels: %s", level, list);
}

dw_status device_probe_cpu(dw_context *context, const char *level, int threads, chip_caps *caps) {
    uint64_t have = cpu_features();
    char name[sizeof caps->name];
    snprintf(name, sizeof name, "cpu-%s", level);
    bool found = false;
    for (int i = 0; i < chip_count() && !found; i++) {
        chip_row_caps(i, threads, caps);
        if (caps->kind != CHIP_CPU) continue;
        bool complete = (caps->features & have) == caps->features;
        if (level[0] == '\0') {
            found = complete;
            continue;
        }
        if (strcmp(caps->name, name) != 0) continue;
        found = true;
        for (int bit = 0; bit < CHIP_FEATURE_COUNT && !complete; bit++) {
            uint64_t lacks = caps->features & ~have;
            if (lacks >> bit & 1) {
                return base_fail(context, DW_UNSUPPORTED, "device 'cpu:%s' needs %s, which this processor or its operating system lacks; use 'cpu'", level,
                                 chip_feature_meaning((chip_feature)bit));
            }
        }
    }
    if (!found) return fail_unknown(context, level);
    char vendor[13];
    const int family = cpu_family(vendor);
    chip_take_processor(caps, vendor, family);
    read_model(caps->model, sizeof caps->model);
    long pages = sysconf(_SC_PHYS_PAGES), page = sysconf(_SC_PAGESIZE);
    caps->memory_bytes = positive(pages) * positive(page);
    size_t cache = cache_bytes();
    if (cache > 0) caps->cache_bytes = cache;
    return DW_OK;
}

enum { MEASURE_BYTES = 256 << 20, MEASURE_TASK_WORDS = 1 << 15, MEASURE_REPEATS = 3 };

typedef struct read_job { const uint64_t *words; uint64_t *sums; } read_job;

/* Four streams at once, a line of each in turn: one alone does not keep enough of the memory busy. */
static void read_task(void *argument, int64_t task, int worker) {
    (void)worker;
    enum { STREAMS = 4, LINE_WORDS = 8, STREAM_WORDS = MEASURE_TASK_WORDS / STREAMS };
    read_job *job = argument;
    const uint64_t *words = job->words + task * MEASURE_TASK_WORDS;
    uint64_t a = 0, b = 0, c = 0, d = 0;
    for (int i = 0; i < STREAM_WORDS; i += LINE_WORDS) {
        const uint64_t *line = words + i;   /* one word brings all of its line */
        a ^= line[0];
        b ^= line[STREAM_WORDS];
        c ^= line[2 * STREAM_WORDS];
        d ^= line[3 * STREAM_WORDS];
    }
    job->sums[task] = a ^ b ^ c ^ d;
}

/* The most bytes a second of some passes over so many bytes. */
static dw_status measure_reads(dw_context *context, pool *pool, size_t bytes, int passes, double *best) {
    void *memory;
    const size_t tasks = bytes / 8 / MEASURE_TASK_WORDS, all = tasks * 8 * MEASURE_TASK_WORDS, room = all + tasks * sizeof(uint64_t);
    TRY(base_alloc(context, room, 4096, &memory));
    memset(memory, 1, room);
    read_job job = {memory, (uint64_t *)memory + tasks * MEASURE_TASK_WORDS};
    *best = 0;
    for (int pass = 0; pass < passes; pass++) {
        double start = base_now();
        pool_run(pool, (int64_t)tasks, read_task, &job);
        double rate = (double)all / (base_now() - start);
        if (rate > *best) *best = rate;
    }
    base_release(context, memory, room, 4096);
    return DW_OK;
}

static void set_rate(chip_caps *caps, chip_rate rate, double value) { caps->rates[rate].measured = caps->rates[rate].expected = value; }

dw_status device_measure_cpu(dw_context *context, pool *pool, chip_caps *caps) {
    double rate;
    TRY(measure_reads(context, pool, MEASURE_BYTES, MEASURE_REPEATS, &rate));
    set_rate(caps, CHIP_RATE_memory, rate);
    return DW_OK;
}

dw_status device_measure_cpu_cache(dw_context *context, pool *pool, chip_caps *caps) {
    const size_t quarter = caps->cache_bytes / 4, least = 8 * MEASURE_TASK_WORDS, bytes = quarter > least ? quarter : least;
    double rate;
    TRY(measure_reads(context, pool, bytes, 50 * MEASURE_REPEATS, &rate));
    if (rate > chip_bytes_per_s(caps)) set_rate(caps, CHIP_RATE_l2, rate);
    return DW_OK;
}
