/* Chains of pointwise ops on the CPU: blocks of some hundred elements go through all steps before the next block begins, so what is between two steps stays in the first-level
 * cache. A step does with a block what the op's own kernel does with it (pointwise.c, cast.c, where.c), so the bits are those of the ops one by one. Measured speed: README.md. */
#include <stdatomic.h>
#include <string.h>

#include "kernels/cpu/nest.h"
#include "kernels/kernels.h"
#include "kernels/pointwise/pointwise.h"

enum { GRAIN = 8192, MEMORY = 64 << 10 };   /* elements of a task, and bytes for what lies between the steps of a block */

/* What is known of a step before any element. */
typedef struct chain_plan {
    pointwise_loop loop;              /* NULL: cast or where */
    pointwise_class class, made;      /* of the operands and of the result */
    int slot;                         /* of the result */
    uint64_t numbers[OP_CHAIN_READS]; /* an element of each that is read, */
    dw_tensor number_tensors[OP_CHAIN_READS];   /* and as scalars */
} chain_plan;

typedef struct chain_job {
    const op_call *call;
    const cpu_rows *rows;
    op_chain chain;
    chain_plan plans[OP_CHAIN_STEPS];
    cpu_nest nest;                    /* the result, then the operands */
    bool in_place;                    /* the result lies where an operand does */
    int block;                        /* elements that go through the steps together; as many as there is memory for */
    int operand_bytes[OP_CHAIN_OPERANDS], slot_bytes[OP_CHAIN_STEPS], widened_bytes[OP_CHAIN_STEPS], gathered_bytes, made_bytes;   /* of an element in the buffers in front of each */
    atomic_int divided;               /* the step that divided by zero, plus 1; */
    int64_t dividend;                 /* and what it divided */
} chain_job;

/* A block on its way through the steps. Elements lie in their format, and, once a loop has asked for it, as loops read them. */
typedef struct chain_block {
    const chain_job *job;
    int64_t at_out, at[OP_CHAIN_OPERANDS], count;
    const void *operands[OP_CHAIN_OPERANDS], *results[OP_CHAIN_STEPS];   /* as loops read them; NULL: nothing has asked */
    dw_tensor slots[OP_CHAIN_STEPS];                                     /* by step: where its result's elements lie */
    _Alignas(64) uint8_t memory[MEMORY];
} chain_block;

double chain_cost(const kernel_problem *problem) { return kernel_roofline(problem, DW_FORMAT_f32, 0.1, 0.7); }

const char *chain_reject(const kernel_problem *problem, text *why) {
    (void)problem;
    (void)why;
    return NULL;   /* inference has refused what steps cannot hold */
}

size_t chain_workspace(const kernel_run *run) {
    (void)run;
    return 0;
}

/* ---- before any element ---- */

static int last_read_of(const op_chain *chain, int step) {
    int last = step;
    for (int i = step + 1; i < chain->count; i++)
        for (int k = 0; k < chain->steps[i].n_in; k++)
            if (chain->steps[i].in[k].kind == OP_CHAIN_STEP && chain->steps[i].in[k].index == step) last = i;
    return last;
}

/* Buffers one behind another: of operands, of slots' elements and of what loops read of these, of what is gathered and of what a loop makes. */
static void choose_buffers(chain_job *job) {
    int slots = 0, bytes = 0;
    for (int i = 0; i < job->call->n_in; i++) {
        job->operand_bytes[i] = bytes;
        bytes += (int)pointwise_class_bytes(pointwise_class_of(job->call->in[i]->format));
    }
    for (int i = 0; i < job->chain.count; i++)
        if (job->plans[i].slot >= slots) slots = job->plans[i].slot + 1;
    for (int i = 0; i < slots; i++, bytes += 16) {
        job->slot_bytes[i] = bytes;
        job->widened_bytes[i] = bytes + 8;
    }
    job->gathered_bytes = bytes;
    job->made_bytes = bytes + OP_CHAIN_READS * 8;
    job->block = MEMORY / (job->made_bytes + 8) / 64 * 64;
    if (job->block > CPU_BLOCK) job->block = CPU_BLOCK;
}

static void *buffer_at(chain_block *block, int bytes) { return block->memory + (size_t)bytes * (size_t)block->job->block; }

