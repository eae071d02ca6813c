/* The commands that print facts and run nothing: probe, inspect, explain. */
#include "cli.h"

#include <stdio.h>
#include <string.h>

int cli_probe(cli *cli) {
    const int json = cli->json != NULL;
    const dw_status status = cli->chip != NULL ? dw_chip(cli->context, cli->chip, json, cli_print, NULL) : dw_probe(cli->context, json, cli_print, NULL);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}

/* The graph that the command gradients runs. */
static int print_gradients(cli *cli) {
    dw_graph *graph = NULL, *gradients = NULL;
    dw_status status = dw_graph_open(cli->context, cli->file, &graph);
    if (status == DW_OK) status = dw_graph_gradient(graph, &(dw_gradient_options){.loss = cli->loss, .trained = cli->trained}, &gradients);
    if (status == DW_OK) status = dw_graph_print(gradients, cli_print, NULL);
    dw_graph_destroy(gradients);
    dw_graph_destroy(graph);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}

int cli_inspect(cli *cli) {
    static const struct {
        const char *name;
        dw_print what;
    } graphs[] = {
        {"captured", DW_PRINT_CAPTURED}, {"fused", DW_PRINT_FUSED}, {"lowered", DW_PRINT_GRAPH}, {"step", DW_PRINT_STEP}, {"plan", DW_PRINT_PLAN},
    };
    dw_print what = DW_PRINT_SUMMARY;
    if (cli->graph != NULL && cli->json != NULL) return cli_refuse("--graph prints text: leave out --json");
    if (cli->operators != NULL) return dw_operators(cli->context, cli->json != NULL, cli_print, NULL) == DW_OK ? CLI_DONE : cli_fail(cli);
    if (cli->graph != NULL && strcmp(cli->graph, "gradients") == 0) return print_gradients(cli);
    if (cli->graph != NULL) {
        size_t i = 0;
        while (i < sizeof graphs / sizeof graphs[0] && strcmp(graphs[i].name, cli->graph) != 0) i++;
        if (i == sizeof graphs / sizeof graphs[0]) return cli_refuse("--graph %s: expected captured, fused, lowered, step, plan or gradients", cli->graph);
        what = graphs[i].what;
    }
    dw_model *model;
    int code = cli_open(cli, DW_MODEL_PLAN_ONLY | DW_MODEL_GENERATE, &model);
    if (code >= 0) return code;
    dw_status status = dw_model_print(model, what, cli->json != NULL, cli_print, NULL);
    dw_model_destroy(model);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}

int cli_explain(cli *cli) {
    dw_model *model;
    if (cli->memory != NULL && cli->json != NULL) return cli_refuse("--memory prints text: leave out --json");
    int code = cli_open(cli, DW_MODEL_PLAN_ONLY | DW_MODEL_GENERATE, &model);
    if (code >= 0) return code;
    dw_status status = dw_model_print(model, DW_PRINT_EXPLAIN, cli->json != NULL, cli_print, NULL);
    if (status == DW_OK && cli->memory != NULL) status = dw_model_print(model, DW_PRINT_MEMORY, 0, cli_print, NULL);
    dw_model_destroy(model);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}
