/* One op on a device. Does not measure, and compares nothing: bench_op.c and tests/conform do. */
#include "lab/op_case.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static dw_status alloc_memory(op_case *o, size_t bytes, void **memory) {
    o->memory = arena_grow(&o->arena, o->memory, o->memory_count, &o->memory_capacity, sizeof *o->memory);
    if (o->memory == NULL) return DW_NO_MEMORY;
    TRY(o->device->calls->alloc(o->device, bytes + 2 * ENGINE_ALIGN, memory));
    o->memory[o->memory_count++] = (struct op_memory){*memory, bytes + 2 * ENGINE_ALIGN};
    return DW_OK;
}

static dw_status place_here(op_case *o, const op_type *type, dw_tensor *tensor) {
    uint64_t bytes;
    TRY(op_tensor_bind(o->context, type, NULL, NULL, tensor));
    TRY(dw_tensor_bytes(o->context, tensor, &bytes));
    uint8_t *memory = arena_new(&o->arena, (size_t)bytes + 2 * ENGINE_ALIGN, 1);
    if (memory == NULL) return DW_NO_MEMORY;
    return dw_tensor_place(o->context, tensor, (void *)base_align_up((uintptr_t)memory, ENGINE_ALIGN));
}

static dw_status fill(op_case *o, int operand) {
    const op_type *type = o->c.in[operand];
    dw_tensor *tensor = &o->host[operand], source;
    const kernel_range *range = &o->c.ranges[operand];
    const bool block = dw_format_is_block(type->format);
    op_type plain = *type;
    plain.format = DW_FORMAT_f32;
    plain.scale_layout = DW_SCALE_plain;
    TRY(place_here(o, type, tensor));
    if (block) TRY(place_here(o, &plain, &source));
    else source = *tensor;
    for (int64_t i = 0, count = op_tensor_count(&source); i < count; i++) {
        double value = (double)num_random_normal((uint64_t)operand, (uint64_t)i);
        if (range->given) value = range->low + (double)num_random_uniform((uint64_t)operand, (uint64_t)i) * (range->high - range->low);
        if (range->given && (o->c.ascending >> operand & 1) != 0) value = range->low + (range->high - range->low) * (double)(i + 1) / (double)count;
        kernel_case_element(&o->c, operand, 1, i, source.rank > 0 ? source.dims[source.rank - 1] : 1, &value);
        num_store(source.format, source.data, i, value, isfinite(value) != 0);
    }
    if (!block) return DW_OK;
    text attributes;
    text_init(&attributes, o->context);
    text_printf(&attributes, "to=%s", dw_format_name(type->format));
    const dw_tensor *from[] = {&source}, *to[] = {tensor};
    dw_status status = dw_op_run(o->context, "quantize", text_string(&attributes), NULL, 1, from, 1, to);
    text_free(&attributes);
    return status;
}

static dw_status place_there(op_case *o, const op_type *type, dw_tensor *tensor, size_t *bytes) {
    num_parts parts;
    void *memory;
    TRY(op_tensor_bind(o->context, type, NULL, NULL, tensor));
    if (!num_layout(tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, &parts)) return base_fail(o->context, DW_LIMIT, "the bytes of an operand overflow");
    TRY(alloc_memory(o, parts.total_bytes, &memory));
    *bytes = parts.total_bytes;
    op_tensor_init(tensor, tensor->format, tensor->scale_layout, tensor->rank, tensor->dims, memory);
    return DW_OK;
}

static dw_status make_operands(op_case *o) {
    size_t bytes;
    for (int i = 0; i < o->c.n_in; i++) {
        if (o->c.in[i] == NULL) continue;
        TRY(fill(o, i));
        TRY(place_there(o, o->c.in[i], &o->in[i], &bytes));
        TRY(o->device->calls->write(o->device, o->in[i].data, o->host[i].data, bytes));
        o->ins[i] = &o->in[i];
    }
    for (int i = 0; i < o->c.n_out; i++) {
        TRY(place_there(o, o->c.out[i], &o->out[i], &bytes));
        o->outs[i] = &o->out[i];
    }
    return o->device->calls->synchronize(o->device);
}

