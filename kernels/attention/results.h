/* Results of attention as the kernels write them: by heads, in element formats. Those in blocks are made behind them: kernels/quantize/quantised.h. */
#ifndef KERNELS_ATTENTION_RESULTS_H
#define KERNELS_ATTENTION_RESULTS_H

#include "kernel/kernel.h"

typedef struct attention_heads {
    dw_tensor out;                /* [b,h,s,e] */
    const dw_tensor *tensors[2];  /* it and, where there is one, the second result */
    kernel_run run;
} attention_heads;

/* The run with its result by heads, in memory of the caller's; one that has it so already is as good. */
static inline const kernel_run *attention_by_heads(const kernel_run *run, attention_heads *heads) {
    op_attention_by_heads(&run->call, &heads->out);
    heads->tensors[0] = &heads->out;
    heads->tensors[1] = run->call.n_out > 1 ? run->call.out[1] : NULL;
    heads->run = *run;
    heads->run.call.out = heads->tensors;
    return &heads->run;
}

#endif
