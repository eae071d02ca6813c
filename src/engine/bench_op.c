/* Times of one op, written as a line of conformance (kernel.h): every kernel that accepts it, on random operands, beside those that refuse and why.
 * Runs are counted until a fifth of a second has passed. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "device/device.h"
#include "engine/engine.h"

typedef struct op_bench {
    dw_context *context;
    arena arena;
    pool *pool;
    dim_table *dims;
    chip_caps chip;
    kernel_case c;
    dw_tensor in[KERNEL_CASE_OPERANDS], out[KERNEL_CASE_RESULTS];
    const dw_tensor *ins[KERNEL_CASE_OPERANDS], *outs[KERNEL_CASE_RESULTS];
    json_t *facts;
} op_bench;

static dw_status place(op_bench *bench, const op_type *type, dw_tensor *tensor) {
    uint64_t bytes;
    TRY(op_tensor_bind(bench->context, type, NULL, NULL, tensor));
    TRY(dw_tensor_bytes(bench->context, tensor, &bytes));
    uint8_t *memory = arena_new(&bench->arena, (size_t)bytes + 2 * ENGINE_ALIGN, 1);
    if (memory == NULL) return DW_NO_MEMORY;
    return dw_tensor_place(bench->context, tensor, (void *)base_align_up((uintptr_t)memory, ENGINE_ALIGN));
}

/* Block formats are quantised from normal numbers, so that codes and scales are those of real tensors. */
static dw_status fill(op_bench *bench, int operand) {
    const op_type *type = bench->c.in[operand];
    dw_tensor *tensor = &bench->in[operand], source;
    const kernel_range *range = &bench->c.ranges[operand];
    bool block = dw_format_is_block(type->format);
    op_type plain = *type;
    plain.format = DW_FORMAT_f32;
    plain.scale_layout = DW_SCALE_plain;
    TRY(place(bench, type, tensor));
    if (block) TRY(place(bench, &plain, &source));
    else source = *tensor;
    for (int64_t i = 0, count = op_tensor_count(&source); i < count; i++) {
        double value = (double)num_random_normal((uint64_t)operand, (uint64_t)i);
        if (range->given) value = range->low + (double)num_random_uniform((uint64_t)operand, (uint64_t)i) * (range->high - range->low);
        num_store(source.format, source.data, i, value, true);
    }
    if (!block) return DW_OK;
    text attributes;
    text_init(&attributes, bench->context);
    text_printf(&attributes, "to=%s", dw_format_name(type->format));
    const dw_tensor *from[] = {&source}, *to[] = {tensor};
    dw_status status = dw_op_run(bench->context, "quantize", text_string(&attributes), NULL, 1, from, 1, to);
    text_free(&attributes);
    return status;
}

static dw_status make_operands(op_bench *bench) {
    for (int i = 0; i < bench->c.n_in; i++) {
        if (bench->c.in[i] == NULL) continue;
        TRY(fill(bench, i));
        bench->ins[i] = &bench->in[i];
    }
    for (int i = 0; i < bench->c.n_out; i++) {
        TRY(place(bench, bench->c.out[i], &bench->out[i]));
        bench->outs[i] = &bench->out[i];
    }
    return DW_OK;
}

static dw_status time_row(op_bench *bench, const kernel_problem *problem, const kernel_row *row, double *median, double *least) {
    enum { MOST = 1000 };
    double seconds[MOST];
    int count = 0;
    kernel_run run = {.call = {.context = bench->context,
                               .op = bench->c.op,
                               .attrs = &bench->c.attrs,
                               .n_in = bench->c.n_in,
                               .in = bench->ins,
                               .n_out = bench->c.n_out,
                               .out = bench->outs},
                      .post = bench->c.post,
                      .pool = bench->pool,
                      .chip = &bench->chip,
                      .user = row->user};
    bool packs = row->packs >= 0 && (bench->c.constant >> row->packs & 1) != 0;
    if (packs) {
        size_t bytes;
        if (!row->pack_bytes(problem, bench->ins[row->packs], &bytes)) return base_fail(bench->context, DW_LIMIT, "the packed operand overflows");
        uint8_t *memory = arena_new(&bench->arena, bytes + ENGINE_ALIGN, 1);
        if (memory == NULL) return DW_NO_MEMORY;
        run.packed = (const void *)base_align_up((uintptr_t)memory, ENGINE_ALIGN);
        run.is_packed = true;
        TRY(row->pack(problem, bench->pool, bench->ins[row->packs], (void *)(uintptr_t)run.packed));
    }
    size_t scratch = row->workspace ? row->workspace(&run) : 0;
    uint8_t *workspace = arena_new(&bench->arena, scratch + ENGINE_ALIGN, 1);
    if (workspace == NULL) return DW_NO_MEMORY;
    run.workspace = (void *)base_align_up((uintptr_t)workspace, ENGINE_ALIGN);
    TRY(row->run(&run));
    for (double spent = 0; count < 3 || (count < MOST && spent < 0.2); count++) {
        double start = engine_now();
        TRY(row->run(&run));
        spent += seconds[count] = engine_now() - start;
        TRY(base_poll(bench->context));
    }
    for (int i = 1; i < count; i++) {   /* insertion: at most a thousand */
        double time = seconds[i];
        int at = i;
        for (; at > 0 && seconds[at - 1] > time; at--) seconds[at] = seconds[at - 1];
        seconds[at] = time;
    }
    *median = seconds[count / 2];
    *least = seconds[0];
    return DW_OK;
}

