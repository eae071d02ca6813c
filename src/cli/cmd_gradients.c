/* The command gradients: one run of a file's graph and its backward pass, on inputs from a file. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of all outputs the loss, under that name, and the gradients. */
static int choose(const dw_model *model, const dw_named_tensor *outputs, int count, dw_named_tensor *written) {
    static const char gradient[] = "grad.";
    const char *loss = dw_model_note(model, "loss");
    int chosen = 0;
    for (int i = 0; i < count; i++) {
        const int is_loss = loss != NULL && strcmp(outputs[i].name, loss) == 0;
        if (!is_loss && strncmp(outputs[i].name, gradient, sizeof gradient - 1) != 0) continue;
        written[chosen] = outputs[i];
        if (is_loss) written[chosen].name = "loss";
        chosen++;
    }
    return chosen;
}

static dw_status write_outputs(cli *cli, const dw_model *model, const dw_named_tensor *outputs, int count) {
    dw_named_tensor *written = calloc((size_t)count + 1, sizeof *written);
    if (written == NULL) return DW_NO_MEMORY;
    const dw_status status = dw_tensors_write(cli->context, cli->out, choose(model, outputs, count, written), written);
    free(written);
    return status;
}

static dw_status run(cli *cli, const dw_graph *graph, const dw_gradient_options *wanted, const dw_model_options *options, int count, const dw_named_tensor *inputs) {
    dw_graph *gradients;
    dw_model *model;
    dw_status status = dw_graph_gradient(graph, wanted, &gradients);
    if (status == DW_OK) status = dw_model_create(cli->context, gradients, options, &model);
    if (status != DW_OK) return status;
    status = cli_run_on(cli, model, count, inputs, write_outputs);
    dw_model_destroy(model);
    return status;
}

int cli_gradients(cli *cli) {
    if (cli->in == NULL || cli->out == NULL) return cli_refuse("gradients needs --in FILE and --out FILE");
    dw_model_options options;
    dw_gradient_options wanted;
    dw_tensors *file = NULL, *weights = NULL;
    dw_graph *graph = NULL;
    char *policy;
    int count, code = cli_gradient_options(cli, &wanted);
    if (code < 0) code = cli_model_options(cli, &options, &policy);
    if (code >= 0) return code;
    options.weights = NULL;
    dw_status status = dw_tensors_open(cli->context, cli->in, &file);
    if (status == DW_OK) status = dw_graph_open(cli->context, cli->file, &graph);
    if (status == DW_OK) status = cli_bind_weights(cli, graph, &weights);
    if (status == DW_OK) {
        dw_named_tensor *inputs = cli_inputs(file, &count);
        status = inputs != NULL ? run(cli, graph, &wanted, &options, count, inputs) : DW_NO_MEMORY;
        free(inputs);
    }
    code = status == DW_OK ? CLI_DONE : cli_fail(cli);
    dw_graph_destroy(graph);
    dw_tensors_close(weights);
    dw_tensors_close(file);
    free(policy);
    return code;
}
