/* The host half of dequantise.cu. Pure: knows no driver. */
#include "kernels/gemm/dequantise/dequantise.h"

#include "kernels/gpu/host/host.h"
#include "kernels/gemm/host.h"

bool matmul_dequantises(dw_format format) {
    const num_format *info = num_info(format);
    return format == DW_FORMAT_bf16 || (info->class == NUM_BLOCK && (info->scale != DW_FORMAT_f32 || info->cols == 0));
}

static int64_t units_of(int64_t k) { return base_ceil_div(k, DEQUANTISE_UNIT); }

size_t matmul_dequantised_bytes(int64_t rows, int64_t k) { return ((size_t)rows * (size_t)units_of(k) * DEQUANTISE_UNIT * 2 + 127) / 128 * 128; }

/* Half of the bytes more are read. */
double matmul_dequantise_us(const chip_caps *chip, double bytes) { return 2 + 1e6 * 1.5 * bytes / (0.746 * chip_bytes_per_s(chip)); }

dw_status matmul_dequantise_shape(const kernel_run *run, kernel_launcher *launcher, const int64_t at[2], int64_t first, int64_t end) {
    enum { MOST_BLOCKS = 1 << 14 };
    kernel_launch launch;
    dequantise_arguments *g = cuda_launch(&launch, "matmul_decode", "matmul_decode", sizeof *g);
    int64_t k = run->call.in[0]->dims[run->call.in[0]->rank - 1];
    g->k = (int32_t)k;
    while (g->across < 8 && 1 << g->across < units_of(k)) g->across++;
    for (int i = 0; i < 2; i++) {
        const dw_tensor *x = run->call.in[i];
        int64_t rows = 1, down = DEQUANTISE_THREADS >> g->across;
        if (at[i] < 0) continue;
        for (int axis = 0; axis < x->rank - 1; axis++) rows *= x->dims[axis];
        if (i == 1 && end > 0) {
            g->group_rows = (int32_t)x->dims[x->rank - 2];
            rows = (end - first) * x->dims[x->rank - 2];
            matmul_take_groups(&launch, run, first, end, &g->groups);
        }
        matmul_take_rows(&launch, run, i, &g->rows[i]);
        cuda_slot(&launch, KERNEL_SLOT_WORKSPACE, 0, &g->to[i], at[i]);
        g->count[i] = (int32_t)rows;
        g->blocks[i] = (int32_t)(base_ceil_div(rows, down) < MOST_BLOCKS ? base_ceil_div(rows, down) : MOST_BLOCKS);
    }
    cuda_grid(&launch, g->blocks[0] + g->blocks[1], 1, 1);
    launch.block[0] = DEQUANTISE_THREADS;
    return launcher->add(launcher, &launch);
}
