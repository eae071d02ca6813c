/* A regression in text form with its numbers, and steps of trainers of it, for the tests of trainers. */
#ifndef TESTS_TRAIN_REGRESSION_H
#define TESTS_TRAIN_REGRESSION_H

#include "support/support.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "deepwell/deepwell.h"

enum { ROWS = 8, IN = 5, OUT = 3, WEIGHTS = IN * OUT };

/* mean (x w + c - t)^2, rows of any number */
static const char regression[] = "graph regression\n"
                                 "  symbol b 1..64\n"
                                 "  input x f32[b,5]\n"
                                 "  input t f32[b,3]\n"
                                 "  param w f32[5,3]\n"
                                 "  param c f32[3]\n"
                                 "  %1 = matmul x, w\n"
                                 "  %2 = add %1, c\n"
                                 "  %3 = sub %2, t\n"
                                 "  %4 = mul %3, %3\n"
                                 "  %5 = mean %4 {axes=[0,1]}\n"
                                 "  output y %2\n"
                                 "  output loss %5\n";

static float w_begin[WEIGHTS], c_begin[OUT], x_data[64 * IN], t_data[64 * OUT];

static inline float number(unsigned *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return (float)(*seed >> 8) / (float)(1 << 23) - 1;
}

static inline void fill(void) {
    unsigned seed = 7;
    for (int i = 0; i < WEIGHTS; i++) w_begin[i] = number(&seed);
    for (int i = 0; i < OUT; i++) c_begin[i] = number(&seed);
    for (int i = 0; i < 64 * IN; i++) x_data[i] = number(&seed);
    for (int i = 0; i < 64 * OUT; i++) t_data[i] = number(&seed);
}

static inline dw_tensor matrix(int64_t rows, int64_t cols, void *data) {
    return (dw_tensor){.format = DW_FORMAT_f32, .rank = 2, .dims = {rows, cols}, .strides = {cols, 1}, .data = data};
}

static inline void at(int64_t first, int64_t rows, dw_named_tensor inputs[2]) {
    inputs[0] = (dw_named_tensor){"x", matrix(rows, IN, x_data + first * IN)};
    inputs[1] = (dw_named_tensor){"t", matrix(rows, OUT, t_data + first * OUT)};
}

static inline dw_graph *graph_of(dw_context *context, const char *text) {
    dw_graph *graph;
    dw_named_tensor weights[2] = {{"w", matrix(IN, OUT, w_begin)}, {"c", {.format = DW_FORMAT_f32, .rank = 1, .dims = {OUT}, .strides = {1}, .data = c_begin}}};
    fill();
    assert_int_equal(dw_graph_parse(context, "regression", text, strlen(text), &graph), DW_OK);
    assert_int_equal(dw_graph_bind(graph, 2, weights), DW_OK);
    return graph;
}

static inline dw_trainer *trainer_of(dw_context *context, const dw_trainer_options *options) {
    dw_trainer *trainer;
    const dw_status status = dw_trainer_create(context, graph_of(context, regression), options, &trainer);
    if (status != DW_OK) print_error("%s\n", dw_context_error(context));
    assert_int_equal(status, DW_OK);
    return trainer;
}

static inline dw_train_result step(dw_context *context, dw_trainer *trainer, int64_t first, int64_t rows, double rate) {
    dw_named_tensor inputs[2];
    dw_train_result result;
    at(first, rows, inputs);
    const dw_status status = dw_trainer_step(trainer, 2, inputs, rate, &result);
    if (status != DW_OK) print_error("%s\n", dw_context_error(context));
    assert_int_equal(status, DW_OK);
    return result;
}

static inline void weights_of(dw_trainer *trainer, float w[WEIGHTS], float c[OUT]) {
    assert_int_equal(dw_trainer_read(trainer, "w", w, WEIGHTS * sizeof *w), DW_OK);
    assert_int_equal(dw_trainer_read(trainer, "c", c, OUT * sizeof *c), DW_OK);
}

static inline void assert_same_weights(dw_trainer *a, dw_trainer *b) {
    float wa[WEIGHTS], ca[OUT], wb[WEIGHTS], cb[OUT];
    weights_of(a, wa, ca);
    weights_of(b, wb, cb);
    assert_memory_equal(wa, wb, sizeof wa);
    assert_memory_equal(ca, cb, sizeof ca);
}

static inline const char *in_scratch(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "/tmp/deepwell-train-%ld-%s", (long)getpid(), name);
    return path;
}

static inline void assert_says(dw_context *context, const char *words) {
    if (strstr(dw_context_error(context), words) == NULL) print_error("'%s' does not say '%s'\n", dw_context_error(context), words);
    assert_non_null(strstr(dw_context_error(context), words));
}

#endif