/* Results that are still to be read lie apart from the one that is made. */
static void choose_slots(chain_job *job) {
    const op_chain *chain = &job->chain;
    for (int i = 0; i < chain->count; i++) {
        unsigned taken = 0;
        for (int k = 0; k < i; k++)
            if (last_read_of(chain, k) >= i) taken |= 1u << job->plans[k].slot;
        while (taken >> job->plans[i].slot & 1) job->plans[i].slot++;
    }
}

static dw_status choose_loops(chain_job *job, const chip_caps *chip) {
    for (int i = 0; i < job->chain.count; i++) {
        const op_chain_step *step = &job->chain.steps[i];
        chain_plan *plan = &job->plans[i];
        plan->class = pointwise_class_of(step->in[0].format);
        plan->made = pointwise_class_of(step->format);
        for (int k = 0; k < step->n_in; k++) {
            plan->number_tensors[k] = (dw_tensor){.format = step->in[k].format, .data = &plan->numbers[k]};
            if (step->in[k].kind == OP_CHAIN_NUMBER) op_tensor_store(&plan->number_tensors[k], NULL, step->in[k].number);
        }
        if (step->op == OP_cast || step->op == OP_where) continue;
        plan->loop = pointwise_loop_of(chip, step->op, plan->class);
        if (plan->loop == NULL)
            return base_fail(job->call->context, DW_UNSUPPORTED, "chain: step %d: %s has no meaning for %s", i, op_get(step->op)->name, dw_format_name(step->in[0].format));
    }
    return DW_OK;
}

/* ---- blocks ---- */

/* Where what step index reads as its operand k lies in its format, stride apart. */
static const dw_tensor *place_of(const chain_block *block, int index, int k, int64_t *offset, int64_t *stride) {
    const chain_job *job = block->job;
    const op_chain_read *read = &job->chain.steps[index].in[k];
    *offset = 0;
    *stride = read->kind == OP_CHAIN_STEP;
    if (read->kind == OP_CHAIN_STEP) return &block->slots[read->index];
    if (read->kind == OP_CHAIN_NUMBER) return &job->plans[index].number_tensors[k];
    *offset = block->at[read->index];
    *stride = cpu_nest_step(&job->nest, 1 + read->index);
    return job->call->in[read->index];
}

#define REPEAT(type)                                                        \
    for (int64_t i = 0; i < count; i++) ((type *)to)[i] = *(const type *)from; \
    return
static void repeat(size_t bytes, const void *from, int64_t count, void *to) {
    switch (bytes) {
    case 1: memset(to, *(const uint8_t *)from, (size_t)count); return;
    case 2: REPEAT(uint16_t);
    case 4: REPEAT(uint32_t);
    default: REPEAT(uint64_t);
    }
}
#undef REPEAT

/* The same as a loop of the class reads it. */
static const void *load(chain_block *block, int index, int k, pointwise_class class) {
    const chain_job *job = block->job;
    const op_chain_read *read = &job->chain.steps[index].in[k];
    const bool is_operand = read->kind == OP_CHAIN_OPERAND, is_step = read->kind == OP_CHAIN_STEP;
    const void **kept = is_operand ? &block->operands[read->index] : is_step ? &block->results[read->index] : NULL;
    if (kept != NULL && *kept != NULL) return *kept;
    const int before = is_operand ? job->operand_bytes[read->index] : is_step ? job->widened_bytes[job->plans[read->index].slot] : job->gathered_bytes + 8 * k;
    void *buffer = buffer_at(block, before);
    int64_t offset, stride;
    const dw_tensor *tensor = place_of(block, index, k, &offset, &stride);
    if (stride == 0) {
        uint64_t one;
        const void *first = pointwise_load(job->rows, class, tensor, offset, 1, 1, &one);
        repeat(pointwise_class_bytes(class), first, block->count, buffer);
    }
    const void *loaded = stride == 0 ? buffer : pointwise_load(job->rows, class, tensor, offset, stride, block->count, buffer);
    if (kept != NULL) *kept = loaded;
    return loaded;
}

/* The same in its format, side by side. */
static const void *gather(chain_block *block, int index, int k) {
    int64_t offset, stride;
    const dw_tensor *tensor = place_of(block, index, k, &offset, &stride);
    const size_t bytes = cpu_element_bytes(tensor->format);
    void *buffer = buffer_at(block, block->job->gathered_bytes + 8 * k);
    if (stride == 1) return cpu_at(tensor, offset);
    if (stride == 0) repeat(bytes, cpu_at(tensor, offset), block->count, buffer);
    else cpu_gather(bytes, cpu_at(tensor, offset), stride, block->count, buffer);
    return buffer;
}

