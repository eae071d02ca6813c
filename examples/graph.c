/* Builds a small gated MLP by hand, runs it in MXFP4 and prints how it is run. */
#include <deepwell/deepwell.h>

#include <stdio.h>

enum { M = 2, D = 64, F = 128 };

static void print(void *user, const char *text, size_t length) {
    (void)user;
    fwrite(text, 1, length, stdout);
}

static dw_tensor matrix(float *data, int64_t rows, int64_t cols) {
    return (dw_tensor){.format = DW_FORMAT_f32, .rank = 2, .dims = {rows, cols}, .strides = {cols, 1}, .data = data};
}

/* out = (silu(x gate^T) * (x up^T)) down^T */
static dw_status build(dw_graph *graph, const dw_tensor *gate, const dw_tensor *up, const dw_tensor *down) {
    dw_value *x, *w[3], *g, *u, *h, *y;
    dw_status status = dw_graph_symbol(graph, "m", 1, 4096);
    if (status == DW_OK) status = dw_graph_input(graph, "x", "f32[m,64]", &x);
    if (status == DW_OK) status = dw_graph_param(graph, "gate", gate, &w[0]);
    if (status == DW_OK) status = dw_graph_param(graph, "up", up, &w[1]);
    if (status == DW_OK) status = dw_graph_param(graph, "down", down, &w[2]);
    if (status == DW_OK) status = dw_graph_op(graph, "matmul", "bt=true,post=\"silu\"", 2, (dw_value *[]){x, w[0]}, 1, &g);
    if (status == DW_OK) status = dw_graph_op(graph, "matmul", "bt=true", 2, (dw_value *[]){x, w[1]}, 1, &u);
    if (status == DW_OK) status = dw_graph_op(graph, "mul", "", 2, (dw_value *[]){g, u}, 1, &h);
    if (status == DW_OK) status = dw_graph_op(graph, "matmul", "bt=true", 2, (dw_value *[]){h, w[2]}, 1, &y);
    return status == DW_OK ? dw_graph_output(graph, "y", y) : status;
}

int main(void) {
    static float weights[3][F * D], x[M * D], y[M * D];
    dw_context *context;
    dw_graph *graph;
    dw_model *model = NULL;
    dw_session *session = NULL;
    for (int i = 0; i < F * D; i++)
        for (int k = 0; k < 3; k++) weights[k][i] = (float)((i * 37 + k * 11) % 19 - 9) / 64;
    for (int i = 0; i < M * D; i++) x[i] = (float)(i % 7 - 3) / 4;
    dw_tensor gate = matrix(weights[0], F, D), up = matrix(weights[1], F, D), down = matrix(weights[2], D, F);

    if (dw_context_create(NULL, &context) != DW_OK) return 1;
    dw_status status = dw_graph_create(context, "mlp", &graph);
    if (status == DW_OK) status = build(graph, &gate, &up, &down);
    if (status == DW_OK) status = dw_model_create(context, graph, &(dw_model_options){.precision = "mxfp4"}, &model);
    if (status == DW_OK) status = dw_model_print(model, DW_PRINT_GRAPH, 0, print, NULL);
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.dims = "m=2"}, &session);
    if (status == DW_OK) status = dw_session_run(session, 1, &(dw_named_tensor){"x", matrix(x, M, D)}, 1, &(dw_named_tensor){"y", matrix(y, M, D)});
    if (status == DW_OK) printf("y[0] = %g %g %g ..\n", (double)y[0], (double)y[1], (double)y[2]);
    else fprintf(stderr, "%s\n", dw_context_error(context));
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
    return status != DW_OK;
}
