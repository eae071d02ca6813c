/* The commands that print facts and run nothing: probe, inspect, explain. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int cli_probe(cli *cli) {
    const int json = cli->json != NULL;
    const dw_status status = cli->chip != NULL ? dw_chip(cli->context, cli->chip, json, cli_print, NULL) : dw_probe(cli->context, json, cli_print, NULL);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}

/* The graph that the command gradients runs. */
static int print_gradients(cli *cli) {
    dw_graph *graph = NULL, *gradients = NULL;
    dw_gradient_options wanted;
    const int code = cli_gradient_options(cli, &wanted);
    if (code >= 0) return code;
    dw_status status = dw_graph_open(cli->context, cli->file, &graph);
    if (status == DW_OK) status = dw_graph_gradient(graph, &wanted, &gradients);
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

/* What the command train would do. */
static int explain_training(cli *cli) {
    dw_model_options model;
    dw_trainer_options options;
    dw_graph *graph = NULL;
    dw_tensors *weights = NULL;
    char *policy = NULL;
    if (cli->memory != NULL) return cli_refuse("--memory prints the workspace of a run: leave it out with --train");
    int code = cli_model_options(cli, &model, &policy);
    if (code < 0) code = cli_trainer_options(cli, &model, &options);
    if (code < 0 && dw_graph_open(cli->context, cli->file, &graph) != DW_OK) code = cli_fail(cli);
    if (code < 0 && cli_bind_weights(cli, graph, &weights) != DW_OK) code = cli_fail(cli);
    if (code >= 0) dw_graph_destroy(graph);
    else if (dw_trainer_explain(cli->context, graph, &options, cli->chip, cli->json != NULL, cli_print, NULL) != DW_OK) code = cli_fail(cli);   /* which takes the graph over */
    dw_tensors_close(weights);
    free(policy);
    return code < 0 ? CLI_DONE : code;
}

int cli_explain(cli *cli) {
    dw_model *model;
    if (cli->train != NULL) return explain_training(cli);
    if (cli->loss != NULL || cli->trained != NULL || cli->recompute != NULL || cli->chunks != NULL || cli->optimizer != NULL || cli->decayed != NULL || cli->accumulate != NULL || cli->clip != NULL)
        return cli_refuse("--loss, --trained, --recompute, --chunks, --optimizer, --decayed, --accumulate and --clip are of training: explain --train");
    if (cli->memory != NULL && cli->json != NULL) return cli_refuse("--memory prints text: leave out --json");
    int code = cli_open(cli, DW_MODEL_PLAN_ONLY | DW_MODEL_GENERATE, &model);
    if (code >= 0) return code;
    dw_status status = dw_model_print(model, DW_PRINT_EXPLAIN, cli->json != NULL, cli_print, NULL);
    if (status == DW_OK && cli->memory != NULL) status = dw_model_print(model, DW_PRINT_MEMORY, 0, cli_print, NULL);
    dw_model_destroy(model);
    return status == DW_OK ? CLI_DONE : cli_fail(cli);
}
