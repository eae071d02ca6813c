/* The conformance program: every line of the .txt files here on every kernel row that accepts it, and on each way of a row that has ways, by itself, at every instruction set level that this machine
 * has, beside the op's reference. Operands are random from three seeds; results, workspace and packed weights are filled with NaN before
 * and are watched for writes behind their ends; one and two threads must give the same bits, the latter in place where
 * the row may; a simulated device, which gives the same bits every time, runs twice only for that. A row or way that no line reaches is a failure.
 * With files or the words of one line as arguments: only those, and a row may stay unreached. Options in front of them: --device D: the rows of that device instead, with the
 * operands in its memory (sim:h200, cuda); --kernel NAME: of all rows and ways this one, or of a row with ways whichever it picks; --part I/N: every N-th line; --seeds N, where three
 * take too long; --once: without the second run, of two threads and in place; --times: with the processor's seconds of each line; --bits: prints a hash of each kernel's results, to hold
 * two builds beside each other; --unwritten: device memory of results and workspace is not filled, which tools that look for reads of such memory want (results have no gaps then, and
 * what lies between their parts is not compared).
 *
 * A line of a collective is run by as many ranks as take part (or world=N), threads of this program, each of which has the bits of its reference.
 *
 * Bounds: fp32 results may differ from the reference's sums in double by the order and rounding of fp32 sums: 1e-5 of the largest result covers
 * 4096 terms of random sign eight times over. Products may lose what docs/formats.md says: 2^-126 for each term, and operands of MX formats below that. Results in bf16 and f16 add half a step of their format. Integers, bools and quantised
 * results must be equal. What a norm, a product or attention quantises is a computed number, and its codes are held to what they are of: to the bits that quantize makes
 * of the same kernel's plain result, and the reference's to those of the reference's. */
#include "support/evaluate.h"
#include "support/lines.h"
#include "support/ranks.h"
#include "support/support.h"
#include "support/wire.h"

#include <dirent.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernel/kernel.h"
#include "device/device.h"
#include "kernels/gemm/skinny/skinny.h"

enum { GUARD = 256, SEEDS = 3, THREADS = 2, LINE_BYTES = 1024 };

/* Memory with a watched end. */
typedef struct block { uint8_t *bytes; size_t length; } block;

static block block_create(size_t length, int fill) {
    block b = {aligned_alloc(64, base_align_up(length + GUARD, 64)), length};
    assert_non_null(b.bytes);
    memset(b.bytes, fill, length);
    memset(b.bytes + length, 0x5a, GUARD);
    return b;
}

static bool block_is_whole(const block *b) {
    for (int i = 0; i < GUARD; i++) {
        if (b->bytes[b->length + (size_t)i] != 0x5a) return false;
    }
    return true;
}

typedef struct program {
    dw_context *context;
    pool *pools[THREADS];         /* of 1, 2, .. threads */
    chip_caps levels[8];
    int level_count;
    device *device;               /* with memory of its own, whose rows run instead of the CPU's; NULL: the CPU */
    bool *reached;                /* by row, */
    uint32_t *ways_reached;       /* and of a row by way */
    const kernel_way *way;        /* that runs; NULL: the row, or what it picks */
    uint32_t ways;                /* of its row */
    kernel_tuned tuned;           /* the variant that runs; way NULL: none was asked for */
    int64_t lines, runs, plain_runs, left, failures;   /* lines: of files, those of other parts too; left: runs of slow ways, to smaller lines */
    bool verbose;
} program;

/* ---- operands ---- */

typedef struct operand { dw_tensor dense, strided, plain; block memory, gaps, of_plain; } operand;

