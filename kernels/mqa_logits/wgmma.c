/* mqa_logits by wgmma: the host half of wgmma.cu. Which calls it takes, which entry a call gets, how it is cut, and the launch. Pure: knows no driver. */
#include "kernels/mqa_logits/wgmma.h"

#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/mqa_logits/host.h"

typedef struct mqa_entry { const char *name; int heads, width; } mqa_entry;
static const mqa_entry entries[] = {
#define MQA_WGMMA(name, heads, width) {"mqa_logits_" #name, heads, width},
#include "kernels/mqa_logits/wgmma.def"
#undef MQA_WGMMA
};

/* The narrowest that has room; NULL: none. */
static const mqa_entry *find_entry(int64_t heads, int64_t width) {
    for (size_t i = 0; i < COUNT_OF(entries); i++)
        if (heads <= entries[i].heads && width <= entries[i].width) return &entries[i];
    return NULL;
}

const char *mqa_wgmma_refuses(const kernel_problem *problem, text *why) {
    const op_type *q = problem->in[MQA_Q], *k = problem->in[MQA_K], *factor = problem->n_in > MQA_FACTOR ? problem->in[MQA_FACTOR] : NULL;
    int64_t heads, width;
    if (q->format != DW_FORMAT_e4m3 || k->format != DW_FORMAT_e4m3)
        return kernel_because(why, "q is %s and k %s; both must be e4m3", dw_format_name(q->format), dw_format_name(k->format));
    if (factor != NULL && factor->format != DW_FORMAT_f32) return kernel_because(why, "factor is %s; it takes f32", dw_format_name(factor->format));
    if (problem->out[0]->format == DW_FORMAT_f64) return "the result is f64, and it computes in fp32";
    if (!dim_is_constant(q->dims[2], &heads) || !dim_is_constant(q->dims[3], &width)) return "heads and their width are not known at plan time";
    if (heads > 0 && width > 0 && width % 16 == 0 && find_entry(heads, width) != NULL) return NULL;
    return kernel_because(why, "%lld heads of %lld; it takes up to 64 heads of multiples of 16 up to 128", (long long)heads, (long long)width);
}

static const mqa_entry *entry_of(const kernel_run *run) { return find_entry(run->call.in[MQA_Q]->dims[2], run->call.in[MQA_Q]->dims[3]); }

/* A block takes the tensor cores 4 cycles for each byte of a row, or threads 2 instructions for each of 128 scores, and some 80 besides. By count; an item's start is a guess of a microsecond. */
enum { WEIGH_CYCLES = 336 };
#define FLOPS_A_CYCLE 8192.0
#define START_S 1e-6

static mqa_cut cut_of(const kernel_run *run, const mqa_entry *e) {
    const double cycle_s = FLOPS_A_CYCLE * run->chip->units / chip_flops(run->chip, DW_FORMAT_e4m3);
    const int cycles = 4 * e->width > WEIGH_CYCLES ? 4 * e->width : WEIGH_CYCLES;
    return mqa_cut_of(run, MQA_ROWS / e->heads, MQA_BLOCK, cycles * cycle_s, START_S);
}

const char *mqa_wgmma_takes(const kernel_run *run, text *why) {
    const char *reason = mqa_lacks_maps(run, MQA_BLOCK, why);
    return reason != NULL ? reason : mqa_counts_refusal(run, cut_of(run, entry_of(run)).items, why);
}

double mqa_wgmma_seconds(const kernel_run *run) {
    const double tiles_s = cut_of(run, entry_of(run)).seconds, bytes_s = (double)op_tensor_bytes(run->call.out[0]) / (0.9 * chip_bytes_per_s(run->chip));
    return run->chip->launch_s + (tiles_s > bytes_s ? tiles_s : bytes_s);
}

dw_status mqa_wgmma_shape(const kernel_run *run, kernel_launcher *launcher) {
    const mqa_entry *e = entry_of(run);
    const mqa_cut cut = cut_of(run, e);
    kernel_launch launch;
    mqa_wgmma_arguments *arguments = cuda_launch(&launch, "mqa_logits_sm90", e->name, sizeof *arguments);
    mqa_take(&launch, run, &arguments->call);
    mqa_take_maps(&launch, run, arguments->map_q, arguments->map_k, e->width, e->heads, MQA_ROWS / e->heads, MQA_BLOCK);
    arguments->tiles = (int32_t)cut.tiles;
    arguments->chunk = (int32_t)cut.chunk;
    arguments->chunks = (int32_t)cut.chunks;
    arguments->items = (int32_t)cut.items;
    if (cut.items == 0) return DW_OK;
    cuda_grid(&launch, cut.items < run->chip->units ? cut.items : run->chip->units, 1, 1);
    launch.block[0] = MQA_WGMMA_THREADS;
    launch.overlaps = true;
    launch.shared_bytes = MQA_WGMMA_SHARED(e->width);
    return launcher->add(launcher, &launch);
}
