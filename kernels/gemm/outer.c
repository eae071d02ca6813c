/* grouped_outer by wgmma and by tcgen05: the host half of both rooms' outer.cu. How many rows a group has only the device knows. Pure: knows no driver. */
#include "kernels/gemm/outer.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"

static bool is_half(dw_format format) { return format == DW_FORMAT_bf16 || format == DW_FORMAT_f16; }

static const char *refuses(const kernel_problem *problem, text *why) {
    const op_type *a = problem->in[0], *b = problem->in[1], *out = problem->out[0];
    int64_t m, n;
    if (!is_half(a->format) || b->format != a->format) {
        text_printf(why, "%s times %s is not of bf16, or of f16", dw_format_name(a->format), dw_format_name(b->format));
        return text_string(why);
    }
    if (out->format != DW_FORMAT_f32 && !is_half(out->format)) {
        text_printf(why, "the result is %s; it makes f32, bf16 and f16", dw_format_name(out->format));
        return text_string(why);
    }
    if (!dim_is_constant(a->dims[1], &m) || !dim_is_constant(b->dims[1], &n)) return "the matrices' sizes are not known at plan time";
    if (m % 8 == 0 && n % 8 == 0) return NULL;
    text_printf(why, "the matrices are %lld x %lld; it takes multiples of 8", (long long)m, (long long)n);
    return text_string(why);
}

/* Can a tensor map of two axes describe it? */
static bool has_map(const dw_tensor *x) { return x->dims[1] > 0 && (x->dims[1] == 1 || x->strides[1] == 1) && (x->dims[0] < 2 || (x->strides[0] > 0 && x->strides[0] % 8 == 0)) && cuda_lies_at_16(x->data); }

static bool is_in_pairs(const dw_tensor *x) { return x->strides[2] == 1 && x->strides[1] % 2 == 0 && x->strides[0] % 2 == 0 && (uintptr_t)x->data % 8 == 0; }

enum { MOST_GROUPS = 65535 };         /* of blocks along an axis of a grid */

static const char *takes(const kernel_run *run, text *why) {
    const dw_tensor *a = run->call.in[0], *b = run->call.in[1], *out = run->call.out[0];
    if (a->dims[0] == 0) return kernel_because(why, "there are no rows");
    if (!has_map(a) || !has_map(b)) return kernel_because(why, "an operand does not lie in pieces of 16 bytes");
    if (!is_in_pairs(out)) return kernel_because(why, "the result does not lie in pairs");
    if (a->dims[0] <= INT32_MAX / 2 && a->dims[1] <= MOST_GROUPS * (int64_t)OUTER_TILE_M && b->dims[1] <= INT32_MAX / 2 && out->dims[0] <= MOST_GROUPS) return NULL;
    return kernel_because(why, "%lld rows in %lld groups are more than it counts to", (long long)a->dims[0], (long long)out->dims[0]);
}

/* Narrow matrices, and those that would fill the chip with narrow tiles alone, take tiles of 128 columns. */
static int tile_cols(const kernel_run *run) {
    const dw_tensor *out = run->call.out[0];
    const int64_t wide = out->dims[0] * base_ceil_div(out->dims[1], OUTER_TILE_M) * base_ceil_div(out->dims[2], 256);
    return out->dims[2] <= 128 || wide < run->chip->units ? 128 : 256;
}

/* Not measured. A tile of 128 x 256 asks the L2 cache for 96 bytes a cycle, one of 128 x 128 for 128: by tcgen05, whose matrix instructions are twice as fast, for half as much again as there is, or twice. */
static double seconds(const kernel_run *run) { return 4e-6 + kernel_run_roofline(run, run->call.in[0]->format, tile_cols(run) == 256 ? 0.6 : 0.45, 0.7); }

static void take_map(kernel_launch *launch, const kernel_run *run, int operand, const void *field) {
    const dw_tensor *x = run->call.in[operand];
    launch->maps[launch->map_count] = (kernel_map){
        .operand = (uint16_t)operand,
        .type = x->format == DW_FORMAT_bf16 ? KERNEL_MAP_BF16 : KERNEL_MAP_F16,
        .rank = 2,
        .swizzle = KERNEL_SWIZZLE_128,
        .promotion = KERNEL_PROMOTION_256,
        .dims = {(uint64_t)x->dims[1], (uint64_t)x->dims[0]},
        .strides = {(uint64_t)((x->dims[0] > 1 ? x->strides[0] : base_ceil_div(x->dims[1], 8) * 8) * 2)},
        .box = {64, OUTER_DEPTH},
    };
    cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, field, 0);
}

/* entries: of bf16 and of f16, with tiles of 128 columns and of 256. */
static dw_status shape(const kernel_run *run, kernel_launcher *launcher, const char *image, const char *const entries[2][2], int threads) {
    const dw_tensor *offsets = run->call.in[2], *out = run->call.out[0];
    const int cols = tile_cols(run);
    const bool is_bf16 = run->call.in[0]->format == DW_FORMAT_bf16;
    kernel_launch launch;
    outer_arguments *g = cuda_launch(&launch, image, entries[is_bf16 ? 0 : 1][cols == 256], sizeof *g);
    g->rows = (int32_t)run->call.in[0]->dims[0];
    g->m = (int32_t)out->dims[1];
    g->n = (int32_t)out->dims[2];
    g->offsets_step = offsets->strides[0];
    g->out_group = out->strides[0];
    g->out_row = out->strides[1];
    take_map(&launch, run, 0, g->map_a);
    take_map(&launch, run, 1, g->map_b);
    cuda_take_array(&launch, run, 2, &g->offsets);
    cuda_take_array(&launch, run, KERNEL_RESULT, &g->out);
    cuda_take_fault(&launch, &g->fault);
    cuda_grid(&launch, base_ceil_div(g->n, cols), base_ceil_div(g->m, OUTER_TILE_M), out->dims[0]);
    launch.block[0] = (uint32_t)threads;
    launch.shared_bytes = (uint32_t)(OUTER_STAGES * (OUTER_TILE_M + cols) * OUTER_DEPTH * 2 + OUTER_BARRIER_BYTES);
    return launcher->add(launcher, &launch);
}

/* ---- the two ways ---- */

const char *grouped_outer_wgmma_refuses(const kernel_problem *problem, text *why) { return refuses(problem, why); }
const char *grouped_outer_wgmma_takes(const kernel_run *run, text *why) { return takes(run, why); }
double grouped_outer_wgmma_seconds(const kernel_run *run) { return seconds(run); }
dw_status grouped_outer_wgmma_shape(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[2][2] = {{"grouped_outer_bf16_n128", "grouped_outer_bf16_n256"}, {"grouped_outer_f16_n128", "grouped_outer_f16_n256"}};
    return shape(run, launcher, "grouped_outer_sm90", entries, OUTER_THREADS);
}

const char *grouped_outer_tcgen05_refuses(const kernel_problem *problem, text *why) { return refuses(problem, why); }
const char *grouped_outer_tcgen05_takes(const kernel_run *run, text *why) { return takes(run, why); }
double grouped_outer_tcgen05_seconds(const kernel_run *run) { return seconds(run); }
dw_status grouped_outer_tcgen05_shape(const kernel_run *run, kernel_launcher *launcher) {
    static const char *const entries[2][2] = {{"grouped_outer_tcgen05_bf16_n128", "grouped_outer_tcgen05_bf16_n256"}, {"grouped_outer_tcgen05_f16_n128", "grouped_outer_tcgen05_f16_n256"}};
    return shape(run, launcher, "grouped_outer_sm100", entries, OUTER_TCGEN05_THREADS);
}