/* Says which number was divided by zero, once. */
static void tell_division(chain_job *job, int index, const int64_t *x, const int64_t *y, int64_t count) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&job->divided, &none, index + 1)) return;
    for (int64_t i = count - 1; i >= 0; i--)
        if (y[i] == 0) job->dividend = x[i];
}

static void run_step(chain_job *job, chain_block *block, int index) {
    const op_chain_step *step = &job->chain.steps[index];
    const chain_plan *plan = &job->plans[index];
    const bool is_last = index + 1 == job->chain.count;
    const int64_t out_step = is_last ? cpu_nest_step(&job->nest, 0) : 1, at_out = is_last ? block->at_out : 0;
    const dw_tensor *out = is_last ? job->call->out[0] : &block->slots[index];
    block->results[index] = NULL;
    if (step->op == OP_cast) {
        int64_t offset, x_step;
        const dw_tensor *x = place_of(block, index, 0, &offset, &x_step);
        pointwise_cast_block(job->rows, x, offset, x_step, out, at_out, out_step, block->count);
        return;
    }
    const size_t bytes = step->op == OP_where ? cpu_element_bytes(out->format) : pointwise_class_bytes(plan->made);
    const bool is_direct = out_step == 1 && bytes == cpu_element_bytes(out->format) && !(is_last && job->in_place);
    void *target = is_direct ? cpu_at(out, at_out) : buffer_at(block, job->made_bytes);
    if (step->op == OP_where) {
        const void *in[OP_CHAIN_READS];
        for (int k = 0; k < OP_CHAIN_READS; k++) in[k] = gather(block, index, k);
        pointwise_pick(bytes, in[0], in[1], in[2], target, block->count);
        if (!is_direct) cpu_scatter(bytes, target, cpu_at(out, at_out), out_step, block->count);
        return;
    }
    const void *x = load(block, index, 0, plan->class), *y = step->n_in > 1 ? load(block, index, 1, plan->class) : NULL;
    if (!plan->loop(x, y, target, block->count)) tell_division(job, index, x, y, block->count);
    if (!is_direct) pointwise_store(job->rows, plan->made, target, out, at_out, out_step, block->count);
}

static void run_line(void *argument, const int64_t *offset, int64_t count) {
    chain_job *job = argument;
    chain_block block;
    block.job = job;
    for (int i = 0; i < job->chain.count; i++) block.slots[i] = (dw_tensor){.format = job->chain.steps[i].format, .rank = 1, .data = buffer_at(&block, job->slot_bytes[job->plans[i].slot])};
    for (int64_t at = 0; at < count; at += job->block) {
        block.count = count - at < job->block ? count - at : job->block;
        block.at_out = offset[0] + at * cpu_nest_step(&job->nest, 0);
        for (int i = 0; i < job->call->n_in; i++) {
            const int64_t step = cpu_nest_step(&job->nest, 1 + i);
            block.at[i] = offset[1 + i] + at * step;
            if (at == 0 || step != 0) block.operands[i] = NULL;
        }
        for (int i = 0; i < job->chain.count; i++) run_step(job, &block, i);
    }
}

dw_status chain_run(const kernel_run *run) {
    const op_call *call = &run->call;
    chain_job job = {.call = call, .rows = cpu_rows_of(run->chip)};
    TRY(op_chain_of(call, &job.chain));
    TRY(choose_loops(&job, run->chip));
    choose_slots(&job);
    choose_buffers(&job);
    cpu_nest_start(&job.nest, call->out[0]->rank, call->out[0]->dims);
    cpu_nest_add(&job.nest, call->out[0]);
    for (int i = 0; i < call->n_in; i++) {
        cpu_nest_add(&job.nest, call->in[i]);
        job.in_place |= call->in[i]->data == call->out[0]->data;
    }
    cpu_nest_merge(&job.nest);
    cpu_nest_run(&job.nest, run->pool, GRAIN, run_line, &job);
    const int divided = atomic_load(&job.divided);
    if (divided == 0) return DW_OK;
    return base_fail(call->context, DW_INVALID, "chain: step %d: %s: %lld is divided by 0", divided - 1, op_get(job.chain.steps[divided - 1].op)->name, (long long)job.dividend);
}
