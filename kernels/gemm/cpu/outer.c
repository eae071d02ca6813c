/* grouped_outer on the CPU: for each group the matmul of its rows of a, transposed, with those of b, by the product core, whose bits it has. A group without rows gives zeros. */
#include <string.h>

#include "kernels/gemm/cpu/product.h"
#include "kernels/kernels.h"

const char *outer_reject(const kernel_problem *problem, text *why) { return product_reject(problem, why, 3, 1u << GEMM_PANEL_F32 | 1u << GEMM_PANEL_BF16, "b has no elements of 16 bits or more"); }

double outer_cost(const kernel_problem *problem) { return product_cost(problem); }

/* The product of rows [begin, end) as a call of its own, whose tensors are in of[]: a, b and the group's result. */
typedef struct part { dw_tensor of[3]; const dw_tensor *in[2], *out[1]; op_attr attr; op_attrs attrs; kernel_run run; } part;

static void part_of(const kernel_run *run, int64_t group, int64_t begin, int64_t end, part *p) {
    for (int i = 0; i < 2; i++) {
        dw_tensor *x = &p->of[i];
        *x = *run->call.in[i];
        x->dims[0] = end - begin;
        if (x->data != NULL) x->data = (uint8_t *)x->data + (size_t)(begin * x->strides[0]) * product_element_bytes(x->format);
        p->in[i] = x;
    }
    dw_tensor *y = &p->of[2];
    *y = *run->call.out[0];
    y->rank = 2;
    for (int axis = 0; axis < 2; axis++) {
        y->dims[axis] = y->dims[axis + 1];
        y->strides[axis] = y->strides[axis + 1];
    }
    if (y->data != NULL) y->data = (uint8_t *)y->data + (size_t)(group * run->call.out[0]->strides[0]) * product_element_bytes(y->format);
    p->out[0] = y;
    p->attr = op_set_bool(OP_ATTR_at, true);
    p->attrs = (op_attrs){.count = 1, .items = &p->attr};
    p->run = *run;
    p->run.call = (op_call){.context = run->call.context, .op = op_get(OP_matmul), .attrs = &p->attrs, .symbols = run->call.symbols, .n_in = 2, .in = p->in, .n_out = 1, .out = p->out};
    p->run.constant_in = 0;
}

/* No group has more rows than there are. */
size_t outer_workspace(const kernel_run *run) {
    part p;
    part_of(run, 0, 0, run->call.in[0]->dims[0], &p);
    return matmul_f32_workspace(&p.run);
}

static void clear(const dw_tensor *y) {
    for (int64_t row = 0; row < y->dims[0]; row++)
        for (int64_t col = 0; col < y->dims[1]; col++)
            memset((uint8_t *)y->data + (size_t)(row * y->strides[0] + col * y->strides[1]) * product_element_bytes(y->format), 0, product_element_bytes(y->format));
}

static dw_status run_groups(const kernel_run *run, dw_status (*multiply)(const kernel_run *)) {
    const dw_tensor *offsets = run->call.in[2];
    int64_t begin = 0;
    for (int64_t group = 0; group < offsets->dims[0]; group++) {
        const int64_t end = ((const int32_t *)offsets->data)[group * offsets->strides[0]];
        if (end < begin || end > run->call.in[0]->dims[0]) return run->call.op->reference(&run->call);     /* which says what is wrong with it */
        begin = end;
    }
    begin = 0;
    for (int64_t group = 0; group < offsets->dims[0]; group++) {
        const int64_t end = ((const int32_t *)offsets->data)[group * offsets->strides[0]];
        part p;
        part_of(run, group, begin, end, &p);
        if (end == begin) clear(&p.of[2]);
        else if (op_tensor_count(&p.of[2]) > 0) TRY(multiply(&p.run));
        begin = end;
    }
    return DW_OK;
}

#define RUN(name) \
    dw_status outer_##name##_run(const kernel_run *run) { return run_groups(run, matmul_##name##_run); }
RUN(portable)
#if defined(__x86_64__)
RUN(avx2)
RUN(avx512)
RUN(avx512bf16)
#endif
