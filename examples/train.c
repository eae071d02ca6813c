/* Trains an exported language model on the bytes of a text, and writes the parameters that it has then: train MODEL.pt2 TEXT STEPS OUT.safetensors. No Python is needed. */
#include <deepwell/deepwell.h>

#include <stdio.h>
#include <stdlib.h>

enum { ROWS = 8, LENGTH = 128 };

#define DO(call) if ((call) != DW_OK) { fprintf(stderr, "%s\n", dw_context_error(context)); return 1; }

/* Rows from anywhere in the text, and for each token the one behind it. */
static void draw(const unsigned char *text, size_t size, int64_t *ids, int64_t *labels) {
    for (int row = 0; row < ROWS; row++) {
        const unsigned char *from = text + (size_t)rand() % (size - LENGTH);
        for (int i = 0; i < LENGTH; i++) {
            ids[row * LENGTH + i] = from[i];
            labels[row * LENGTH + i] = from[i + 1];
        }
    }
}

int main(int argc, char **argv) {
    static unsigned char text[1 << 24];
    static int64_t ids[ROWS * LENGTH], labels[ROWS * LENGTH];
    dw_context *context;
    dw_graph *graph;
    dw_trainer *trainer;
    if (argc != 5 || dw_context_create(NULL, &context) != DW_OK) return 2;
    FILE *file = fopen(argv[2], "rb");
    const size_t size = file != NULL ? fread(text, 1, sizeof text, file) : 0;
    const int steps = atoi(argv[3]);
    if (file == NULL || fclose(file) != 0 || size <= LENGTH) return 2;

    DO(dw_graph_open(context, argv[1], &graph));
    const char *name;
    char type[64];
    DO(dw_graph_input_at(graph, 0, &name, type, sizeof type));
    const dw_tensor rows = {.format = DW_FORMAT_i64, .rank = 2, .dims = {ROWS, LENGTH}, .strides = {LENGTH, 1}};
    dw_named_tensor inputs[2] = {{name, rows}, {"labels", rows}};
    inputs[0].tensor.data = ids;
    inputs[1].tensor.data = labels;
    DO(dw_trainer_create(context, graph, &(dw_trainer_options){.loss = "next-token", .optimizer = "adamw(beta2=0.95,decay=0.1)", .clip = 1}, &trainer));
    for (int step = 0; step < steps; step++) {
        dw_train_result result;
        draw(text, size, ids, labels);
        DO(dw_trainer_step(trainer, 2, inputs, 1e-3 * (steps - step) / steps, &result));   /* a rate that falls to 0 */
        if (step % 10 == 0 || step + 1 == steps) printf("step %d: loss %.4f, norm %.3f\n", step + 1, result.loss, result.norm);
    }
    DO(dw_trainer_export(trainer, argv[4]));
    dw_trainer_destroy(trainer);   /* and graph, which it has taken over */
    dw_context_destroy(context);
    return 0;
}
