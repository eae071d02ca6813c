/* Runs on a device, and what quantised results of norms, products and attention are held to. */
#include "conform/conform.h"

#include <stdlib.h>
#include <string.h>

/* ---- norms, products and attention with results in block formats ---- */

static bool has_via(const kernel_case *c) { return c->op->id == OP_matmul || c->op->id == OP_attention; }

bool is_quantised(const kernel_case *c) {
    return (c->op->id == OP_layer_norm || c->op->id == OP_rms_norm || has_via(c)) && dw_format_is_block(c->results[0].format);
}

/* The format that is quantised: a norm's operand's, or via. */
static dw_format plain_format(const kernel_case *c) {
    const dw_format via = op_attr_format(&c->attrs, OP_ATTR_via);
    return !has_via(c) ? c->types[0].format : via != DW_FORMAT_COUNT ? via : DW_FORMAT_f32;
}

/* c with that format as its result's. */
static void plain_case(const kernel_case *c, kernel_case *plain) {
    *plain = *c;
    plain->results[0].format = plain_format(c);
    plain->n_attrs = 0;
    for (int i = 0; i < c->n_attrs; i++) {
        if (c->items[i].id != OP_ATTR_to && c->items[i].id != OP_ATTR_search && c->items[i].id != OP_ATTR_via && c->items[i].id != OP_ATTR_level) plain->items[plain->n_attrs++] = c->items[i];
    }
    if (has_via(c)) plain->items[plain->n_attrs++] = op_set_format(OP_ATTR_to, plain_format(c));
    plain->attrs = (op_attrs){plain->n_attrs, plain->items};
    for (int i = 0; i < plain->n_out; i++) plain->out[i] = &plain->results[i];
}

/* What the reference of quantize makes of a plain result of c, into quantised, which is created. */
static void quantise_result(program *p, const kernel_case *c, const result *plain, result *quantised) {
    op_attr items[3] = {op_set_format(OP_ATTR_to, c->results[0].format)};
    op_attrs attrs = {1, items};
    if (op_attr_bool(&c->attrs, OP_ATTR_search)) items[attrs.count++] = op_set_bool(OP_ATTR_search, true);
    if (op_has_level(&c->attrs)) items[attrs.count++] = op_set_real(OP_ATTR_level, op_attr_real(&c->attrs, OP_ATTR_level));
    const dw_tensor *in = &plain->tensor, *out = &quantised->tensor;
    result_create(c, 0, 0, quantised);
    op_call call = {.context = p->context, .op = op_get(OP_quantize), .attrs = &attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &out};
    assert_int_equal(call.op->reference(&call), DW_OK);
}

/* ---- one row on a device ---- */

/* A tensor in host memory [begin, begin + length) as it is seen in device memory. */
static dw_tensor seen_at(const dw_tensor *t, const uint8_t *begin, uint8_t *there) {
    dw_tensor seen = *t;
    if (t->data != NULL) seen.data = there + ((uint8_t *)t->data - begin);
    if (t->scales != NULL) seen.scales = there + ((uint8_t *)t->scales - begin);
    if (t->second != NULL) seen.second = (float *)(void *)(there + ((uint8_t *)(void *)t->second - begin));
    return seen;
}

/* A block on the device, guard included; the guard alone where the block is to be written there. */
static uint8_t *bring(program *p, const block *b, bool is_operand) {
    void *memory;
    const size_t from = is_operand || !options.unwritten ? 0 : b->length;
    assert_int_equal(p->device->calls->alloc(p->device, b->length + GUARD, &memory), DW_OK);
    assert_int_equal(p->device->calls->write(p->device, (uint8_t *)memory + from, b->bytes + from, b->length + GUARD - from), DW_OK);
    return memory;
}

static void take_back(program *p, block *b, uint8_t *memory) {
    assert_int_equal(p->device->calls->read(p->device, b->bytes, memory, b->length + GUARD), DW_OK);
    assert_int_equal(p->device->calls->synchronize(p->device), DW_OK);
    p->device->calls->release(p->device, memory, b->length + GUARD);
}

/* The result whose memory an operand is; -1: none's. */
static int result_of(const op_call *call, const dw_tensor *operand) {
    for (int i = 0; i < call->n_out; i++)
        if (call->out[i] == operand) return i;
    return -1;
}

/* A norm whose columns lie on the device, in blocks of their own. */
typedef struct norm_there { kernel_norm norm; dw_tensor columns[2]; } norm_there;

