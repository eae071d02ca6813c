/* Times of one op, written as a line of conformance (kernel.h): every kernel that accepts it, on random operands, beside those that refuse and why.
 * Runs are counted until a fifth of a second has passed; operands stay where they are, so small ones come from caches. A simulated device runs each kernel once. */
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "lab/op_case.h"

typedef struct op_bench { op_case o; json_t *facts; } op_bench;

enum { MOST = 1000, NODES = 32 };

/* Seconds of count runs at a time: on the CPU one, on a GPU a graph of many, since what the host does for one takes longer than a small kernel. */
static dw_status time_once(op_bench *bench, const kernel_row *row, kernel_run *run, device_graph *graph, double *seconds) {
    device *device = bench->o.device;
    const double start = base_now();
    if (graph == NULL) TRY(op_case_run(&bench->o, row, run));
    else TRY(device->calls->graph_launch(device, graph));
    TRY(device->calls->synchronize(device));
    *seconds = (base_now() - start) / (graph == NULL ? 1 : NODES);
    return base_poll(bench->o.context);
}

static dw_status record(op_bench *bench, const kernel_row *row, kernel_run *run, device_graph *graph) {
    const device_calls *calls = bench->o.device->calls;
    TRY(calls->graph_begin(bench->o.device, graph));
    for (int i = 0; i < NODES; i++) TRY(calls->graph_add(bench->o.device, graph, row, run));
    return DW_OK;
}

static int compare(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* After a run that is not counted. */
static dw_status time_runs(op_bench *bench, const kernel_row *row, kernel_run *run, device_graph *graph, double *median, double *least) {
    double seconds[MOST], first;
    int count = 0;
    if (graph != NULL) TRY(record(bench, row, run, graph));
    TRY(time_once(bench, row, run, graph, &first));
    for (double spent = 0; count < 3 || (count < MOST && spent < 0.2); count++) {
        TRY(time_once(bench, row, run, graph, &seconds[count]));
        spent += seconds[count] * (graph == NULL ? 1 : NODES);
    }
    qsort(seconds, (size_t)count, sizeof *seconds, compare);
    *median = seconds[count / 2];
    *least = seconds[0];
    return DW_OK;
}

static dw_status time_kernel(op_bench *bench, const kernel_verdict *verdict, double *median, double *least) {
    device *device = bench->o.device;
    device_graph *graph = NULL;
    const kernel_row *row = verdict->row;
    kernel_run run;
    TRY(op_case_prepare(&bench->o, row, kernel_verdict_ways(verdict), &run));
    if (device_is_simulated(device)) return op_case_run(&bench->o, row, &run);
    if (device->calls->graph_create != NULL) TRY(device->calls->graph_create(device, &graph));
    dw_status status = time_runs(bench, row, &run, graph, median, least);
    if (graph != NULL) device->calls->graph_release(device, graph);
    return status;
}

static dw_status time_rows(op_bench *bench) {
    op_case *o = &bench->o;
    const op_call call = {.context = o->context, .op = o->c.op, .attrs = &o->c.attrs, .n_in = o->c.n_in, .in = o->ins, .n_out = o->c.n_out, .out = o->outs};
    const bool simulated = device_is_simulated(o->device);
    op_work work;
    o->c.op->work(&call, &work);
    json_object_set_new(bench->facts, "device", json_string(o->device->caps.name));
    json_object_set_new(bench->facts, "simulated", json_boolean(simulated));
    json_t *kernels = json_object_get(bench->facts, "kernels");
    for (int i = 0; i < o->choice.verdict_count; i++) {
        const kernel_verdict *verdict = &o->choice.verdicts[i];
        double median = 0, least = 0;
        if (verdict->reason != NULL) {
            json_array_append_new(kernels, json_pack("{s:s, s:s}", "kernel", kernel_verdict_name(verdict), "refused", verdict->reason));
            continue;
        }
        if (verdict->row->reference && !o->choice.row->reference && work.flops > 1e8) continue;   /* minutes; it is chosen for nothing here */
        dw_status status = time_kernel(bench, verdict, &median, &least);
        if (status == DW_UNSUPPORTED && kernel_calls_library(verdict)) {   /* what a library takes is known when it is asked */
            json_array_append_new(kernels, json_pack("{s:s, s:s}", "kernel", kernel_verdict_name(verdict), "refused", dw_context_error(o->context)));
            continue;
        }
        TRY(status);
        json_t *facts = json_pack("{s:s, s:b}", "kernel", kernel_verdict_name(verdict), "chosen", verdict->way != NULL ? verdict->way == o->choice.way : verdict->row == o->choice.row);
        if (!simulated) json_object_update_new(facts, json_pack("{s:f, s:f, s:f, s:f, s:f}", "seconds", median, "min", least, "estimate", verdict->seconds, "gflops", work.flops / median / 1e9,
                                                                "gbytes", (work.bytes_read + work.bytes_written) / median / 1e9));
        json_array_append_new(kernels, facts);
    }
    return DW_OK;
}

static double real_of(const json_t *row, const char *key) { return json_number_value(json_object_get(row, key)); }

static void print_rows(text *out, const op_bench *bench) {
    size_t i;
    json_t *row;
    const bool simulated = device_is_simulated(bench->o.device);
    text_printf(out, "%s\non %s", bench->o.c.line, bench->o.device->caps.name);
    if (bench->o.device->pool != NULL) text_printf(out, ", %d threads", pool_threads(bench->o.device->pool));
    text_add(out, "\n");
    if (simulated) text_printf(out, "  %-28s\n", "kernel                       simulated: functional only, there are no times");
    else text_printf(out, "  %-28s %12s %12s %12s %10s %8s\n", "kernel", "median us", "least us", "estimate us", "GFLOP/s", "GB/s");
    json_array_foreach(json_object_get(bench->facts, "kernels"), i, row) {
        const char *refused = json_string_value(json_object_get(row, "refused")), *name = json_string_value(json_object_get(row, "kernel"));
        const char *chosen = json_is_true(json_object_get(row, "chosen")) ? "  chosen" : "";
        if (refused != NULL) text_printf(out, "  %-28s refuses: %s\n", name, refused);
        else if (simulated) text_printf(out, "  %-28s ran%s\n", name, chosen);
        else text_printf(out, "  %-28s %12.1f %12.1f %12.1f %10.1f %8.1f%s\n", name, real_of(row, "seconds") * 1e6, real_of(row, "min") * 1e6, real_of(row, "estimate") * 1e6,
                         real_of(row, "gflops"), real_of(row, "gbytes"), chosen);
    }
}

bool lab_is_op_line(const char *line) {
    const char *space = strchr(line, ' ');
    char name[32];
    if (space == NULL || (size_t)(space - line) >= sizeof name) return false;
    memcpy(name, line, (size_t)(space - line));
    name[space - line] = '\0';
    return op_find(name) != OP_COUNT;
}

dw_status lab_bench_op(dw_context *context, const char *line, const char *device, int json, dw_sink sink, void *user) {
    op_bench bench = {.facts = json_pack("{s:s, s:[]}", "op", line, "kernels")};
    text out;
    text_init(&out, context);
    dw_status status = op_case_open(&bench.o, context, line, device, NULL);
    if (status == DW_OK) status = time_rows(&bench);
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
    op_case_close(&bench.o);
    return status;
}