static int by_value(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The elements that operand 0 is quantised from, as they are in the format of plain. */
static void round_to_plain(float *x, int64_t count, dw_tensor *plain) {
    for (int64_t i = 0; i < count; i++) {
        num_store(plain->format, plain->data, i, (double)x[i], isfinite(x[i]) != 0);
        x[i] = (float)num_load(plain->format, plain->data, i);
    }
}

/* plain: what it is quantised from, where that is there. */
static void fill_dense(const kernel_case *c, int index, uint64_t seed, dw_tensor *t, dw_tensor *plain) {
    int64_t count = op_tensor_count(t);
    const kernel_range *range = &c->ranges[index];
    uint64_t stream = seed * 64 + (uint64_t)index;
    if (dw_format_is_block(t->format)) {
        int64_t cols = t->dims[t->rank - 1], rows = t->rank > 1 ? t->dims[t->rank - 2] : 1;
        float *x = malloc((size_t)(count + 1) * sizeof *x);
        for (int64_t i = 0; i < count; i++) {
            x[i] = range->given ? (float)(range->low + (double)num_random_uniform(stream, (uint64_t)i) * (range->high - range->low)) : num_random_normal(stream, (uint64_t)i);
            if ((c->special >> index & 1) != 0 && i % 701 == 3) x[i] = plain->data != NULL && i % 2 == 0 && num_info(t->format)->cols == 0 ? INFINITY : NAN;
            if (plain->data != NULL && i / 128 % 5 == 4) x[i] = 0;       /* blocks of nothing else */
        }
        if (plain->data != NULL) round_to_plain(x, count, plain);
        num_matrix m = {.format = t->format, .layout = t->scale_layout, .rows = rows, .cols = cols, .data = t->data, .scales = t->scales, .second = t->second,
                        .batches = cols * rows > 0 ? count / (cols * rows) : 1};
        num_quantize(x, cols, plain->data != NULL && c->plain_searches ? NUM_ROUND_SEARCH : NUM_ROUND_UP, false, &m);
        free(x);
        return;
    }
    num_class class = num_info(t->format)->class;
    for (int64_t i = 0; i < count; i++) {
        double low = range->given ? range->low : class == NUM_BOOL ? 0 : -3, high = range->given ? range->high : class == NUM_BOOL ? 1 : 3;
        double value = class == NUM_FLOAT && !range->given ? (double)num_random_normal(stream, (uint64_t)i)
                                                           : low + (double)num_random_uniform(stream, (uint64_t)i) * (high - low + (class == NUM_FLOAT ? 0 : 1));
        if (class != NUM_FLOAT) value = floor(value < high ? value : high);
        static const double specials[] = {NAN, INFINITY, -INFINITY, 0.0, -0.0};
        if ((c->special >> index & 1) != 0 && class == NUM_FLOAT && i % 7 == 3) value = specials[num_random(stream, (uint64_t)i) % COUNT_OF(specials)];
        kernel_case_element(c, index, seed, i, t->rank > 0 ? t->dims[t->rank - 1] : 1, &value);
        num_store(t->format, t->data, i, value, isfinite(value) != 0);
    }
    if (c->ascending >> index & 1) {
        assert_int_equal(t->format, DW_FORMAT_i32);
        qsort(t->data, (size_t)count, sizeof(int32_t), by_value);
    }
}

/* The same elements with a gap behind each element and each row. */
static void make_strided(operand *o) {
    dw_tensor *t = &o->strided;
    *t = o->dense;
    int64_t stride = 2;
    for (int axis = t->rank - 1; axis >= 0; axis--) {
        t->strides[axis] = stride;
        stride *= t->dims[axis] + 1;
    }
    size_t size = (size_t)dw_format_bits(t->format) / 8;
    o->gaps = block_create((size_t)stride * size, 0xff);
    t->data = o->gaps.bytes;
    int64_t count = op_tensor_count(t);
    for (int64_t i = 0; i < count; i++) {
        int64_t left = i, offset = 0;
        for (int axis = t->rank - 1; axis >= 0; axis--) {
            offset += left % t->dims[axis] * t->strides[axis];
            left /= t->dims[axis];
        }
        memcpy(o->gaps.bytes + (size_t)offset * size, (uint8_t *)o->dense.data + (size_t)i * size, size);
    }
}

static void operand_create(const kernel_case *c, int index, uint64_t seed, operand *o) {
    *o = (operand){0};
    if (c->in[index] == NULL) return;
    assert_int_equal(op_tensor_bind(NULL, c->in[index], NULL, NULL, &o->dense), DW_OK);
    num_parts parts;
    assert_true(num_layout(o->dense.format, o->dense.scale_layout, o->dense.rank, o->dense.dims, &parts));
    o->memory = block_create(parts.total_bytes, 0);
    dw_tensor shape = o->dense;
    assert_true(op_tensor_init(&o->dense, shape.format, shape.scale_layout, shape.rank, shape.dims, o->memory.bytes));
    if (index == 0 && c->plain != DW_FORMAT_COUNT) {
        o->of_plain = block_create((size_t)op_tensor_count(&shape) * (size_t)dw_format_bits(c->plain) / 8, 0);
        assert_true(op_tensor_init(&o->plain, c->plain, DW_SCALE_plain, shape.rank, shape.dims, o->of_plain.bytes));
    }
    fill_dense(c, index, seed, &o->dense, &o->plain);
    if ((c->strided >> index & 1) && !dw_format_is_block(shape.format) && dw_format_bits(shape.format) >= 8) make_strided(o);
}

static void operand_destroy(operand *o) {
    free(o->memory.bytes);
    free(o->gaps.bytes);
    free(o->of_plain.bytes);
}

/* ---- results ---- */

typedef struct result { dw_tensor tensor; block memory; } result;

static void result_create(const kernel_case *c, int index, bool padded, result *r) {
    dw_tensor shape;
    assert_int_equal(op_tensor_bind(NULL, c->out[index], NULL, NULL, &shape), DW_OK);
    num_parts parts;
    assert_true(num_layout(shape.format, shape.scale_layout, shape.rank, shape.dims, &parts));
    padded = padded && shape.rank >= 2 && !dw_format_is_block(shape.format);
    size_t bytes = parts.total_bytes;
    if (padded) bytes = bytes / (size_t)(shape.dims[shape.rank - 1] > 0 ? shape.dims[shape.rank - 1] : 1) * (size_t)(shape.dims[shape.rank - 1] + 3);
    r->memory = block_create(bytes, 0xff);
    assert_true(op_tensor_init(&r->tensor, shape.format, shape.scale_layout, shape.rank, shape.dims, r->memory.bytes));
    if (!padded) return;
    int64_t stride = shape.dims[shape.rank - 1] + 3;
    for (int axis = shape.rank - 2; axis >= 0; axis--) {
        r->tensor.strides[axis] = stride;
        stride *= shape.dims[axis];
    }
}

/* Are the gaps of a padded result untouched? */
static bool gaps_are_whole(const result *r) {
    const dw_tensor *t = &r->tensor;
    if (t->rank < 2 || op_tensor_is_contiguous(t) || dw_format_is_block(t->format)) return true;
    size_t size = (size_t)dw_format_bits(t->format) / 8, row = (size_t)t->strides[t->rank - 2] * size, used = (size_t)t->dims[t->rank - 1] * size;
    for (size_t at = 0; at + row <= r->memory.length; at += row) {
        for (size_t i = used; i < row; i++) {
            if (r->memory.bytes[at + i] != 0xff) return false;
        }
    }
    return true;
}

static void index_of(const dw_tensor *t, int64_t flat, int64_t *index) {
    for (int axis = t->rank - 1; axis >= 0; axis--) {
        index[axis] = flat % t->dims[axis];
        flat /= t->dims[axis];
    }
}

static bool unwritten;            /* of --unwritten */

static double lost;               /* what results of the line may lack; of the seed that runs */

/* The first difference beyond the bound, as text; false when there is none. */
static bool differs(const kernel_case *c, const result *got, const result *reference, char *text, size_t room) {
    const dw_tensor *a = &got->tensor, *b = &reference->tensor;
    const num_format *info = num_info(a->format);
    if (info->class == NUM_BLOCK) {
        num_parts parts;
        assert_true(num_layout(a->format, a->scale_layout, a->rank, a->dims, &parts));
        size_t at = 0;
        while (at < got->memory.length && (got->memory.bytes[at] == reference->memory.bytes[at] || (unwritten && !num_is_part(&parts, at)))) at++;
        if (at == got->memory.length) return false;
        snprintf(text, room, "byte %zu is %02x, the reference has %02x", at, got->memory.bytes[at], reference->memory.bytes[at]);
        return true;
    }
    int64_t count = op_tensor_count(a), index[DW_MAX_RANK];
    double largest = 0;
    for (int64_t i = 0; i < count; i++) {
        index_of(b, i, index);
        double y = fabs(op_tensor_load(b, index));
        if (isfinite(y) && y > largest) largest = y;
    }
    double step = info->class == NUM_FLOAT && info->bits <= 16 ? ldexp(1.0, -info->mantissa_bits - 1) : 0;
    for (int64_t i = 0; i < count; i++) {
        index_of(b, i, index);
        double x = op_tensor_load(a, index), y = op_tensor_load(b, index);
        bool equal = x == y || (isnan(x) && isnan(y));
        if (info->class == NUM_FLOAT && isfinite(y) && isfinite(x)) equal = fabs(x - y) <= c->bound * largest + 2 * step * fabs(y) + lost;
        if (equal) continue;
        snprintf(text, room, "element %lld is %.9g, the reference has %.9g (largest %.3g)", (long long)i, x, y, largest);
        return true;
    }
    return false;
}

/* ---- norms, products and attention with results in block formats ---- */

static bool has_via(const kernel_case *c) { return c->op->id == OP_matmul || c->op->id == OP_attention; }

static bool is_quantised(const kernel_case *c) {
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
        if (c->items[i].id != OP_ATTR_to && c->items[i].id != OP_ATTR_search && c->items[i].id != OP_ATTR_via) plain->items[plain->n_attrs++] = c->items[i];
    }
    if (has_via(c)) plain->items[plain->n_attrs++] = op_set_format(OP_ATTR_to, plain_format(c));
    plain->attrs = (op_attrs){plain->n_attrs, plain->items};
    for (int i = 0; i < plain->n_out; i++) plain->out[i] = &plain->results[i];
}

