/* The command trace. */
#include "cli.h"

#include <stdlib.h>

int cli_trace(cli *cli) {
    dw_trace_options trace = {.launch = cli->launch, .cta = cli->cta};
    dw_model_options options;
    dw_tensors *file = NULL;
    dw_named_tensor *inputs = NULL;
    long long number;
    char *policy;
    int count = 0;
    if (cli->warp != NULL) {
        if (!cli_integer("warp", cli->warp, 0, 31, &number)) return CLI_USAGE;
        trace.warp = (int)number;
    }
    if (cli->lines != NULL) {
        if (!cli_integer("lines", cli->lines, 1, 1ll << 40, &number)) return CLI_USAGE;
        trace.lines = number;
    }
    int code = cli_model_options(cli, &options, &policy);
    if (code >= 0) return code;
    dw_status status = DW_OK;
    if (cli->in != NULL) {
        status = dw_tensors_open(cli->context, cli->in, &file);
        if (status == DW_OK && (inputs = cli_inputs(file, &count)) == NULL) status = DW_NO_MEMORY;
    }
    if (status == DW_OK) status = dw_trace(cli->context, cli->file, &options, &trace, count, inputs, cli_print, NULL);
    free(inputs);
    free(policy);
    dw_tensors_close(file);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}