static dw_status time_rows(op_bench *bench) {
    static const int64_t no_symbols[1] = {0};
    kernel_problem problem = {.op = bench->c.op,
                              .attrs = &bench->c.attrs,
                              .post = bench->c.post,
                              .n_in = bench->c.n_in,
                              .n_out = bench->c.n_out,
                              .in = bench->c.in,
                              .out = bench->c.out,
                              .constant_in = bench->c.constant,
                              .dims = bench->dims,
                              .symbols = no_symbols,
                              .chip = &bench->chip,
                              .context = bench->context};
    op_call call = {.context = bench->context,
                    .op = bench->c.op,
                    .attrs = &bench->c.attrs,
                    .n_in = bench->c.n_in,
                    .in = bench->ins,
                    .n_out = bench->c.n_out,
                    .out = bench->outs};
    kernel_choice choice;
    op_work work;
    TRY(kernel_choose(&bench->arena, &problem, NULL, NULL, &choice));
    bench->c.op->work(&call, &work);
    json_t *kernels = json_object_get(bench->facts, "kernels");
    for (int i = 0; i < choice.verdict_count; i++) {
        const kernel_verdict *verdict = &choice.verdicts[i];
        double median = 0, least = 0;
        if (verdict->reason != NULL) {
            json_array_append_new(kernels, json_pack("{s:s, s:s}", "kernel", verdict->row->name, "refused", verdict->reason));
            continue;
        }
        if (verdict->row->reference && !choice.row->reference && work.flops > 1e8) continue;   /* minutes; it is chosen for nothing here */
        TRY(time_row(bench, &problem, verdict->row, &median, &least));
        json_array_append_new(kernels, json_pack("{s:s, s:b, s:f, s:f, s:f, s:f, s:f}", "kernel", verdict->row->name, "chosen",
                                                 verdict->row == choice.row, "seconds", median, "min", least, "estimate", verdict->seconds, "gflops",
                                                 work.flops / median / 1e9, "gbytes", (work.bytes_read + work.bytes_written) / median / 1e9));
    }
    return DW_OK;
}

static double real_of(const json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }

static void print_rows(text *out, const op_bench *bench) {
    size_t i;
    json_t *row;
    text_printf(out, "%s\non %s, %d threads\n", bench->c.line, bench->chip.name, pool_threads(bench->pool));
    text_printf(out, "  %-28s %12s %12s %12s %10s %8s\n", "kernel", "median us", "least us", "estimate us", "GFLOP/s", "GB/s");
    json_array_foreach(json_object_get(bench->facts, "kernels"), i, row) {
        const char *refused = json_string_value(json_object_get(row, "refused")), *name = json_string_value(json_object_get(row, "kernel"));
        if (refused != NULL) {
            text_printf(out, "  %-28s refuses: %s\n", name, refused);
            continue;
        }
        text_printf(out, "  %-28s %12.1f %12.1f %12.1f %10.1f %8.1f%s\n", name, real_of(row, "seconds") * 1e6, real_of(row, "min") * 1e6,
                    real_of(row, "estimate") * 1e6, real_of(row, "gflops"), real_of(row, "gbytes"),
                    json_is_true(json_object_get(row, "chosen")) ? "  chosen" : "");
    }
}

static dw_status run_bench(op_bench *bench, const char *line, const char *device) {
    const char *colon = device ? strchr(device, ':') : NULL;
    if (device != NULL && strncmp(device, "cpu", 3) != 0)
        return base_fail(bench->context, DW_UNSUPPORTED, "device %s: one op is timed on the CPU alone; bench of a model runs there", device);
    TRY(device_probe_cpu(bench->context, colon ? colon + 1 : "", dw_context_threads(bench->context), &bench->chip));
    TRY(base_pool(bench->context, &bench->pool));
    TRY(dim_table_create(bench->context, &bench->dims));
    TRY(kernel_case_parse(&bench->arena, bench->dims, "op", 1, line, &bench->c));
    TRY(make_operands(bench));
    return time_rows(bench);
}

bool engine_is_op_line(const char *line) {
    const char *space = strchr(line, ' ');
    char name[32];
    if (space == NULL || (size_t)(space - line) >= sizeof name) return false;
    memcpy(name, line, (size_t)(space - line));
    name[space - line] = '\0';
    return op_find(name) != OP_COUNT;
}

dw_status engine_bench_op(dw_context *context, const char *line, const char *device, int json, dw_sink sink, void *user) {
    op_bench bench = {.context = context, .facts = json_pack("{s:s, s:[]}", "op", line, "kernels")};
    text out;
    arena_init(&bench.arena, context);
    text_init(&out, context);
    dw_status status = run_bench(&bench, line, device);
    if (status == DW_OK && json) {
        char *words = json_dumps(bench.facts, JSON_INDENT(2) | JSON_REAL_PRECISION(9));
        text_add(&out, words ? words : "");
        text_add(&out, "\n");
        free(words);
    } else if (status == DW_OK) {
        print_rows(&out, &bench);
    }
    if (status == DW_OK) status = text_status(&out);
    if (status == DW_OK) sink(user, text_string(&out), out.length);
    text_free(&out);
    json_decref(bench.facts);
    dim_table_destroy(bench.dims);
    arena_free(&bench.arena);
    return status;
}