/* The kernel that a list OP=KERNEL,.. names for this op; NULL: none. */
static dw_status find_named(op_case *o, const char *list, const char **name) {
    const size_t length = strlen(o->c.op->name);
    *name = NULL;
    for (const char *at = list; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        const char *end = at + strcspn(at, ",");
        if (strncmp(at, o->c.op->name, length) != 0 || at[length] != '=') continue;
        at += length + 1;
        *name = arena_printf(&o->arena, "%.*s", (int)(end - at), at);
        if (*name == NULL) return DW_NO_MEMORY;
    }
    return DW_OK;
}

dw_status op_case_open(op_case *o, dw_context *context, const char *line, const char *device, const char *only) {
    static const int64_t no_symbols[1] = {0};
    const char *named;
    *o = (op_case){.context = context};
    arena_init(&o->arena, context);
    TRY(device_open(context, device != NULL ? device : "cpu", &o->device));
    TRY(base_pool(context, &o->pool));
    TRY(dim_table_create(context, &o->dims));
    TRY(kernel_case_parse(&o->arena, o->dims, "op", 1, line, &o->c));
    o->problem = (kernel_problem){.op = o->c.op,
                                  .attrs = &o->c.attrs,
                                  .post = o->c.post,
                                  .n_in = o->c.n_in,
                                  .n_out = o->c.n_out,
                                  .in = o->c.in,
                                  .out = o->c.out,
                                  .constant_in = o->c.constant,
                                  .dims = o->dims,
                                  .symbols = no_symbols,
                                  .chip = &o->device->caps,
                                  .context = context};
    TRY(find_named(o, only, &named));
    TRY(kernel_choose(&o->arena, &o->problem, NULL, named, &o->choice));
    return make_operands(o);
}

void op_case_close(op_case *o) {
    for (size_t i = 0; i < o->memory_count; i++) o->device->calls->release(o->device, o->memory[i].at, o->memory[i].bytes);
    device_close(o->device);
    dim_table_destroy(o->dims);
    arena_free(&o->arena);
}

static dw_status pack(op_case *o, const kernel_row *row, kernel_run *run) {
    kernel_packing packing;
    void *there;
    const dw_tensor *operand = &o->host[row->packs];
    if (!row->packing(&o->problem, operand, &packing)) return base_fail(o->context, DW_LIMIT, "the packed operand overflows");
    uint8_t *memory = arena_new(&o->arena, packing.bytes + ENGINE_ALIGN, 1);
    if (memory == NULL) return DW_NO_MEMORY;
    memory = (uint8_t *)base_align_up((uintptr_t)memory, ENGINE_ALIGN);
    TRY(packing.run(&packing, o->context, o->pool, operand, memory));
    TRY(alloc_memory(o, packing.bytes, &there));
    TRY(o->device->calls->write(o->device, there, memory, packing.bytes));
    run->packed = there;
    run->is_packed = true;
    return o->device->calls->synchronize(o->device);
}

dw_status op_case_prepare(op_case *o, const kernel_row *row, uint32_t ways, kernel_run *run) {
    *run = (kernel_run){.call = {.context = o->context, .op = o->c.op, .attrs = &o->c.attrs, .n_in = o->c.n_in, .in = o->ins, .n_out = o->c.n_out, .out = o->outs},
                        .post = o->c.post,
                        .constant_in = o->c.constant,
                        .pool = o->pool,
                        .chip = &o->device->caps,
                        .ways = ways,
                        .user = row->user};
    if (row->packs >= 0 && (o->c.constant >> row->packs & 1) != 0) TRY(pack(o, row, run));
    return alloc_memory(o, kernel_workspace(row, run), &run->workspace);
}

dw_status op_case_run(op_case *o, const kernel_row *row, kernel_run *run) {
    TRY(o->device->calls->run(o->device, row, run));
    return o->device->calls->synchronize(o->device);
}
