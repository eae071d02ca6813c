/* Registers a matmul of the caller's own and runs a file with it. The kernel is plain and slow; that it is chosen, and why, is the point. */
#include <deepwell/deepwell.h>

#include <stdio.h>
#include <string.h>

static void print(void *user, const char *text, size_t length) {
    (void)user;
    fwrite(text, 1, length, stdout);
}

static const char text[] = "graph linear\n"
                           "  symbol m 1..1024\n"
                           "  input x f32[m,16]\n"
                           "  input w f32[8,16]\n"
                           "  %1 = matmul x, w {bt=true}\n"
                           "  output y %1\n";

/* y [m,n] = x [m,k] w [n,k]^T; operands are contiguous because rows that ask for nothing are given nothing else. */
static dw_status my_matmul(const dw_kernel_call *call) {
    const dw_tensor *x = call->inputs[0], *w = call->inputs[1], *y = call->outputs[0];
    const float *a = x->data, *b = w->data;
    float *c = y->data;
    int64_t m = x->dims[0], n = w->dims[0], k = x->dims[1];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t p = 0; p < k; p++) sum += a[i * k + p] * b[j * k + p];
            c[i * n + j] = sum;
        }
    ++*(int *)call->user;
    return DW_OK;
}

int main(void) {
    float x[3 * 16], w[8 * 16], y[3 * 8];
    int calls = 0;
    dw_context *context;
    dw_registry *registry = NULL;
    dw_graph *graph = NULL;
    dw_model *model = NULL;
    dw_session *session = NULL;
    for (int i = 0; i < 3 * 16; i++) x[i] = (float)(i % 5);
    for (int i = 0; i < 8 * 16; i++) w[i] = (float)(i % 3) - 1;
    dw_named_tensor inputs[] = {{"x", {.format = DW_FORMAT_f32, .rank = 2, .dims = {3, 16}, .strides = {16, 1}, .data = x}},
                                {"w", {.format = DW_FORMAT_f32, .rank = 2, .dims = {8, 16}, .strides = {16, 1}, .data = w}}};
    dw_named_tensor output = {"y", {.format = DW_FORMAT_f32, .rank = 2, .dims = {3, 8}, .strides = {8, 1}, .data = y}};

    if (dw_context_create(NULL, &context) != DW_OK) return 1;
    dw_status status = dw_registry_create(context, &registry);
    if (status == DW_OK) status = dw_registry_add(registry, &(dw_kernel_options){.name = "my_matmul", .precision = "f32", .run = my_matmul, .user = &calls});
    if (status == DW_OK) status = dw_graph_parse(context, "linear", text, strlen(text), &graph);
    if (status == DW_OK) status = dw_model_create(context, graph, &(dw_model_options){.registry = registry}, &model);
    if (status == DW_OK) status = dw_model_print(model, DW_PRINT_EXPLAIN, 0, print, NULL);
    if (status == DW_OK) status = dw_session_create(context, model, &(dw_session_options){.dims = "m=3"}, &session);
    if (status == DW_OK) status = dw_session_run(session, 2, inputs, 1, &output);
    if (status == DW_OK) printf("my_matmul ran %d time; y[0] = %g\n", calls, (double)y[0]);
    else fprintf(stderr, "%s\n", dw_context_error(context));
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_registry_destroy(registry);
    dw_context_destroy(context);
    return status != DW_OK || calls != 1;
}