static const kernel_norm *bring_norm(program *p, const kernel_norm *norm, norm_there *there) {
    if (norm == NULL) return NULL;
    there->norm = *norm;
    for (int i = 0; i < 2; i++) {
        if (norm->columns[i] == NULL) continue;
        const block memory = {norm->columns[i]->data, (size_t)op_tensor_count(norm->columns[i]) * (size_t)dw_format_bits(norm->columns[i]->format) / 8};
        there->columns[i] = seen_at(norm->columns[i], memory.bytes, bring(p, &memory, true));
        there->norm.columns[i] = &there->columns[i];
    }
    return &there->norm;
}

static void release_norm(program *p, const kernel_norm *norm) {
    for (int i = 0; i < 2 && norm != NULL; i++)
        if (norm->columns[i] != NULL) p->device->calls->release(p->device, norm->columns[i]->data, 0);
}

/* A write whose tensors lie on the device: the attention's where they are the same, else blocks of their own. */
typedef struct write_there {
    kernel_run run;
    dw_tensor tensors[UPDATE_OPERANDS];
    const dw_tensor *in[UPDATE_OPERANDS], *out[3];
    norm_there heads[2];
} write_there;

static size_t bytes_of(const dw_tensor *t) { return (size_t)op_tensor_count(t) * (size_t)dw_format_bits(t->format) / 8; }

static const kernel_run *bring_write(program *p, const kernel_run *write, int n_in, const dw_tensor *const *in, const dw_tensor *const *ins, write_there *there) {
    if (write == NULL) return NULL;
    *there = (write_there){.run = *write};
    for (int i = 0; i < write->call.n_in; i++) {
        const dw_tensor *t = write->call.in[i];
        if (t == NULL) continue;
        for (int k = 0; k < n_in; k++)
            if (in[k] == t) there->in[i] = ins[k];
        if (there->in[i] != NULL) continue;
        const block memory = {t->data, bytes_of(t)};
        there->tensors[i] = seen_at(t, memory.bytes, bring(p, &memory, true));
        there->in[i] = &there->tensors[i];
    }
    for (int i = 0; i < 2; i++) there->out[i] = there->in[UPDATE_X + i];
    there->out[2] = there->in[UPDATE_QUERIES];
    for (int i = 0; i < 2; i++) there->run.heads[i] = bring_norm(p, write->heads[i], &there->heads[i]);
    there->run.call.in = there->in;
    there->run.call.out = there->out;
    return &there->run;
}

/* The caches come back. */
static void release_write(program *p, const kernel_run *write, write_there *there) {
    if (write == NULL) return;
    for (int i = 0; i < 2; i++) assert_int_equal(p->device->calls->read(p->device, write->call.in[UPDATE_X + i]->data, there->in[UPDATE_X + i]->data, bytes_of(there->in[UPDATE_X + i])), DW_OK);
    assert_int_equal(p->device->calls->synchronize(p->device), DW_OK);
    for (int i = 0; i < write->call.n_in; i++)
        if (there->tensors[i].data != NULL) p->device->calls->release(p->device, there->tensors[i].data, 0);
    for (int i = 0; i < 2; i++) release_norm(p, there->run.heads[i]);
}

/* What row->run does on the CPU: operands go to the device with results, and results come back. operands may be NULL where in is dense in its own block. */
dw_status run_on_device(program *p, const kernel_row *row, kernel_run *run, int n_in, operand *operands, result *results, block *workspace) {
    const dw_tensor *const *in = run->call.in, *const *out = run->call.out;
    dw_tensor in_there[KERNEL_CASE_OPERANDS], out_there[KERNEL_CASE_RESULTS];
    const dw_tensor *ins[KERNEL_CASE_OPERANDS] = {0}, *outs[KERNEL_CASE_RESULTS];
    uint8_t *of_in[KERNEL_CASE_OPERANDS] = {0}, *of_out[KERNEL_CASE_RESULTS], *scratch = bring(p, workspace, false);
    for (int i = 0; i < run->call.n_out; i++) {
        const int slot = kernel_in_place(row, run->ways, out[i]->format, i);
        of_out[i] = bring(p, &results[i].memory, slot >= 0 && slot < n_in && in[slot] == out[i]);
        out_there[i] = seen_at(out[i], results[i].memory.bytes, of_out[i]);
        outs[i] = &out_there[i];
    }
    for (int i = 0; i < n_in; i++) {
        if (in[i] == NULL) continue;
        const block *memory = in[i] == &operands[i].strided ? &operands[i].gaps : in[i] == &operands[i].plain ? &operands[i].of_plain : &operands[i].memory;
        const int taken = result_of(&run->call, in[i]);
        if (taken < 0) of_in[i] = bring(p, memory, true);
        in_there[i] = taken >= 0 ? out_there[taken] : seen_at(in[i], memory->bytes, of_in[i]);
        ins[i] = &in_there[i];
    }
    run->call.in = ins;
    run->call.out = outs;
    run->workspace = scratch;
    write_there written;
    const kernel_run *write = run->write;
    run->write = bring_write(p, write, n_in, in, ins, &written);
    dw_status status = p->device->calls->run(p->device, row, run);
    if (status == DW_OK) status = p->device->calls->synchronize(p->device);
    release_write(p, write, &written);
    run->write = write;
    run->call.in = in;
    run->call.out = out;
    for (int i = 0; i < run->call.n_out; i++) take_back(p, &results[i].memory, of_out[i]);
    for (int i = 0; i < n_in; i++)
        if (of_in[i] != NULL) p->device->calls->release(p->device, of_in[i], 0);
    take_back(p, workspace, scratch);
    return status;
}