/* What the reference of quantize makes of a plain result of c, into quantised, which is created. */
static void quantise_result(program *p, const kernel_case *c, const result *plain, result *quantised) {
    op_attr items[] = {op_set_format(OP_ATTR_to, c->results[0].format), op_set_bool(OP_ATTR_search, true)};
    op_attrs attrs = {op_attr_bool(&c->attrs, OP_ATTR_search) ? 2 : 1, items};
    const dw_tensor *in = &plain->tensor, *out = &quantised->tensor;
    result_create(c, 0, false, quantised);
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
    const size_t from = is_operand || !unwritten ? 0 : b->length;
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

/* What row->run does on the CPU: operands go to the device with results, and results come back. operands may be NULL where in is dense in its own block. */
static dw_status run_on_device(program *p, const kernel_row *row, kernel_run *run, int n_in, operand *operands, result *results, block *workspace) {
    const dw_tensor *const *in = run->call.in, *const *out = run->call.out;
    dw_tensor in_there[KERNEL_CASE_OPERANDS], out_there[KERNEL_CASE_RESULTS];
    const dw_tensor *ins[KERNEL_CASE_OPERANDS] = {0}, *outs[KERNEL_CASE_RESULTS];
    uint8_t *of_in[KERNEL_CASE_OPERANDS] = {0}, *of_out[KERNEL_CASE_RESULTS], *scratch = bring(p, workspace, false);
    for (int i = 0; i < run->call.n_out; i++) {
        const int slot = kernel_in_place(row, i);
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
    dw_status status = p->device->calls->run(p->device, row, run);
    if (status == DW_OK) status = p->device->calls->synchronize(p->device);
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

/* The same with the columns of the run's norm, which lie in blocks of their own. */
static dw_status run_there(program *p, const kernel_row *row, kernel_run *run, int n_in, operand *operands, result *results, block *workspace) {
    const kernel_norm *norm = run->norm;
    kernel_norm own;
    dw_tensor there[2];
    if (norm == NULL) return run_on_device(p, row, run, n_in, operands, results, workspace);
    own = *norm;
    for (int i = 0; i < 2; i++) {
        if (norm->columns[i] == NULL) continue;
        const block memory = {norm->columns[i]->data, (size_t)op_tensor_count(norm->columns[i]) * (size_t)dw_format_bits(norm->columns[i]->format) / 8};
        there[i] = seen_at(norm->columns[i], memory.bytes, bring(p, &memory, true));
        own.columns[i] = &there[i];
    }
    run->norm = &own;
    const dw_status status = run_on_device(p, row, run, n_in, operands, results, workspace);
    run->norm = norm;
    for (int i = 0; i < 2; i++)
        if (norm->columns[i] != NULL) p->device->calls->release(p->device, there[i].data, 0);
    return status;
}

/* Was it one of the row's ways by itself that was run, and does it refuse the call? A status of UNSUPPORTED alone may come from a device that has not the kernel's code. */
static bool is_refused(const program *p, const kernel_row *row, const kernel_run *run, dw_status status) {
    if (p->way == NULL || status != DW_UNSUPPORTED) return false;
    for (int i = 0; i < row->way_count; i++)
        if ((run->ways >> i & 1) != 0 && kernel_size_refusal(&row->ways[i], run, NULL) == NULL) return false;
    return true;
}

/* What the plain call's result becomes: by row on level, or by the op's reference when row is NULL. Tiles that write blocks add k in order, and of those beside them what is invariant does, too:
 * tiles of 64 rows divide k among warpgroups. */
static void quantised_oracle(program *p, const kernel_case *c, const kernel_row *row, const chip_caps *level, const dw_tensor *const *in, operand *operands, const void *packed,
                             result *oracle) {
    kernel_case plain;
    result results[KERNEL_CASE_RESULTS];
    const dw_tensor *out[KERNEL_CASE_RESULTS];
    plain_case(c, &plain);
    for (int i = 0; i < plain.n_out; i++) {
        result_create(&plain, i, false, &results[i]);
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

/* ---- one row ---- */

/* The operand's memory becomes result number's, r, where the row may be asked for that. */
static void take_over(const kernel_row *row, int number, result *r, const dw_tensor **in) {
    const int slot = kernel_in_place(row, number);
    if (slot < 0 || in[slot] == NULL) return;
    const dw_tensor *operand = in[slot];
    if (operand->format != r->tensor.format || operand->rank != r->tensor.rank) return;
    if (!op_tensor_is_contiguous(operand) || !op_tensor_is_contiguous(&r->tensor) || dw_format_is_block(operand->format)) return;
    for (int i = 0; i < operand->rank; i++) {
        if (operand->dims[i] != r->tensor.dims[i]) return;
    }
    memcpy(r->memory.bytes, operand->data, r->memory.length);
    in[slot] = &r->tensor;
}

static bool bits;   /* --bits */

/* FNV-1a over the memory of all results. */
static void print_bits(const kernel_case *c, const kernel_row *row, const chip_caps *level, uint64_t seed, const result *results) {
    uint64_t hash = UINT64_C(0xcbf29ce484222325);
    for (int i = 0; i < c->n_out; i++)
        for (size_t k = 0; k < results[i].memory.length; k++) hash = (hash ^ results[i].memory.bytes[k]) * UINT64_C(0x100000001b3);
    printf("%s: %s, %s, seed %d: %016llx\n", c->line, row->name, level->name, (int)seed, (unsigned long long)hash);
}

static void report(program *p, const kernel_case *c, const kernel_row *row, const char *level, uint64_t seed, int threads, const char *what) {
    p->failures++;
    print_error("%s:%d: %s\n    %s on %s, seed %d, %d threads: %s\n", c->source, c->number, c->line, p->way != NULL ? p->way->name : row->name, level, (int)seed, threads, what);
}

/* Chips with less shared memory have entries of half of the warps, which do not quantise: their products refuse such runs. */
static bool has_quantising(const chip_caps *chip) { return chip->shared_bytes >= SKINNY_ROOM; }

/* The same bits as with the quantised operand, of which made is the result: of a way that can. */
static void run_plain(program *p, const kernel_case *c, const kernel_row *row, const kernel_run *blocks, operand *operands, const result *made, uint64_t seed) {
    const dw_tensor *in[KERNEL_CASE_OPERANDS], *out[] = {NULL};
    result own;
    kernel_run run = *blocks;
    if (c->plain == DW_FORMAT_COUNT || p->device == NULL || p->way == NULL || !kernel_way_is(p->way, KERNEL_WAY_QUANTISES)) return;
    memcpy(in, blocks->call.in, (size_t)c->n_in * sizeof *in);
    in[0] = &operands[0].plain;
    result_create(c, 0, false, &own);
    out[0] = &own.tensor;
    run.call.in = in;
    run.call.out = out;
    run.quantises = true;
    run.quantised = c->types[0].format;
    run.searches = c->plain_searches;
    block workspace = block_create(kernel_workspace(row, &run), 0xff);
    if (!has_quantising(run.chip)) return;
    p->plain_runs++;
    const kernel_plain plain = {.operand = in[0], .quantises = true, .searches = c->plain_searches};
    if (!kernel_takes_plain(row, blocks, &plain)) report(p, c, row, run.chip->name, seed, 1, "it does not quantise the plain operand");
    else if (run_there(p, row, &run, c->n_in, operands, &own, &workspace) != DW_OK) report(p, c, row, run.chip->name, seed, 1, dw_context_error(p->context));
    else if (memcmp(own.memory.bytes, made->memory.bytes, own.memory.length) != 0) report(p, c, row, run.chip->name, seed, 1, "other bits of the operand that it quantises itself");
    free(workspace.bytes);
    free(own.memory.bytes);
}

/* ---- norms that products do ---- */

/* x, weight and, of layer_norm, bias, those in x's format or, of odd numbers of rows, in f32. */
enum { NORM_OPERANDS = 3 };

static const kernel_row *norm_row(const kernel_case *c) {
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_at(i)->op == c->norm && kernel_is_norm_of_products(kernel_at(i))) return kernel_at(i);
    return NULL;
}

static void make_norm_operands(const kernel_case *c, uint64_t seed, operand *operands) {
    const op_type *shape = &c->types[0];
    for (int i = 0; i < NORM_OPERANDS; i++) {
        dw_tensor whole;
        assert_int_equal(op_tensor_bind(NULL, shape, NULL, NULL, &whole), DW_OK);
        const dw_format format = c->plain != DW_FORMAT_COUNT ? c->plain : shape->format;
        const int64_t cols = whole.dims[whole.rank - 1], count = i == 0 ? op_tensor_count(&whole) : cols;
        const dw_format own = i > 0 && whole.dims[0] % 2 != 0 ? DW_FORMAT_f32 : format;
        operands[i] = (operand){.memory = block_create((size_t)count * (size_t)dw_format_bits(own) / 8, 0)};
        op_tensor_init(&operands[i].dense, own, DW_SCALE_plain, i == 0 ? whole.rank : 1, i == 0 ? whole.dims : &cols, operands[i].memory.bytes);
        for (int64_t k = 0; k < count; k++) num_store(own, operands[i].memory.bytes, k, (double)num_random_normal(seed * 64 + 32 + (uint64_t)i, (uint64_t)k) + (i < 2), true);
    }
}

/* By the norm's own kernel, to a result that is created. */
static dw_status run_norm(program *p, const kernel_case *c, const chip_caps *chip, operand *operands, result *normed) {
    const dw_tensor *in[NORM_OPERANDS], *out[] = {&normed->tensor};
    op_attr items[3] = {op_set_real(OP_ATTR_eps, 1e-5)};
    int count = 1;
    if (dw_format_is_block(c->types[0].format)) items[count++] = op_set_format(OP_ATTR_to, c->types[0].format);
    if (c->plain_searches) items[count++] = op_set_bool(OP_ATTR_search, true);
    const op_attrs attrs = {count, items};
    block workspace = block_create(0, 0xff);
    for (int i = 0; i < NORM_OPERANDS; i++) in[i] = &operands[i].dense;
    kernel_run run = {.call = {p->context, op_get(c->norm), &attrs, NULL, c->norm == OP_layer_norm ? 3 : 2, in, 1, out, 0, NULL}, .pool = p->pools[0], .chip = chip};
    const dw_status status = run_on_device(p, norm_row(c), &run, run.call.n_in, operands, normed, &workspace);
    free(workspace.bytes);
    return status;
}

/* The same bits as behind the norm's kernel: of a way that does norms. */
static void run_normed(program *p, const kernel_case *c, const kernel_row *row, const kernel_run *given, const operand *operands, uint64_t seed) {
    operand norms[NORM_OPERANDS], all[KERNEL_CASE_OPERANDS];
    const dw_tensor *in[KERNEL_CASE_OPERANDS], *out[1];
    result normed, made[2] = {0};
    bool takes = true;
    if (c->norm == OP_COUNT || p->device == NULL || p->way == NULL || !kernel_way_is(p->way, KERNEL_WAY_NORMALISES)) return;
    if (dw_format_is_block(c->types[0].format) && !has_quantising(given->chip)) return;
    make_norm_operands(c, seed, norms);
    kernel_case source = *c;
    source.out[0] = &c->types[0];
    result_create(&source, 0, false, &normed);
    dw_status status = run_norm(p, c, given->chip, norms, &normed);
    memcpy(in, given->call.in, (size_t)c->n_in * sizeof *in);
    memcpy(all, operands, (size_t)c->n_in * sizeof *all);
    const kernel_norm norm = {{&norms[1].dense, c->norm == OP_layer_norm ? &norms[2].dense : NULL}, c->norm == OP_layer_norm, 1e-5};
    for (int i = 0; i < 2 && status == DW_OK; i++) {
        kernel_run run = *given;
        result_create(c, 0, false, &made[i]);
        all[0] = i == 0 ? (operand){.dense = normed.tensor, .memory = normed.memory} : norms[0];
        in[0] = &all[0].dense;
        out[0] = &made[i].tensor;
        run.call.in = in;
        run.call.out = out;
        run.constant_in = ~0u;
        if (i == 1) {
            const kernel_plain plain = {.operand = in[0], .quantises = dw_format_is_block(c->types[0].format), .searches = c->plain_searches, .norm = &norm, .saved = 1};
            kernel_run quantised = run;
            const dw_tensor *of_graph[KERNEL_CASE_OPERANDS];
            memcpy(of_graph, in, (size_t)c->n_in * sizeof *in);
            of_graph[0] = &normed.tensor;
            quantised.call.in = of_graph;
            if (!kernel_takes_plain(row, &quantised, &plain)) {       /* with less shared memory fewer rows find room */
                if (has_quantising(run.chip)) report(p, c, row, run.chip->name, seed, 1, "it does not do the norm");
                takes = false;
                break;
            }
            run.norm = &norm;
            run.quantises = plain.quantises;
            run.quantised = c->types[0].format;
            run.searches = plain.searches;
        }
        block workspace = block_create(kernel_workspace(row, &run), 0xff);
        status = run_there(p, row, &run, c->n_in, all, &made[i], &workspace);
        free(workspace.bytes);
    }
    if (status != DW_OK) report(p, c, row, given->chip->name, seed, 1, dw_context_error(p->context));
    else if (takes && memcmp(made[0].memory.bytes, made[1].memory.bytes, made[0].memory.length) != 0) report(p, c, row, given->chip->name, seed, 1, "other bits than behind the norm");
    for (int i = 0; i < 2; i++) free(made[i].memory.bytes);
    free(normed.memory.bytes);
    for (int i = 0; i < NORM_OPERANDS; i++) operand_destroy(&norms[i]);
}

static int runs_each = THREADS;   /* 1: --once */

/* Lines of few rows have the bound of the skinny kernel, which adds in fp32; Hopper's tiles add products of 8-bit floats in the tensor cores' shorter sums, as the other lines of such
 * products say (1e-3). */
static double bound_of(const program *p, const kernel_case *c) {
    const bool is_fp8 = (c->op->id == OP_matmul || c->op->id == OP_grouped_matmul) && num_info(c->types[0].format)->element == DW_FORMAT_e4m3 && num_info(c->types[0].format)->scale == DW_FORMAT_f32;
    return p->way != NULL && is_fp8 && (p->way->needs >> CHIP_wgmma & 1) != 0 && c->bound < 1e-3 ? 1e-3 : c->bound;
}

static void run_row(program *p, const kernel_case *given, const kernel_row *row, const chip_caps *level, const kernel_problem *problem, operand *operands,
                    const result *references, uint64_t seed) {
    const dw_tensor *in[KERNEL_CASE_OPERANDS] = {0}, *out[KERNEL_CASE_RESULTS];
    dw_tensor hidden;
    kernel_case bounded = *given;
    const kernel_case *c = &bounded;
    bounded.bound = bound_of(p, given);
    for (int i = 0; i < c->n_in; i++) {
        if (c->in[i] == NULL) continue;
        in[i] = operands[i].gaps.bytes != NULL && (row->strided_in >> i & 1) ? &operands[i].strided : &operands[i].dense;
    }
    char text[256];
    block packed = {0};
    bool packs = row->packs >= 0 && (c->constant >> row->packs & 1);
    if (packs) {
        kernel_packing packing;
        assert_true(row->packing(problem, in[row->packs], &packing));
        packed = block_create(packing.bytes, 0xff);
        assert_int_equal(packing.run(&packing, p->context, p->pools[1], in[row->packs], packed.bytes), DW_OK);
        if (!block_is_whole(&packed)) report(p, c, row, level->name, seed, 2, "packing wrote behind its end");
        hidden = *in[row->packs];
        hidden.data = NULL;
        hidden.scales = NULL;
        hidden.second = NULL;
        in[row->packs] = &hidden;
    }
    result results[THREADS][KERNEL_CASE_RESULTS], oracle = references[0];
    const int runs = row->in_place < 0 && p->device != NULL && device_is_simulated(p->device) ? 1 : runs_each;
    if (is_quantised(c)) quantised_oracle(p, c, row, level, in, operands, packed.bytes, &oracle);
    for (int t = 0; t < runs; t++) {
        for (int i = 0; i < c->n_out; i++) {
            result_create(c, i, row->strided_out && i == 0 && c->strided != 0 && !unwritten, &results[t][i]);
            out[i] = &results[t][i].tensor;
        }
        /* the second run works in place where it may: it has to give the same bits, too */
        const dw_tensor *given[KERNEL_CASE_OPERANDS];
        unsigned taken = 0;
        memcpy(given, in, sizeof given);
        for (int i = 0; i < c->n_out; i++) {
            if (t > 0) take_over(row, i, &results[t][i], in);
            if (kernel_in_place(row, i) >= 0) taken |= 1u << kernel_in_place(row, i);
        }
        const bool constant = runs > 1 ? t > 0 : seed % 2 == 0;
        kernel_run run = {
            .call = {p->context, c->op, &c->attrs, NULL, c->n_in, in, c->n_out, out, 0, NULL},
            .post = c->post,
            .constant_in = !constant ? 0 : ~taken,   /* nobody else writes any of them */
            .is_packed = packs,
            .packed = packed.bytes,
            .pool = p->pools[t],
            .chip = level,
            .ways = p->ways,
            .tuned = &p->tuned,
            .tuned_count = p->tuned.way != NULL,
            .user = row->user,
        };
        block workspace = block_create(kernel_workspace(row, &run), 0xff);
        run.workspace = workspace.bytes;
        p->runs++;
        dw_status status = p->device ? run_there(p, row, &run, c->n_in, operands, results[t], &workspace) : kernel_execute(row, &run);
        if (status != DW_OK && !is_refused(p, row, &run, status)) report(p, c, row, level->name, seed, t + 1, dw_context_error(p->context));
        if (!block_is_whole(&workspace)) report(p, c, row, level->name, seed, t + 1, "the workspace was overrun");
        for (int i = 0; i < c->n_out && status == DW_OK; i++) {
            if (!block_is_whole(&results[t][i].memory) || !gaps_are_whole(&results[t][i])) report(p, c, row, level->name, seed, t + 1, "wrote outside of its result");
            if (differs(c, &results[t][i], i == 0 ? &oracle : &references[i], text, sizeof text)) report(p, c, row, level->name, seed, t + 1, text);
            if (t > 0 && !unwritten && memcmp(results[t][i].memory.bytes, results[0][i].memory.bytes, results[0][i].memory.length) != 0) {
                report(p, c, row, level->name, seed, t + 1, "other bits than with one thread");
            }
        }
        if (t == 0 && status == DW_OK) run_normed(p, c, row, &run, operands, seed);
        if (t == 0 && status == DW_OK) run_plain(p, c, row, &run, operands, &results[0][0], seed);
        if (bits && t == 0 && status == DW_OK) print_bits(c, row, level, seed, results[0]);
        free(workspace.bytes);
        memcpy(in, given, sizeof given);
    }
    for (int t = 0; t < runs; t++) {
        for (int i = 0; i < c->n_out; i++) free(results[t][i].memory.bytes);
    }
    if (is_quantised(c)) free(oracle.memory.bytes);
    free(packed.bytes);
}

static uint64_t seeds = SEEDS;
static const char *kernel_name;   /* of --kernel */

/* Whether --kernel names a row of another op. */
static bool is_of_another_op(const kernel_case *c) {
    for (int i = 0; kernel_name != NULL && i < kernel_count(); i++)
        if (kernel_is_named(kernel_at(i), kernel_name)) return kernel_at(i)->op != c->op->id;
    return false;
}

/* Does a way take the line's sizes, which are constants, as the row would lay operands out? */
static bool takes_sizes(program *p, const kernel_problem *problem) {
    static const int64_t no_symbols[1] = {0};
    kernel_problem sized = *problem;
    kernel_typical typical;
    text why;
    sized.symbols = no_symbols;
    if (p->way == NULL || !kernel_at_typical(&sized, p->ways, &typical)) return true;
    text_init(&why, p->context);
    const bool takes = kernel_size_refusal(p->way, &typical.run, &why) == NULL;
    text_free(&why);
    return takes;
}

/* GPUs' rows of norms that keep rows in registers or shared memory add squares in fp32 (kernels/norm/README.md): what overflows there, or is lost, is not theirs. */
static bool loses_squares(const kernel_row *row, const kernel_case *c) {
    static const char *const narrow[] = {"cuda_layer_norm_rows", "cuda_rms_norm_rows"};
    const kernel_range *range = &c->ranges[0];
    const double largest = fmax(fabs(range->low), fabs(range->high));
    for (size_t i = 0; range->given && i < COUNT_OF(narrow); i++)
        if (strcmp(row->name, narrow[i]) == 0) return largest > 0x1p60 || (largest < 0x1p-45 && op_attr_real(&c->attrs, OP_ATTR_eps) < 0x1p-100);
    return false;
}

/* How many variants a line names. */
static int variants_of(const kernel_case *c) {
    int count = c->variants != NULL;
    for (const char *at = c->variants; at != NULL && *at != '\0'; at++) count += *at == ',';
    return count;
}

/* Each variant that the line names, by itself; with --kernel all of them have to be there, if it has variants at all. */
static void run_variants(program *p, const kernel_case *c, const kernel_row *row, const chip_caps *level, const kernel_problem *problem, operand *operands, const result *references, uint64_t seed) {
    const char *name;
    int ran = 0;
    for (int k = 0; p->way != NULL && (name = kernel_way_variant(p->way, problem, k)) != NULL; k++) {
        if (!kernel_case_has_variant(c, name)) continue;
        p->tuned = (kernel_tuned){INT64_MAX, p->way, k};
        run_row(p, c, row, level, problem, operands, references, seed);
        ran++;
    }
    const bool has_some = p->way != NULL && kernel_way_variant(p->way, problem, 0) != NULL;
    if (kernel_name != NULL && has_some && ran < variants_of(c)) report(p, c, row, level->name, seed, 1, "a variant that the line names does not run it");
}

/* Does any way that the device has know one of the line's variants? Of others the reference need not be computed. */
static bool has_variants(const program *p, const kernel_case *c) {
    for (int l = 0; l < p->level_count; l++) {
        const kernel_problem problem = {.context = p->context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = c->out, .dims = c->dims,
                                        .chip = &p->levels[l]};
        for (int i = 0; i < kernel_count(); i++) {
            const kernel_row *row = kernel_at(i);
            for (int w = 0; row->op == c->op->id && row->device == p->levels[l].kind && w < row->way_count; w++) {
                const char *name;
                if ((row->ways[w].needs & ~p->levels[l].features) != 0) continue;
                for (int k = 0; (name = kernel_way_variant(&row->ways[w], &problem, k)) != NULL; k++)
                    if (kernel_case_has_variant(c, name)) return true;
            }
        }
    }
    return false;
}

/* Does row i this way, or the row itself, take the line? Then p says which. */
static bool takes(program *p, int i, const kernel_way *way, const kernel_problem *problem) {
    const kernel_row *row = kernel_at(i);
    const char *name = way != NULL ? way->name : row->name;
    text why;
    if (kernel_name != NULL && strcmp(name, kernel_name) != 0) return false;
    text_init(&why, p->context);
    const bool accepted = kernel_refusal(row, way, problem, &why) == NULL;
    text_free(&why);
    if (!accepted) return false;
    p->way = way;
    p->ways = way != NULL ? UINT32_C(1) << (way - row->ways) : kernel_accepted_ways(row, problem);
    return takes_sizes(p, problem);
}

/* Lines of many operations are there for tiles. On simulated devices they are not run by one thread a result where another way takes them, nor by ways that the best one's estimate beats by far:
 * such a way is a loop whatever the sizes, which smaller lines hold, and the simulator takes many times longer for it. By name each way runs all its lines. */
#define LARGE_FLOPS 2e7
#define SLOW_TIMES 1.5

static bool is_left_to_smaller(const program *p, const kernel_row *row, const kernel_way *way, const kernel_problem *problem) {
    static const int64_t no_symbols[1] = {0};
    kernel_problem sized = *problem;
    kernel_typical typical;
    kernel_bound bound;
    if (kernel_name != NULL || way == NULL || p->device == NULL || !device_is_simulated(p->device)) return false;
    sized.symbols = no_symbols;
    if (!kernel_at_typical(&sized, p->ways, &typical)) return false;
    kernel_bound_of(&typical.run, 0, &bound);
    if (bound.work.flops <= LARGE_FLOPS) return false;
    bool others = false;
    text why;
    text_init(&why, p->context);
    for (int k = 0; k < row->way_count && !others; k++)
        others = row->ways[k].needs != 0 && kernel_refusal(row, &row->ways[k], problem, &why) == NULL && kernel_size_refusal(&row->ways[k], &typical.run, &why) == NULL;
    text_free(&why);
    return (way->needs == 0 && others) || kernel_seconds(row, p->ways, &sized) > SLOW_TIMES * kernel_seconds(row, kernel_accepted_ways(row, problem), &sized);
}

/* true: it runs the line. */
static bool run_kernel(program *p, const kernel_case *c, int i, const kernel_way *way, const chip_caps *level, const kernel_problem *problem, operand *operands, const result *references,
                       uint64_t seed) {
    const kernel_row *row = kernel_at(i);
    const char *name = way != NULL ? way->name : row->name;
    if (!takes(p, i, way, problem)) return false;
    if (c->special != 0 && way != NULL && (way->needs >> CHIP_cudnn & 1) != 0) {   /* it multiplies hidden keys by weights of 0 */
        if (seed == 1) print_message("%s:%d: %s: not run, a NaN among hidden values becomes one among its results\n", c->source, c->number, name);
        return false;
    }
    if (loses_squares(row, c)) {
        if (seed == 1) print_message("%s:%d: %s: not run, squares leave fp32's range\n", c->source, c->number, name);
        return false;
    }
    if (is_left_to_smaller(p, row, way, problem)) {
        p->left++;
        return false;
    }
    p->reached[i] = true;
    if (way != NULL) p->ways_reached[i] |= p->ways;
    p->tuned.way = NULL;
    if (c->variants == NULL) run_row(p, c, row, level, problem, operands, references, seed);
    else run_variants(p, c, row, level, problem, operands, references, seed);
    p->tuned.way = NULL;
    return true;
}

/* A way that stands for all rows that name it. */
static bool is_own_way(const kernel_row *row, const kernel_way *way) { return kernel_find_way(row, way->name) == way && kernel_way_is(way, KERNEL_WAY_STRIDES) == (row->strided_in != 0); }

static bool is_run_whole(const kernel_row *row) { return row->way_count == 0 || (kernel_name != NULL && strcmp(row->name, kernel_name) == 0); }

static kernel_problem problem_of(program *p, const kernel_case *c, int level) {
    return (kernel_problem){.context = p->context, .op = c->op, .attrs = &c->attrs, .post = c->post, .n_in = c->n_in, .n_out = c->n_out, .in = c->in, .out = c->out, .constant_in = c->constant,
                            .dims = c->dims, .symbols = NULL, .chip = &p->levels[level]};
}

/* Does a kernel of an H200 run what the CPU has the reference alone for? */
static bool is_for_gpus(program *p, const kernel_case *c) {
    chip_caps chip;
    kernel_problem problem = problem_of(p, c, 0);
    bool taken = false;
    assert_int_equal(chip_find(p->context, "h200", 0, &chip), DW_OK);
    problem.chip = &chip;
    for (int i = 0; i < kernel_count() && !taken; i++) {
        text why;
        text_init(&why, p->context);
        taken = kernel_at(i)->op == c->op->id && kernel_at(i)->device == CHIP_GPU && kernel_refusal(kernel_at(i), NULL, &problem, &why) == NULL;
        text_free(&why);
    }
    return taken;
}

/* Is the line one of the kernel that is asked for? Else nothing need be computed of it. */
static bool is_wanted(program *p, const kernel_case *c) {
    bool wanted = kernel_name == NULL;
    for (int l = 0; l < p->level_count && !wanted; l++) {
        const kernel_problem problem = problem_of(p, c, l);
        for (int i = 0; i < kernel_count() && !wanted; i++) {
            const kernel_row *row = kernel_at(i);
            if (row->op != c->op->id || row->reference || row->device != p->levels[l].kind) continue;
            if (is_run_whole(row)) wanted = takes(p, i, NULL, &problem);
            for (int k = 0; k < row->way_count && !is_run_whole(row) && !wanted; k++) wanted = is_own_way(row, &row->ways[k]) && takes(p, i, &row->ways[k], &problem);
        }
    }
    return wanted;
}

static bool run_ways(program *p, const kernel_case *c, int i, const chip_caps *level, const kernel_problem *problem, operand *operands, const result *references, uint64_t seed) {
    const kernel_row *row = kernel_at(i);
    bool any = false;
    for (int k = 0; k < row->way_count; k++) {
        const kernel_way *way = &row->ways[k];
        if (is_own_way(row, way)) any |= run_kernel(p, c, i, way, level, problem, operands, references, seed);
    }
    return any;
}

/* ---- collectives ---- */

/* A line of a collective: all ranks run the row at the same time, with operands of their own, and each has to have its reference's bits. */
typedef struct world {
    program *p;
    const kernel_case *c;
    const kernel_row *row;
    const chip_caps *level;
    const char *mesh;
    int count, ranks;             /* of all; of those that take part together */
    uint64_t seed;
    int threads;
    bool carried;                 /* by a caller's engine; else by memory */
    const dw_tensor *operands;    /* by rank */
    result *references, *results;
} world;

/* Ranks that take part together are so far apart. */
static int apart_of(const world *w) { return w->count / w->ranks; }

static void run_rank(int rank, dw_context *context, dw_comm *comm, void *user) {
    const world *w = user;
    const dw_tensor *in = &w->operands[rank], *out = &w->results[rank].tensor;
    pool *pool;
    rank_ok(context, pool_create(context, w->threads, &pool));
    kernel_run run = {.call = {.context = context, .op = w->c->op, .attrs = &w->c->attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &out}, .pool = pool, .comm = comm_kernels(comm), .step = 1,
                      .chip = w->level};
    for (int turn = 0; turn < 2; turn++) {   /* again, over what the first run left */
        block workspace = block_create(kernel_workspace(w->row, &run), 0xff);
        run.workspace = workspace.bytes;
        rank_ok(context, kernel_execute(w->row, &run));
        rank_assert(context, block_is_whole(&workspace));
        free(workspace.bytes);
    }
    pool_destroy(pool);
}

static void check_rank(const world *w, int rank) {
    const result *got = &w->results[rank], *want = &w->references[rank];
    char text[256], what[300];
    if (!block_is_whole(&got->memory)) report(w->p, w->c, w->row, w->level->name, w->seed, w->threads, "wrote outside of its result");
    if (!differs(w->c, got, want, text, sizeof text) && (w->c->special != 0 || memcmp(got->memory.bytes, want->memory.bytes, want->memory.length) == 0)) return;
    snprintf(what, sizeof what, "rank %d of %d%s: %s", rank, w->count, w->carried ? ", by an engine" : "", differs(w->c, got, want, text, sizeof text) ? text : "other bits than the reference's");
    report(w->p, w->c, w->row, w->level->name, w->seed, w->threads, what);
}

static void reference_of_rank(const world *w, int rank) {
    const dw_tensor *in = &w->operands[rank], *out = &w->references[rank].tensor;
    dw_tensor theirs[RANKS_MOST];
    const op_group group = {rank / apart_of(w), w->ranks, theirs};
    for (int i = 0; i < w->ranks; i++) theirs[i] = w->operands[rank % apart_of(w) + i * apart_of(w)];
    const op_call call = {.context = w->p->context, .op = w->c->op, .attrs = &w->c->attrs, .n_in = 1, .in = &in, .n_out = 1, .out = &out, .group = &group};
    if (w->c->op->reference(&call) != DW_OK) fail_msg("%s:%d: the reference: %s", w->c->source, w->c->number, dw_context_error(w->p->context));
}

static void run_world(world *w) {
    operand operands[RANKS_MOST];
    dw_tensor dense[RANKS_MOST];
    result references[RANKS_MOST], results[RANKS_MOST];
    w->operands = dense;
    w->references = references;
    w->results = results;
    for (int i = 0; i < w->count; i++) {
        operand_create(w->c, 0, w->seed * RANKS_MOST + (uint64_t)i, &operands[i]);
        dense[i] = operands[i].dense;
        result_create(w->c, 0, false, &references[i]);
        result_create(w->c, 0, false, &results[i]);
    }
    for (int i = 0; i < w->count; i++) reference_of_rank(w, i);
    w->p->runs++;
    dw_collectives engines[RANKS_MOST];
    wire *wire = wire_create(w->mesh, 0, 0, DW_OK, engines);
    ranks_run(&(ranks){.world = w->count, .mesh = w->mesh, .engines = w->carried ? engines : NULL, .user = w}, run_rank);
    wire_destroy(wire);
    for (int i = 0; i < w->count; i++) {
        check_rank(w, i);
        operand_destroy(&operands[i]);
        free(references[i].memory.bytes);
        free(results[i].memory.bytes);
    }
}

static void run_worlds(world *w) {
    for (w->seed = 1; w->seed <= seeds; w->seed++)
        for (w->threads = 1; w->threads <= runs_each; w->threads++) {
            w->carried = (w->seed + (uint64_t)w->threads) % 2 != 0;
            run_world(w);
        }
}

static void run_collective(program *p, const kernel_case *c) {
    char mesh[64];
    world w = {.p = p, .c = c, .mesh = mesh, .ranks = (int)op_attr_int(&c->attrs, OP_ATTR_ranks)};
    w.count = c->world > 0 ? c->world : w.ranks;
    if (p->device != NULL) return;   /* of no device yet: plans refuse it by name */
    if (w.count > RANKS_MOST || w.count % w.ranks != 0) fail_msg("%s:%d: a world of %d ranks, of which %d take part", c->source, c->number, w.count, w.ranks);
    snprintf(mesh, sizeof mesh, "%s=%d,others=%d", op_attr_text(&c->attrs, OP_ATTR_over), w.ranks, apart_of(&w));
    for (int l = 0; l < p->level_count; l++) {
        const kernel_problem problem = problem_of(p, c, l);
        w.level = &p->levels[l];
        for (int i = 0; i < kernel_count(); i++) {
            if (kernel_at(i)->op != c->op->id || kernel_at(i)->reference || kernel_at(i)->device != CHIP_CPU || !takes(p, i, NULL, &problem)) continue;
            p->reached[i] = true;
            w.row = kernel_at(i);
            run_worlds(&w);
        }
    }
}

/* Lines of many operations, which are there for tiles of GPUs, take one seed on the CPU. */
static void run_case(program *p, const kernel_case *c) {
    bool any = false, is_large = false;
    if (op_has(c->op->id, OP_TRAIT_COLLECTIVE)) {
        run_collective(p, c);
        return;
    }
    if (is_of_another_op(c) || !is_wanted(p, c) || (c->variants != NULL && kernel_name == NULL && !has_variants(p, c))) return;
    for (uint64_t seed = 1; seed <= seeds && !(is_large && seed > 1 && p->device == NULL); seed++) {
        operand operands[KERNEL_CASE_OPERANDS];
        result references[KERNEL_CASE_RESULTS];
        const dw_tensor *in[KERNEL_CASE_OPERANDS] = {0}, *out[KERNEL_CASE_RESULTS];
        for (int i = 0; i < c->n_in; i++) {
            operand_create(c, i, seed, &operands[i]);
            if (c->in[i] != NULL) in[i] = &operands[i].dense;
        }
        for (int i = 0; i < c->n_out; i++) {
            result_create(c, i, false, &references[i]);
            out[i] = &references[i].tensor;
        }
        op_call call = {.context = p->context, .op = c->op, .attrs = &c->attrs, .n_in = c->n_in, .in = in, .n_out = c->n_out, .out = out};
        op_work work;
        call.op->work(&call, &work);
        is_large = work.flops > LARGE_FLOPS;
        lost = evaluation_lost(&call);
        if (c->op->reference(&call) != DW_OK) fail_msg("%s:%d: the reference: %s", c->source, c->number, dw_context_error(p->context));
        if (is_quantised(c)) {
            result oracle;
            char text[256];
            quantised_oracle(p, c, NULL, NULL, in, operands, NULL, &oracle);
            if (differs(c, &references[0], &oracle, text, sizeof text)) fail_msg("%s:%d: the reference: %s", c->source, c->number, text);
            free(oracle.memory.bytes);
        }
        for (int l = 0; l < p->level_count; l++) {
            const kernel_problem problem = problem_of(p, c, l);
            for (int i = 0; i < kernel_count(); i++) {
                const kernel_row *row = kernel_at(i);
                if (row->op != c->op->id || row->reference || row->device != p->levels[l].kind) continue;
                if (is_run_whole(row)) any |= run_kernel(p, c, i, NULL, &p->levels[l], &problem, operands, references, seed);
                else any |= run_ways(p, c, i, &p->levels[l], &problem, operands, references, seed);
            }
        }
        for (int i = 0; i < c->n_in; i++) operand_destroy(&operands[i]);
        for (int i = 0; i < c->n_out; i++) free(references[i].memory.bytes);
    }
    if (!any && kernel_name != NULL && c->variants != NULL) fail_msg("%s:%d: %s\n    %s does not run it", c->source, c->number, c->line, kernel_name);
    if (!any && kernel_name != NULL) return;
    if (!any && p->device != NULL) print_message("%s:%d: %s\n    no kernel of this device takes it\n", c->source, c->number, c->line);
    if (!any && p->device == NULL && !is_for_gpus(p, c)) {
        p->failures++;
        print_error("%s:%d: %s\n    no kernel takes it\n", c->source, c->number, c->line);
    }
}

/* ---- files ---- */

static bool times;   /* --times */
static int64_t part, parts = 1;   /* of --part */

static void run_line(program *p, const char *source, int number, const char *line) {
    const clock_t begin = clock();
    arena arena;
    arena_init(&arena, p->context);
    dim_table *dims;
    assert_int_equal(dim_table_create(p->context, &dims), DW_OK);
    kernel_case c;
    if (kernel_case_parse(&arena, dims, source, number, line, &c) != DW_OK) fail_msg("%s", dw_context_error(p->context));
    run_case(p, &c);
    dim_table_destroy(dims);
    arena_free(&arena);
    if (times) printf("%8.3f s %s:%d: %s\n", (double)(clock() - begin) / CLOCKS_PER_SEC, source, number, line);
}

typedef struct file_run { program *p; const char *source; } file_run;

static dw_status run_one(void *argument, int number, const char *line) {
    file_run *run = argument;
    if (run->p->lines++ % parts == part) run_line(run->p, run->source, number, line);
    return DW_OK;
}

static void run_file(program *p, const char *path) {
    file_run run = {p, strrchr(path, '/') + 1};
    if (lines_read_file(path, run_one, &run) != DW_OK) fail_msg("%s cannot be read", path);
}

static const char *device_name;   /* of --device */

static void program_create(program *p) {
    *p = (program){0};
    assert_int_equal(dw_context_create(NULL, &p->context), DW_OK);
    for (int t = 0; t < THREADS; t++) assert_int_equal(pool_create(p->context, t + 1, &p->pools[t]), DW_OK);
    if (device_name != NULL) {
        if (device_open(p->context, device_name, &p->device) != DW_OK) fail_msg("%s", dw_context_error(p->context));
        p->levels[p->level_count++] = p->device->caps;
    }
    for (int i = 0; i < chip_count() && device_name == NULL; i++) {
        chip_caps caps;
        chip_row_caps(i, 1, &caps);
        if (caps.kind != CHIP_CPU || p->level_count == (int)COUNT_OF(p->levels)) continue;
        if (device_probe_cpu(p->context, caps.name + strlen("cpu-"), 1, &caps) == DW_OK) p->levels[p->level_count++] = caps;
        else print_message("not run: level %s (%s)\n", caps.name, dw_context_error(p->context));
    }
    p->reached = calloc((size_t)kernel_count(), sizeof *p->reached);
    p->ways_reached = calloc((size_t)kernel_count(), sizeof *p->ways_reached);
}

static void program_destroy(program *p) {
    free(p->reached);
    free(p->ways_reached);
    device_close(p->device);
    for (int t = 0; t < THREADS; t++) pool_destroy(p->pools[t]);
    dw_context_destroy(p->context);
}

static void run_all_files(program *p) {
    struct dirent **entries;
    int count = scandir(TEST_SOURCE_DIR "/tests/conform", &entries, NULL, alphasort);   /* in an order, so that parts are the same everywhere */
    assert_true(count > 0);
    for (int i = 0; i < count; i++) {
        char path[LINE_BYTES];
        size_t length = strlen(entries[i]->d_name);
        snprintf(path, sizeof path, "%s/tests/conform/%s", TEST_SOURCE_DIR, entries[i]->d_name);
        if (length >= 4 && strcmp(entries[i]->d_name + length - 4, ".txt") == 0) run_file(p, path);
        free(entries[i]);
    }
    free(entries);
}

static void check_one(program *p, const char *name, uint64_t needs, bool reached) {
    if (reached) return;
    if ((needs & ~p->levels[0].features) != 0) {
        print_message("not run: %s (this machine lacks what it needs)\n", name);
        return;
    }
    p->failures++;
    print_error("%s: no line of tests/conform reaches it\n", name);
}

static void check_reached(program *p) {
    for (int i = 0; i < kernel_count(); i++) {
        const kernel_row *row = kernel_at(i);
        if (row->reference || row->device != p->levels[0].kind) continue;
        if (row->way_count == 0) check_one(p, row->name, row->needs, p->reached[i]);
        for (int k = 0; k < row->way_count; k++)
            if (kernel_way_is(&row->ways[k], KERNEL_WAY_STRIDES) == (row->strided_in != 0)) check_one(p, row->ways[k].name, row->ways[k].needs, (p->ways_reached[i] >> k & 1) != 0);
    }
}

static void every_kernel_conforms(void **state) {
    (void)state;
    program p;
    program_create(&p);
    run_all_files(&p);
    if (parts == 1 && kernel_name == NULL) check_reached(&p);
    print_message("%lld runs\n", (long long)p.runs);
    if (p.left > 0) print_message("%lld runs of slow ways left to smaller lines\n", (long long)p.left);
    if (kernel_name != NULL && p.runs == 0) fail_msg("no line of tests/conform runs the kernel '%s' here", kernel_name);
    int64_t failures = p.failures;
    program_destroy(&p);
    assert_int_equal(failures, 0);
}

/* The files and the words of a line. */
static int run_given(int count, char **given) {
    program p;
    program_create(&p);
    char line[LINE_BYTES] = "";
    for (int i = 0; i < count; i++) {
        if (strstr(given[i], ".txt") != NULL || strstr(given[i], ".list") != NULL) run_file(&p, given[i]);
        else snprintf(line + strlen(line), sizeof line - strlen(line), "%s%s", line[0] != '\0' ? " " : "", given[i]);
    }
    if (line[0] != '\0') run_line(&p, "line", 1, line);
    printf("%lld runs, %lld failures\n", (long long)p.runs, (long long)p.failures);
    int status = p.failures > 0 || (kernel_name != NULL && p.runs == 0);
    program_destroy(&p);
    return status;
}

static bool read_part(const char *text) {
    char *end;
    part = strtoll(text, &end, 10);
    parts = *end == '/' ? strtoll(end + 1, &end, 10) : 0;
    return *end == '\0' && part >= 0 && part < parts;
}

/* The options in front; the index of what follows them, or -1. */
static int read_options(int argc, char **argv) {
    int i = 1;
    for (; i < argc && strncmp(argv[i], "--", 2) == 0; i++) {
        const char *name = argv[i] + 2, *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(name, "once") == 0) runs_each = 1;
        else if (strcmp(name, "times") == 0) times = true;
        else if (strcmp(name, "bits") == 0) bits = true;
        else if (strcmp(name, "unwritten") == 0) unwritten = true;
        else if (value == NULL) return -1;
        else if (strcmp(name, "device") == 0) device_name = argv[++i];
        else if (strcmp(name, "kernel") == 0) kernel_name = argv[++i];
        else if (strcmp(name, "seeds") == 0) seeds = strtoull(argv[++i], NULL, 10);
        else if (strcmp(name, "part") != 0 || !read_part(argv[++i])) return -1;
    }
    return i;
}

int main(int argc, char **argv) {
    int first = read_options(argc, argv);
    if (first < 0) {
        fprintf(stderr, "usage: test_conform_kernels [--device D] [--kernel NAME] [--part I/N] [--seeds N] [--once] [--times] [--bits] [--unwritten] [FILE.. | OP OPERANDS..]\n");
        return 2;
    }
    if (first < argc) return run_given(argc - first, argv + first);
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_kernel_conforms)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
