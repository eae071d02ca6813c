/* What a service takes of each run besides the model: a graph of nearly no work (an attention of one head of 2 over pages, 16 words), with 16, 64 and 256 texts that decode. Prints microseconds, the median of the
 * runs: of a whole step; of what the facts call a run, inputs, steps and draws; and of the rest, which is the scheduler's. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "deepwell/deepwell.h"

enum { WARM = 100, RUNS = 800, EVENTS = 1024, PROMPT = 8 };

static const char GRAPH[] = "graph none\n  symbol b 1..4\n  symbol s 1..8192\n  input ids i64[b,s]\n  param t f32[16,2]\n  %1 = take t, ids {axis=0}\n  %2 = reshape %1 {shape=[b,s,1,2]}\n"
                            "  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = attention %3, %3, %3 {scale=1,causal=true,window=1}\n  %5 = transpose %4 {order=[0,2,1,3]}\n"
                            "  %6 = reshape %5 {shape=[b,s,2]}\n  %7 = matmul %6, t {bt=true}\n  output logits %7\n";

static void must(dw_context *context, dw_status status) {
    if (status == DW_OK) return;
    fprintf(stderr, "scheduler: %s\n", dw_context_error(context));
    exit(1);
}

static double now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return (double)at.tv_sec + 1e-9 * (double)at.tv_nsec;
}

static int compare(const void *a, const void *b) { return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b); }

static void measure(dw_context *context, dw_model *model, int64_t texts) {
    const dw_service_options options = {.rows = texts, .run_tokens = 4096, .context = PROMPT + WARM + RUNS + 8};
    dw_service *service;
    static dw_event events[EVENTS];
    double steps[RUNS];
    dw_service_facts facts;
    must(context, dw_service_create(context, model, &options, &service));
    for (int64_t i = 0; i < texts; i++) {
        int64_t ids[PROMPT];
        uint64_t request;
        for (int k = 0; k < PROMPT; k++) ids[k] = (i * 5 + k * 3) % 16;
        must(context, dw_service_submit(context, service, &(dw_request){.count = PROMPT, .ids = ids, .tokens = WARM + RUNS + 4}, &request));
    }
    for (int run = 0; run < WARM + RUNS; run++) {
        int busy;
        const double begin = now();
        must(context, dw_service_step(context, service, &busy));
        if (run >= WARM) steps[run - WARM] = now() - begin;
        while (dw_service_poll(service, events, EVENTS) == EVENTS) {}
    }
    dw_service_measure(service, &facts);
    qsort(steps, RUNS, sizeof *steps, compare);
    printf("%4lld texts: step %7.1f us, run %7.1f us, scheduler %6.1f us\n", (long long)texts, 1e6 * steps[RUNS / 2], 1e6 * facts.run_s_median, 1e6 * (steps[RUNS / 2] - facts.run_s_median));
    dw_service_destroy(service);
}

int main(void) {
    static float weights[32];
    const dw_named_tensor weight = {"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {16, 2}, .strides = {2, 1}, .data = weights}};
    dw_context *context;
    dw_graph *graph;
    dw_model *model;
    for (int i = 0; i < 32; i++) weights[i] = (float)(i * 7 % 11) / 4 - 1;
    if (dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) return 1;
    must(context, dw_graph_parse(context, "none", GRAPH, strlen(GRAPH), &graph));
    must(context, dw_graph_bind(graph, 1, &weight));
    must(context, dw_model_create(context, graph, &(dw_model_options){.flags = DW_MODEL_GENERATE_ONLY}, &model));
    for (int64_t texts = 16; texts <= 256; texts *= 4) measure(context, model, texts);
    dw_model_destroy(model);
    dw_context_destroy(context);
    return 0;
}
