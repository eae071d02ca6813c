/* mqa_logits by tiles: the host half of wgmma.cu and of tcgen05.cu. Which calls they take, which entry a call gets, how it is cut, and the launch. Pure: knows no driver. */
#include "kernels/mqa_logits/tiles.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/mqa_logits/host.h"

typedef struct mqa_entry {
    dw_format format;             /* of q and k */
    const char *wgmma, *tcgen05;
    int heads, width, scale_block;
} mqa_entry;
static const mqa_entry entries[] = {
#define MQA_TILE(name, heads, width) {DW_FORMAT_e4m3, "mqa_logits_wgmma_" #name, "mqa_logits_tcgen05_" #name, heads, width, 0},
#include "kernels/mqa_logits/tiles.def"
#undef MQA_TILE
#define MQA_SCALED_TILE(name, heads, width, scale_block) {(scale_block) == 32 ? DW_FORMAT_mxfp4 : DW_FORMAT_nvfp4, NULL, "mqa_logits_tcgen05_" #name, heads, width, scale_block},
#include "kernels/mqa_logits/scaled_tiles.def"
#undef MQA_SCALED_TILE
};

static bool is_scaled(const mqa_entry *e) { return e->scale_block > 0; }
static int rows_of(const mqa_entry *e) { return is_scaled(e) ? MQA_SCALED_ROWS : MQA_ROWS; }
static int row_bytes_of(const mqa_entry *e) { return is_scaled(e) ? MQA_SCALED_ROW_BYTES : e->width; }

/* The narrowest that has room; NULL: none. */
static const mqa_entry *find_entry(dw_format format, int64_t heads, int64_t width) {
    for (size_t i = 0; i < COUNT_OF(entries); i++)
        if (entries[i].format == format && heads <= entries[i].heads && width <= entries[i].width) return &entries[i];
    return NULL;
}

static const mqa_entry *entry_of(const kernel_run *run) {
    const dw_tensor *q = run->call.in[MQA_Q];
    return find_entry(q->format, q->dims[2], q->dims[3]);
}

/* Elements of 16 bytes, in whose multiples rows are copied. */
static int piece_of(dw_format format) { return dw_format_is_block(format) ? 32 : 16; }

static const char *refuses(const kernel_problem *problem, bool has_scales, text *why) {
    const op_type *q = problem->in[MQA_Q], *k = problem->in[MQA_K], *factor = problem->n_in > MQA_FACTOR ? problem->in[MQA_FACTOR] : NULL;
    const bool is_taken = q->format == DW_FORMAT_e4m3 || (has_scales && (q->format == DW_FORMAT_mxfp4 || q->format == DW_FORMAT_nvfp4));
    int64_t heads, width;
    if (!is_taken || k->format != q->format)
        return kernel_because(why, "q is %s and k %s; both must be e4m3%s", dw_format_name(q->format), dw_format_name(k->format), has_scales ? ", mxfp4 or nvfp4" : "");
    if (q->scale_layout != DW_SCALE_plain || k->scale_layout != DW_SCALE_plain) return "scales lie in tiles; it brings plain ones";
    if (factor != NULL && factor->format != DW_FORMAT_f32) return kernel_because(why, "factor is %s; it takes f32", dw_format_name(factor->format));
    if (problem->out[0]->format == DW_FORMAT_f64) return "the result is f64, and it computes in fp32";
    if (!dim_is_constant(q->dims[2], &heads) || !dim_is_constant(q->dims[3], &width)) return "heads and their width are not known at plan time";
    if (heads > 0 && width > 0 && width % piece_of(q->format) == 0 && find_entry(q->format, heads, width) != NULL) return NULL;
    return kernel_because(why, "%lld heads of %lld; it takes up to 64 heads of multiples of %d up to 128", (long long)heads, (long long)width, piece_of(q->format));
}

/* Of a kernel: keys of a block, cycles that a block of 256 rows takes the tensor cores for each byte of a row, and all else at least, by count (README.md); of wgmma as rows of 64 and 128 bytes were measured, about. */
typedef struct mqa_kind { int block, product_cycles, least_cycles; double flops_a_cycle; } mqa_kind;
static const mqa_kind wgmma = {MQA_WGMMA_BLOCK, 18, 1950, 8192}, tcgen05 = {MQA_TCGEN05_BLOCK, 4, 600, 16384};

