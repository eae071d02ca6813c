/* The command bench. */
#include "cli.h"

#include <stdlib.h>

int cli_bench(cli *cli) {
    dw_bench_options options = {0};
    dw_model_options model_options;
    long long number;
    char *policy;
    if (cli->prefill != NULL) {
        if (!cli_integer("prefill", cli->prefill, 1, 1 << 24, &number)) return CLI_USAGE;
        options.prefill = number;
    }
    if (cli->tokens != NULL) {
        if (!cli_integer("tokens", cli->tokens, 1, 1 << 24, &number)) return CLI_USAGE;
        options.tokens = number;
    }
    if (cli->repeat != NULL) {
        if (!cli_integer("repeat", cli->repeat, 1, 100000, &number)) return CLI_USAGE;
        options.repeat = (int)number;
    }
    int code = cli_model_options(cli, &model_options, &policy);
    if (code >= 0) return code;
    dw_status status = dw_bench(cli->context, cli->file, &model_options, &options, cli->json != NULL, cli_print, NULL);
    free(policy);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}
