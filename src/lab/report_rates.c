/* Rates that no table has of the machine at hand: a CPU's memory, cache and products, and what a launch costs on a GPU. */
#include "lab/op_case.h"
#include "lab/report.h"

/* ---- a CPU ---- */

static const double probe_s = 0.2;    /* of each product; the best of many short turns is what a machine that others use, too, can do */

/* The most FLOP/s that a product of this line reaches; 0: no kernel but the reference takes it. */
static dw_status measure_product(dw_context *context, const char *device, const char *line, double *rate) {
    op_case o;
    kernel_run run;
    op_work work;
    *rate = 0;
    dw_status status = op_case_open(&o, context, line, device, NULL);
    const bool runs = status == DW_OK && !o.choice.row->reference;
    if (runs) status = op_case_prepare(&o, o.choice.row, o.choice.ways, &run);
    for (double begin = base_now(); base_now() - begin < probe_s && runs && status == DW_OK;) {
        const double start = base_now();
        status = op_case_run(&o, o.choice.row, &run);
        run.call.op->work(&run.call, &work);
        const double reached = work.flops / (base_now() - start);
        if (reached > *rate) *rate = reached;
    }
    op_case_close(&o);
    return status;
}

static void set_rate(chip_caps *chip, chip_rate rate, double value) {
    if (value > 0 && chip->rates[rate].nominal > 0) chip->rates[rate].measured = chip->rates[rate].expected = value;
}

dw_status report_measure_cpu(dw_context *context, const char *device, chip_caps *chip) {
    pool *pool;
    double rate;
    TRY(base_pool(context, &pool));
    TRY(device_measure_cpu(context, pool, chip));
    TRY(device_measure_cpu_cache(context, pool, chip));
    TRY(measure_product(context, device, "matmul f32[256,512] f32[512,512] bt=true pack=1", &rate));
    set_rate(chip, CHIP_RATE_f32, rate);
    TRY(measure_product(context, device, "matmul bf16[256,512] bf16[512,512] bt=true pack=1", &rate));
    for (int i = CHIP_RATE_bf16; i <= CHIP_RATE_fp4_k96; i++) set_rate(chip, (chip_rate)i, rate);   /* fewer bits are multiplied as bf16 */
    return DW_OK;
}

/* ---- a GPU ---- */

enum { CHAIN = 128, CHAIN_RUNS = 9 };

static dw_status time_chain(op_case *o, double *seconds) {
    const device_calls *calls = o->device->calls;
    double steps[CHAIN];
    device_times times = {.steps = steps, .step_count = CHAIN};
    device_graph *graph;
    kernel_run run;
    TRY(op_case_prepare(o, o->choice.row, o->choice.ways, &run));
    TRY(calls->graph_create(o->device, &graph));
    dw_status status = calls->graph_begin(o->device, graph);
    for (int i = 0; i < CHAIN && status == DW_OK; i++) status = calls->graph_add(o->device, graph, o->choice.row, &run);
    if (status == DW_OK) status = calls->graph_launch(o->device, graph);
    if (status == DW_OK) status = calls->graph_time(o->device, graph, CHAIN_RUNS, &times);
    calls->graph_release(o->device, graph);
    *seconds = times.apart / CHAIN;
    return status;
}

dw_status report_measure_launch(dw_context *context, const char *device, double *seconds) {
    op_case o;
    *seconds = 0;
    dw_status status = op_case_open(&o, context, "neg f32[1]", device, NULL);
    if (status == DW_OK) status = time_chain(&o, seconds);
    op_case_close(&o);
    return status;
}
