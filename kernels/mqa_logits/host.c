/* What the host halves of mqa_logits on GPUs share: filling in arguments. Pure: knows no driver. */
#include "kernels/mqa_logits/host.h"

#include "kernels/gpu/host/host.h"

/* An operand that may be absent; -> is it there? */
static int32_t take(kernel_launch *launch, const kernel_run *run, int index, cuda_array *array, int64_t *strides) {
    const dw_tensor *x = kernel_operand(run, index);
    if (x == NULL) return 0;
    cuda_take_array(launch, run, index, array);
    for (int axis = 0; axis < x->rank; axis++) strides[axis] = x->strides[axis];
    return 1;
}

void mqa_take(kernel_launch *launch, const kernel_run *run, mqa_arguments *arguments) {
    const op_mqa_view view = op_mqa_view_of(&run->call);
    const dw_tensor *q = run->call.in[MQA_Q];
    take(launch, run, MQA_WEIGHTS, &arguments->weights, arguments->weight_strides);
    take(launch, run, KERNEL_RESULT, &arguments->out, arguments->out_strides);
    arguments->has_factor = take(launch, run, MQA_FACTOR, &arguments->factor, arguments->factor_strides);
    arguments->has_start = take(launch, run, MQA_START, &arguments->start, arguments->start_strides);
    arguments->has_end = take(launch, run, MQA_END, &arguments->end, arguments->end_strides);
    arguments->has_table = take(launch, run, MQA_TABLE, &arguments->table, arguments->table_strides);
    arguments->batches = q->dims[0];
    arguments->queries = q->dims[1];
    arguments->heads = q->dims[2];
    arguments->width = q->dims[3];
    arguments->keys = view.keys;
    arguments->page = view.page;
    arguments->pages = view.pages;
    arguments->scale = (float)view.scale;
    cuda_take_fault(launch, &arguments->fault);
}

/* ---- kernels by tiles ---- */

enum { LEAST_CHUNK = 512, MOST_CHUNKS = 256 };

mqa_cut mqa_cut_of(const kernel_run *run, int64_t queries, int64_t block, double block_s, double start_s) {
    const dw_tensor *q = run->call.in[MQA_Q];
    const int64_t keys = run->call.out[0]->dims[2];
    mqa_cut best = {.seconds = 0};
    for (int64_t parts = 1; parts <= MOST_CHUNKS; parts++) {
        mqa_cut cut = {.tiles = base_ceil_div(q->dims[1], queries), .chunk = base_ceil_div(base_ceil_div(keys, parts), block) * block};
        if (parts > 1 && cut.chunk < LEAST_CHUNK) break;
        cut.chunks = cut.chunk > 0 ? base_ceil_div(keys, cut.chunk) : 0;
        cut.items = cut.tiles * cut.chunks * q->dims[0];
        cut.seconds = (double)base_ceil_div(cut.items, run->chip->units) * (start_s + (double)(cut.chunk / block) * block_s);
        if (parts == 1 || cut.seconds < best.seconds) best = cut;
    }
    return best;
}

/* As bytes: operands in blocks lie as a whole. */
static dw_tensor as_bytes(const dw_tensor *x) {
    dw_tensor bytes = *x;
    if (!dw_format_is_block(x->format)) return bytes;
    bytes.dims[x->rank - 1] = (int64_t)num_row_bytes(x->format, x->dims[x->rank - 1]);
    bytes.strides[x->rank - 1] = 1;
    for (int axis = x->rank - 2; axis >= 0; axis--) bytes.strides[axis] = bytes.strides[axis + 1] * bytes.dims[axis + 1];
    return bytes;
}

/* Rows side by side, and steps of other axes in multiples of 16 bytes. */
static bool has_map(const dw_tensor *x) {
    if (x->dims[x->rank - 1] > 1 && x->strides[x->rank - 1] != 1) return false;
    for (int i = 0; i < x->rank - 1; i++)
        if (x->dims[i] > 1 && (x->strides[i] <= 0 || x->strides[i] % 16 != 0)) return false;
    return cuda_lies_at_16(x->data);
}

const char *mqa_lacks_maps(const kernel_run *run, int64_t block, text *why) {
    const dw_tensor *k = run->call.in[MQA_K], q_bytes = as_bytes(run->call.in[MQA_Q]), k_bytes = as_bytes(k);
    if (!has_map(&q_bytes) || !has_map(&k_bytes)) return kernel_because(why, "q or k does not lie in pieces of 16 bytes");
    if (op_operand(&run->call, MQA_TABLE) == NULL || (k->dims[1] > 0 && k->dims[1] % block == 0)) return NULL;
    return kernel_because(why, "pages hold %lld keys; it takes multiples of %lld", (long long)k->dims[1], (long long)block);
}

const char *mqa_counts_refusal(const kernel_run *run, int64_t items, text *why) {
    const dw_tensor *q = run->call.in[MQA_Q], *k = run->call.in[MQA_K];
    const int64_t keys = run->call.out[0]->dims[2];
    if (keys == 0 || k->dims[0] == 0) return kernel_because(why, "there are no keys");
    if (keys <= INT32_MAX / 2 && k->dims[0] <= INT32_MAX / 2 && q->dims[1] <= INT32_MAX / 2 && items <= INT32_MAX / 2) return NULL;
    return kernel_because(why, "%lld keys, or %lld tiles of them, are more than it counts to", (long long)keys, (long long)items);
}

/* An axis of size 1 has no step, and one that is no multiple of 16 bytes is none. */
static void take_axis(kernel_map *map, int axis, const dw_tensor *x, int of, uint32_t box) {
    map->dims[axis] = x->dims[of] > 0 ? (uint64_t)x->dims[of] : 1;
    map->box[axis] = box;
    if (axis > 0) map->strides[axis - 1] = x->dims[of] > 1 ? (uint64_t)x->strides[of] : 16;
}

void mqa_take_maps(kernel_launch *launch, const kernel_run *run, const void *q, const void *k, int width, int heads, int queries, int block) {
    const uint32_t boxes[2][4] = {{(uint32_t)width, (uint32_t)heads, (uint32_t)queries, 1}, {(uint32_t)width, (uint32_t)block, 1}};
    for (int i = 0; i < 2; i++) {
        const dw_tensor x = as_bytes(run->call.in[i == 0 ? MQA_Q : MQA_K]);
        kernel_map *map = &launch->maps[launch->map_count];
        *map = (kernel_map){.operand = (uint16_t)(i == 0 ? MQA_Q : MQA_K), .type = KERNEL_MAP_BYTE, .rank = x.rank, .swizzle = width == 128 ? KERNEL_SWIZZLE_128 : KERNEL_SWIZZLE_64,
                            .promotion = KERNEL_PROMOTION_256};
        for (int axis = 0; axis < x.rank; axis++) take_axis(map, axis, &x, x.rank - 1 - axis, boxes[i][axis]);
        cuda_slot(launch, KERNEL_SLOT_MAP, launch->map_count++, i == 0 ? q : k, 0);
    }
}
