/* The commands that run a file's whole graph: run and check; and compile, which writes it down. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dw_named_tensor *cli_inputs(const dw_tensors *file, int *count) {
    *count = dw_tensors_count(file);
    dw_named_tensor *inputs = calloc((size_t)*count + 1, sizeof *inputs);
    for (int i = 0; inputs != NULL && i < *count; i++) inputs[i] = dw_tensors_at(file, i);
    return inputs;
}

/* Memory for the outputs (malloc), of the session's shapes. */
static dw_status make_outputs(cli *cli, dw_session *session, int input_count, const dw_named_tensor *inputs, int output_count,
                              dw_named_tensor *outputs) {
    dw_status status = dw_session_shapes(session, input_count, inputs, outputs);
    for (int i = 0; status == DW_OK && i < output_count; i++) {
        uint64_t bytes = 0;
        status = dw_tensor_bytes(cli->context, &outputs[i].tensor, &bytes);
        if (status != DW_OK) return status;
        outputs[i].tensor.data = bytes < SIZE_MAX ? malloc((size_t)bytes + 1) : NULL;
        if (outputs[i].tensor.data == NULL) return DW_NO_MEMORY;
    }
    return status;
}

dw_status cli_run_on(cli *cli, const dw_model *model, int count, const dw_named_tensor *inputs,
                     dw_status (*write)(struct cli *cli, const dw_model *model, const dw_named_tensor *outputs, int count)) {
    dw_session *session;
    char dims[512];
    dw_status status = dw_model_sizes(model, count, inputs, dims, sizeof dims);
    if (status != DW_OK) return status;
    status = dw_session_create(cli->context, model, &(dw_session_options){.dims = dims}, &session);
    if (status != DW_OK) return status;
    int output_count = dw_model_output_count(model);
    dw_named_tensor *outputs = calloc((size_t)output_count + 1, sizeof *outputs);
    status = outputs != NULL ? make_outputs(cli, session, count, inputs, output_count, outputs) : DW_NO_MEMORY;
    if (status == DW_OK) status = dw_session_run(session, count, inputs, output_count, outputs);
    if (status == DW_OK) status = write(cli, model, outputs, output_count);
    for (int i = 0; outputs != NULL && i < output_count; i++) free(outputs[i].tensor.data);
    free(outputs);
    dw_session_destroy(session);
    return status;
}

static dw_status write_all(cli *cli, const dw_model *model, const dw_named_tensor *outputs, int count) {
    (void)model;
    if (cli->rank > 0) return DW_OK;
    return dw_tensors_write(cli->context, cli->out, count, outputs);
}

int cli_run(cli *cli) {
    if (cli->in == NULL || cli->out == NULL) return cli_refuse("run needs --in FILE and --out FILE");
    dw_tensors *file;
    dw_model *model = NULL;
    if (dw_tensors_open(cli->context, cli->in, &file) != DW_OK) return cli_fail(cli);
    int count, code = cli_open(cli, 0, &model);
    if (code < 0) {
        dw_named_tensor *inputs = cli_inputs(file, &count);
        code = inputs != NULL && cli_run_on(cli, model, count, inputs, write_all) == DW_OK ? CLI_DONE : cli_fail(cli);
        free(inputs);
    }
    dw_model_destroy(model);
    dw_tensors_close(file);
    return code;
}

int cli_check(cli *cli) {
    dw_tensors *file = NULL;
    dw_named_tensor *inputs = NULL;
    dw_model_options options;
    char *policy;
    int count = 0, code = cli_model_options(cli, &options, &policy);
    if (code >= 0) return code;
    dw_status status = DW_OK;
    if (cli->in != NULL) {
        status = dw_tensors_open(cli->context, cli->in, &file);
        if (status == DW_OK && (inputs = cli_inputs(file, &count)) == NULL) status = DW_NO_MEMORY;
    }
    const int beside = cli->device != NULL && strncmp(cli->device, "cpu", 3) != 0;
    if (status == DW_OK)
        status = (beside ? dw_check_device : dw_check)(cli->context, cli->file, &options, count, inputs, cli->json != NULL, cli_print, NULL);
    free(inputs);
    free(policy);
    dw_tensors_close(file);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}

int cli_compile(cli *cli) {
    dw_model *model;
    if (cli->out == NULL) return cli_refuse("compile needs -o FILE");
    int code = cli_open(cli, DW_MODEL_GENERATE, &model);
    if (code >= 0) return code;
    dw_status status = dw_model_save(model, cli->out);
    dw_model_destroy(model);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}
