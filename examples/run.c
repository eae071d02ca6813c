/* Loads an exported model and runs it once on given ids: the shortest use of the library. */
#include <deepwell/deepwell.h>

#include <stdio.h>
#include <stdlib.h>

#define DO(call) if ((call) != DW_OK) { fprintf(stderr, "%s\n", dw_context_error(context)); return 1; }

int main(int argc, char **argv) {
    int64_t ids[16], count = argc - 2;
    dw_context *context;
    dw_model *model;
    dw_session *session;
    if (argc < 3 || count > 16 || dw_context_create(NULL, &context) != DW_OK) return 2;
    for (int i = 0; i < count; i++) ids[i] = atoll(argv[i + 2]);

    DO(dw_model_open(context, argv[1], &(dw_model_options){.precision = "mxfp8"}, &model));
    dw_named_tensor input = {.name = dw_model_input(model, 0, NULL),
                             .tensor = {.format = DW_FORMAT_i64, .rank = 2, .dims = {1, count}, .strides = {count, 1}, .data = ids}};
    dw_named_tensor output;
    char sizes[256];
    DO(dw_model_sizes(model, 1, &input, sizes, sizeof sizes));
    DO(dw_session_create(context, model, &(dw_session_options){.dims = sizes}, &session));
    DO(dw_session_shapes(session, 1, &input, &output));
    float *logits = output.tensor.data = malloc((size_t)(count * output.tensor.dims[2]) * sizeof *logits);
    DO(dw_session_run(session, 1, &input, 1, &output));

    const float *last = logits + (count - 1) * output.tensor.dims[2];
    int64_t best = 0;
    for (int64_t i = 1; i < output.tensor.dims[2]; i++) best = last[i] > last[best] ? i : best;
    printf("the likeliest next id is %lld\n", (long long)best);
    free(logits);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_context_destroy(context);
    return 0;
}
