/* matmul by wgmma for few rows and weights in e4m3, multiplied as they are: the host half of folded.cuh, with the tiles of folded_tiles.c beside it. Which products it takes, how long they take, the launch. Pure: knows no driver. */
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/wgmma/few_host.h"
#include "kernels/gemm/wgmma/folded_tiles.h"

/* Fitted to an H200 (bench/results/h200/decoded.md): with a scale for each 32 of k, and others, of which those with scales of rows and tensors were measured with 16 rows alone. */
static const few_times fine_times = {{1.85, 1.85, 1.85}, {1.01, 1.13, 1.61}, {0.016, 0.028, 0.04}, 0.7, 0, 0}, times = {{1.75, 1.75, 1.75}, {0.98, 1.01, 1.22}, {0.016, 0.028, 0.037}, 0.6, 0, 0};

/* ---- entries ---- */

typedef struct folded_formats { dw_format a, b; few_entries entries; } folded_formats;

#define ENTRIES(kind, name, us) {kind, "matmul_folded_" #name "_sm90", {"matmul_folded_" #name "_m16", "matmul_folded_" #name "_m32", "matmul_folded_" #name "_m64"}, us}
static const folded_formats all_formats[] = {
    {DW_FORMAT_mxfp8, DW_FORMAT_mxfp8, ENTRIES(FOLDED_MXFP8, mxfp8, &fine_times)},
    {DW_FORMAT_fp8_1x128, DW_FORMAT_fp8_128x128, ENTRIES(FOLDED_FP8, fp8, &times)},
    {DW_FORMAT_fp8_row, DW_FORMAT_fp8_row, ENTRIES(FOLDED_E4M3, e4m3, &times)},
    {DW_FORMAT_fp8_row, DW_FORMAT_fp8_tensor, ENTRIES(FOLDED_E4M3, e4m3, &times)},
    {DW_FORMAT_fp8_tensor, DW_FORMAT_fp8_row, ENTRIES(FOLDED_E4M3, e4m3, &times)},
    {DW_FORMAT_fp8_tensor, DW_FORMAT_fp8_tensor, ENTRIES(FOLDED_E4M3, e4m3, &times)},
};

static const few_entries *entries_of(dw_format a, dw_format b) {
    for (size_t i = 0; i < COUNT_OF(all_formats); i++)
        if (all_formats[i].a == a && all_formats[i].b == b) return &all_formats[i].entries;
    return NULL;
}

static const few_entries *entries_for(const kernel_run *run) { return entries_of(run->call.in[0]->format, run->call.in[1]->format); }

/* ---- what is taken ---- */

const char *matmul_folded_refuses(const kernel_problem *problem, text *why) { return few_refuses(problem, entries_of(problem->in[0]->format, problem->in[1]->format), why); }

/* Variants of mxfp8: tiles of 128 rows of b, in which those of a are few (few.c); and those of folded_tiles.c. */
enum { FEW = 0, BY_ESTIMATE = -1 };
static int variant_of(const kernel_run *run) { return run->variant - 1; }
static bool has_tiles(const kernel_run *run) { return entries_for(run)->kind == FOLDED_MXFP8 && variant_of(run) != FEW; }

/* A half of a tile has one of b's scales of 128 columns. */
const char *matmul_folded_takes(const kernel_run *run, text *why) {
    const dw_tensor *b = run->call.in[1];
    const int64_t half = b->dims[b->rank - 2] / 2;
    if (entries_for(run)->kind == FOLDED_FP8 && matmul_halves_columns(&run->post) && half % (FEW_ROWS / 2) != 0)
        return kernel_because(why, "columns c and c + %lld are joined, and %lld is no multiple of %d: columns beside each other have different scales", (long long)half, (long long)half, FEW_ROWS / 2);
    return few_takes(run, matmul_folded_rows(run), FEW_STEP, why);
}

int64_t matmul_folded_rows(const kernel_run *run) { return has_tiles(run) ? FOLDED_TILE_MOST : FOLDED_MOST; }

const char *matmul_folded_variant(const kernel_problem *problem, int index) {
    const few_entries *entries = entries_of(problem->in[0]->format, problem->in[1]->format);
    if (entries == NULL || entries->kind != FOLDED_MXFP8) return NULL;
    return index == FEW ? "matmul_folded_few" : folded_tiles_variant(index - 1);
}

/* ---- which kernel ---- */

/* Of mxfp8 the one of less estimated time, or what was measured. */
static bool is_by_tiles(const kernel_run *run, folded_division *tiles) {
    if (!has_tiles(run)) return false;
    *tiles = folded_tiles_divide(run, variant_of(run) > FEW ? variant_of(run) - 1 : BY_ESTIMATE);
    return variant_of(run) > FEW || kernel_result_rows(&run->call) > FOLDED_MOST || tiles->us < 1e6 * few_seconds(run, entries_for(run));
}

/* What other ways beyond the rows of decoded.c take is known of launches apart from others, and none was measured beside these tiles: there the same is added to both. */
double matmul_folded_seconds(const kernel_run *run) {
    folded_division tiles;
    if (!is_by_tiles(run, &tiles)) return few_seconds(run, entries_for(run));
    return kernel_result_rows(&run->call) > FEW_MOST ? kernel_in_step(1e-6 * tiles.us) : 1e-6 * tiles.us;
}

size_t matmul_folded_workspace(const kernel_run *run) { return few_parts_bytes(run); }

dw_status matmul_folded_shape(const kernel_run *run, kernel_launcher *launcher) {
    folded_division tiles;
    return is_by_tiles(run, &tiles) ? folded_tiles_multiply(run, launcher, &tiles) : few_multiply(run, launcher, entries_for(run), 0);
}
