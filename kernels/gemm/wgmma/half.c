/* matmul by wgmma for few rows in 16 bits: the host half of half.cuh. Which products it takes, how long they take, the launch. Pure: knows no driver. */
#include "kernels/gpu/host/host.h"
#include "kernels/kernels.h"
#include "kernels/gemm/wgmma/few_host.h"

/* By counts, not measured: b's bytes at the rate of memory, and of 64 rows a's out of L2 beside them; a start and a cluster's meeting as of decoded weights. */
static const few_times times = {{2, 2, 2}, {0.96, 0.98, 1.15}, {0, 0, 0}, 0.55, 1.2, 0};

#define ENTRIES(kind, name) {kind, "matmul_few_" #name "_sm90", {"matmul_few_" #name "_m16", "matmul_few_" #name "_m32", "matmul_few_" #name "_m64"}, &times}
static const few_entries bf16_entries = ENTRIES(HALF_BF16, bf16), f16_entries = ENTRIES(HALF_F16, f16);

static const few_entries *entries_of(dw_format a, dw_format b) {
    if (a != b) return NULL;
    return a == DW_FORMAT_bf16 ? &bf16_entries : a == DW_FORMAT_f16 ? &f16_entries : NULL;
}

static const few_entries *entries_for(const kernel_run *run) { return entries_of(run->call.in[0]->format, run->call.in[1]->format); }

const char *matmul_half_refuses(const kernel_problem *problem, text *why) { return few_refuses(problem, entries_of(problem->in[0]->format, problem->in[1]->format), why); }

/* Rows of whole lines of 16 bytes. */
const char *matmul_half_takes(const kernel_run *run, text *why) { return few_takes(run, HALF_MOST, 8, why); }

int64_t matmul_half_rows(const kernel_run *run) {
    (void)run;
    return HALF_MOST;
}

double matmul_half_seconds(const kernel_run *run) { return few_seconds(run, entries_for(run)); }

dw_status matmul_half_shape(const kernel_run *run, kernel_launcher *launcher) { return few_multiply(run, launcher, entries_for(run), 0); }