static bool writes_blocks(const program *p, const kernel_row *row) { return row != NULL && p->way != NULL && !kernel_way_is(p->way, KERNEL_WAY_QUANTISED); }

/* The ways that make the plain result: of a way that writes blocks itself the one beside it, cuda_matmul_wgmma of cuda_matmul_wgmma_blocks. */
static uint32_t plain_ways(const program *p, const kernel_row *row) {
    char name[96];
    const char *names[] = {name};
    if (!writes_blocks(p, row)) return p->ways;
    snprintf(name, sizeof name, "%.*s", (int)(strlen(p->way->name) - strlen("_blocks")), p->way->name);
    const uint32_t ways = kernel_ways_of(row, names, 1);
    assert_int_not_equal(ways, 0);
    return ways;
}

/* The same with the columns of the run's norms. */
dw_status run_there(program *p, const kernel_row *row, kernel_run *run, int n_in, operand *operands, result *results, block *workspace) {
    const kernel_run given = *run;
    norm_there there[3];
    run->norm = bring_norm(p, given.norm, &there[2]);
    for (int i = 0; i < 2; i++) run->heads[i] = bring_norm(p, given.heads[i], &there[i]);
    const dw_status status = run_on_device(p, row, run, n_in, operands, results, workspace);
    release_norm(p, run->norm);
    run->norm = given.norm;
    for (int i = 0; i < 2; i++) {
        release_norm(p, run->heads[i]);
        run->heads[i] = given.heads[i];
    }
    return status;
}

/* Was it one of the row's ways by itself that was run, and does it refuse the call? A status of UNSUPPORTED alone may come from a device that has not the kernel's code. */
bool is_refused(const program *p, const kernel_row *row, const kernel_run *run, dw_status status) {
    if (p->way == NULL || status != DW_UNSUPPORTED) return false;
    for (int i = 0; i < row->way_count; i++)
        if ((run->ways >> i & 1) != 0 && kernel_size_refusal(&row->ways[i], run, NULL) == NULL) return false;
    return true;
}

/* What the plain call's result becomes: by row on level, or by the op's reference when row is NULL. Tiles that write blocks add k in order, and of those beside them what is invariant does, too:
 * tiles of 64 rows divide k among warpgroups. */
void quantised_oracle(program *p, const kernel_case *c, const kernel_row *row, const chip_caps *level, const dw_tensor *const *in, operand *operands, const void *packed,
                             result *oracle) {
    kernel_case plain;
    result results[KERNEL_CASE_RESULTS];
    const dw_tensor *out[KERNEL_CASE_RESULTS];
    plain_case(c, &plain);
    for (int i = 0; i < plain.n_out; i++) {
        result_create(&plain, i, 0, &results[i]);
        out[i] = &results[i].tensor;
    }
    kernel_run run = {.call = {p->context, c->op, &plain.attrs, NULL, c->n_in, in, c->n_out, out, 0, NULL}, .post = c->post, .is_packed = packed != NULL, .packed = packed,
                      .pool = p->pools[0], .chip = level, .ways = plain_ways(p, row), .invariant = writes_blocks(p, row)};
    block workspace = block_create(row != NULL ? kernel_workspace(row, &run) : 0, 0xff);
    run.workspace = workspace.bytes;
    dw_status status = row == NULL ? c->op->reference(&run.call) : p->device ? run_there(p, row, &run, c->n_in, operands, results, &workspace) : kernel_execute(row, &run);
    if (row == NULL || !is_refused(p, row, &run, status)) assert_int_equal(status, DW_OK);   /* strides that a way does not take are refused with either result */
    free(workspace.bytes);
    quantise_result(p, c, &results[0], oracle);
    for (int i = 0; i < plain.n_out; i++) free(results[i].memory.bytes);
}