/* What an item takes to begin: of 0.25 to 2 us the best cut of calls on an H200 (2026-11-29), by half a percent at most. */
#define START_S 0.5e-6

static mqa_cut cut_of(const kernel_run *run, const mqa_kind *kind) {
    const mqa_entry *e = entry_of(run);
    const double cycle_s = kind->flops_a_cycle * run->chip->units / chip_flops(run->chip, DW_FORMAT_e4m3);
    const int products = kind->product_cycles * (is_scaled(e) ? e->width / 2 : e->width), cycles = products > kind->least_cycles ? products : kind->least_cycles;
    return mqa_cut_of(run, rows_of(e) / e->heads, kind->block, cycles * cycle_s * rows_of(e) / MQA_ROWS, START_S);
}

static const char *takes(const kernel_run *run, const mqa_kind *kind, text *why) {
    const char *reason = mqa_lacks_maps(run, MQA_BOX, why);
    return reason != NULL ? reason : mqa_counts_refusal(run, cut_of(run, kind).items, why);
}

static double seconds(const kernel_run *run, const mqa_kind *kind) {
    const double tiles_s = cut_of(run, kind).seconds, bytes_s = op_tensor_bytes(run->call.out[0]) / (0.9 * chip_bytes_per_s(run->chip));
    return run->chip->launch_s + (tiles_s > bytes_s ? tiles_s : bytes_s);
}

static dw_status shape(const kernel_run *run, const mqa_kind *kind, const char *image, const char *entry, int threads, uint32_t shared_bytes, kernel_launcher *launcher) {
    const mqa_entry *e = entry_of(run);
    const mqa_cut cut = cut_of(run, kind);
    const bool has_pages = op_operand(&run->call, MQA_TABLE) != NULL;
    kernel_launch launch;
    mqa_tiles_arguments *arguments = cuda_launch(&launch, image, entry, sizeof *arguments);
    mqa_take(&launch, run, &arguments->call);
    mqa_take_maps(&launch, run, arguments->map_q, arguments->map_k, row_bytes_of(e), e->heads, rows_of(e) / e->heads, has_pages ? MQA_BOX : kind->block);
    if (is_scaled(e)) {
        cuda_take_rows(&launch, run, MQA_Q, true, &arguments->q);
        cuda_take_rows(&launch, run, MQA_K, true, &arguments->k);
    }
    arguments->tiles = (int32_t)cut.tiles;
    arguments->chunk = (int32_t)cut.chunk;
    arguments->chunks = (int32_t)cut.chunks;
    arguments->items = (int32_t)cut.items;
    if (cut.items == 0) return DW_OK;
    cuda_grid(&launch, cut.items < run->chip->units ? cut.items : run->chip->units, 1, 1);
    launch.block[0] = (uint32_t)threads;
    launch.overlaps = true;
    launch.shared_bytes = shared_bytes;
    return launcher->add(launcher, &launch);
}

const char *mqa_wgmma_refuses(const kernel_problem *problem, text *why) { return refuses(problem, false, why); }
const char *mqa_wgmma_takes(const kernel_run *run, text *why) { return takes(run, &wgmma, why); }
double mqa_wgmma_seconds(const kernel_run *run) { return seconds(run, &wgmma); }
dw_status mqa_wgmma_shape(const kernel_run *run, kernel_launcher *launcher) {
    const mqa_entry *e = entry_of(run);
    return shape(run, &wgmma, "mqa_logits_sm90", e->wgmma, MQA_WGMMA_THREADS, MQA_WGMMA_SHARED((uint32_t)e->width), launcher);
}

const char *mqa_tcgen05_refuses(const kernel_problem *problem, text *why) { return refuses(problem, true, why); }
const char *mqa_tcgen05_takes(const kernel_run *run, text *why) { return takes(run, &tcgen05, why); }
double mqa_tcgen05_seconds(const kernel_run *run) { return seconds(run, &tcgen05); }
dw_status mqa_tcgen05_shape(const kernel_run *run, kernel_launcher *launcher) {
    const mqa_entry *e = entry_of(run);
    const uint32_t scales = is_scaled(e) ? (uint32_t)base_ceil_div(e->width, 4 * e->scale_block) : 0;
    return shape(run, &tcgen05, "mqa_logits_sm100", e->tcgen05, MQA_TCGEN05_THREADS, is_scaled(e) ? MQA_SCALED_SHARED(scales) : MQA_TCGEN05_SHARED((uint32_t)e->width), launcher);
}
