/* Chips: what each GPU and each level of CPU can do, as rows, and the capabilities of a machine as one value.
 * Probing a machine is the device layer's; planning takes capabilities from a row as well as from a probe. */
#ifndef CHIP_CHIP_H
#define CHIP_CHIP_H

#include "base/base.h"
#include "deepwell/format.h"

typedef enum chip_kind { CHIP_CPU, CHIP_GPU } chip_kind;

/* Instruction sets and units that kernels ask for. One row of feature.def each. */
typedef enum chip_feature {
#define CHIP_FEATURE(name, meaning) CHIP_##name,
#include "chip/feature.def"
#undef CHIP_FEATURE
    CHIP_FEATURE_COUNT
} chip_feature;

/* How ranks reach each other. One row of link.def each. */
typedef enum chip_link {
#define CHIP_LINK(name, us, gbs, date, source) CHIP_LINK_##name,
#include "chip/link.def"
#undef CHIP_LINK
} chip_link;
/* meeting_s: until all know what the others are at; bytes_per_s: what a rank brings of the others', 0: at a copy's speed. */
typedef struct chip_link_row { const char *name; double meeting_s, bytes_per_s; const char *date, *source; } chip_link_row;

/* One row of rate.def each. */
typedef enum chip_rate {
#define CHIP_RATE(name, unit, scale, of, meaning) CHIP_RATE_##name,
#include "chip/rate.def"
#undef CHIP_RATE
    CHIP_RATE_COUNT
} chip_rate;

/* Bytes or operations per second of the whole chip, dense; of rates of a unit what rate.def says, in bytes, cycles, seconds. nominal: the vendor's; 0: no such unit, or not published.
 * measured: the best that somebody has measured; 0: nobody. expected: what estimates reckon with, see chip_row_caps; 0: not known. */
typedef struct chip_rates { double nominal, measured, expected; } chip_rates;

/* Features that are no part of the chip but libraries found on the machine. Plans are good with and without them as long as they name no kernel that needs one. */
#define CHIP_LIBRARIES (UINT64_C(1) << CHIP_cublaslt | UINT64_C(1) << CHIP_cudnn)

/* Capabilities: all that planning may know of a machine. */
typedef struct chip_caps {
    char name[32];                /* a row's name: "h200", "b200", "cpu-avx512bf16" */
    char model[96];               /* what the machine calls itself; "" for a row */
    char processor[48];           /* whose rates a CPU is expected to have, and when they were measured: "AMD Zen 4, 2026-11-28"; "": those of its level */
    chip_kind kind;
    int arch;                     /* GPUs: compute capability x 10 (90, 100, ..); CPUs: 0 */
    uint64_t features;            /* bit i: chip_feature i */
    int units;                    /* multiprocessors, or threads in use */
    chip_link link;               /* by which ranks of the model reach each other; no part of what a plan is bound to */
    double clock_hz;              /* assumed for the rates below; 0: unknown */
    double launch_s;              /* the cost of starting one kernel */
    chip_rates rates[CHIP_RATE_COUNT];
    size_t memory_bytes, cache_bytes, shared_bytes;       /* device memory, last-level cache, shared memory of a block */
} chip_caps;

const chip_link_row *chip_link_get(chip_link link);
int chip_count(void);
const char *chip_name(int index);
/* NOT_FOUND lists the names. threads scales a CPU row; 0 means the row's own. */
dw_status chip_find(dw_context *context, const char *name, int threads, chip_caps *caps);
/* The row's capabilities; index < chip_count(). A rate that nobody measured of a GPU is expected to be the part of the nominal one that the H200 reaches, of which the
 * shares in kernels' estimates were fitted; a CPU's is expected to be nominal. A rate of a unit is expected to be that of the first chip of the table with the same tensor units. */
void chip_row_caps(int index, int threads, chip_caps *caps);
const char *chip_feature_name(chip_feature feature);
const char *chip_feature_meaning(chip_feature feature);
static inline bool chip_has(const chip_caps *caps, chip_feature feature) { return caps->features >> feature & 1; }
/* Blocks that a cluster may have: 16 where a chip allows sizes that are not portable, 8 on others that have clusters, else 1. */
int chip_cluster_blocks(const chip_caps *caps);
/* Expected bytes per second of main memory. */
static inline double chip_bytes_per_s(const chip_caps *caps) { return caps->rates[CHIP_RATE_memory].expected; }
/* Expected FLOP/s for products of operands in this format (block formats by their elements): the rate of the unit that would do them, FP4 by K = 64. */
double chip_flops(const chip_caps *caps, dw_format format);
/* The rates that were measured of such a processor at the level, if they were, by cpuid's words: "AuthenticAMD", 25. */
void chip_take_processor(chip_caps *caps, const char *vendor, int family);
/* So many multiprocessors instead of the row's: products go at that part of the rates. */
void chip_scale(chip_caps *caps, int units);
const char *chip_rate_name(chip_rate rate);
const char *chip_rate_unit(chip_rate rate);
/* What one unit of chip_rate_unit is, per second; of a rate of a unit in what it is counted in. */
double chip_rate_scale(chip_rate rate);
/* Is it of one multiprocessor, or a latency: what bounds of products by tiles are made of? */
bool chip_rate_is_of_unit(chip_rate rate);
/* A measurement of a chip: one row of chip.def. alone: of the instruction alone, which no estimate uses. */
typedef struct chip_measurement { const char *chip; chip_rate rate; bool alone; double value; const char *date, *source; } chip_measurement;
/* The rows in their order; NULL behind the last. */
const chip_measurement *chip_measurement_at(int index);
/* A plan is bound to it: of what the chip is, nominal rates among it, not of what was measured of it; of a CPU, of its level and features, as a plan made on one machine is good on
 * another with more memory or fewer threads. */
uint64_t chip_hash(const chip_caps *caps);
/* One line. */
void chip_print(text *text, const chip_caps *caps);
/* A line for each rate: nominal, measured ('?' where nobody did), when and by what. */
void chip_print_rates(text *text, const chip_caps *caps);

#endif
