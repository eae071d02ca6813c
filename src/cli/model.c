/* A model as the options ask for it: its policy, and the tuning that is given or was kept. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Where texts of tunings are kept, with a slash behind it; 0: there is no such place. */
static int find_folder(char *folder, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const int own = cache != NULL && cache[0] == '/';
    if (!own && (home == NULL || home[0] != '/')) return 0;
    const int length = snprintf(folder, size, "%s%s/deepwell/tuning/", own ? cache : home, own ? "" : "/.cache");
    return length > 0 && (size_t)length < size;
}

int cli_tuning_file(cli *cli, char *path, size_t size) {
    char key[256];
    if (!find_folder(path, size)) return cli_refuse("there is no folder for caches: set XDG_CACHE_HOME or HOME, or give --tuning FILE");
    if (dw_tuning_key(cli->context, cli->device, key, sizeof key) != DW_OK) return cli_fail(cli);
    const size_t used = strlen(path);
    snprintf(path + used, size - used, "%s.txt", key);
    return -1;
}

static int read_tuning(cli *cli, const char *path) {
    snprintf(cli->tuning_name, sizeof cli->tuning_name, "%s", path);
    return cli_read_text("tuning", path, &cli->tuning_text);
}

/* A compiled file, recognised by its first bytes, cannot be tuned: its kernels are settled. */
static int is_compiled(const char *path) {
    char first[8];
    FILE *file = path != NULL ? fopen(path, "rb") : NULL;
    const int is = file != NULL && fread(first, 1, sizeof first, file) == sizeof first && memcmp(first, "DEEPWELL", sizeof first) == 0;
    if (file != NULL) fclose(file);
    return is;
}

/* What was measured for the device, into cli->tuning_text; -1: go on, also where nothing was. */
static int find_tuning(cli *cli) {
    char path[4096];
    if (strcmp(cli->command, "tune") == 0) return -1;
    if (cli->tuning != NULL) return read_tuning(cli, cli->tuning);
    if (cli->device == NULL || strncmp(cli->device, "cuda", 4) != 0 || is_compiled(cli->file)) return -1;
    if (!find_folder(path, sizeof path) || access(path, R_OK) != 0) return -1;      /* nobody has tuned here */
    const int code = cli_tuning_file(cli, path, sizeof path);
    if (code >= 0) return code;
    if (access(path, F_OK) != 0) return -1;
    if (cli->verbose != NULL) fprintf(stderr, "tuning: %s\n", path);
    return read_tuning(cli, path);
}

int cli_model_options(cli *cli, dw_model_options *options, char **policy) {
    *policy = NULL;
    int code = cli->policy != NULL ? cli_read_text("policy", cli->policy, policy) : -1;
    if (code < 0 && cli->shard != NULL && cli->split_text == NULL) code = cli_read_text("shard", cli->shard, &cli->split_text);
    if (code < 0 && cli->tuning_text == NULL) code = find_tuning(cli);
    if (code >= 0) {
        free(*policy);
        *policy = NULL;
        return code;
    }
    *options = (dw_model_options){.precision = cli->precision,
                                  .policy = *policy,
                                  .device = cli->device,
                                  .chip = cli->chip,
                                  .dims = cli->dim,
                                  .weights = cli->weights,
                                  .kernels = cli->kernels,
                                  .tuning = cli->tuning_text,
                                  .tuning_name = cli->tuning_name,
                                  .comm = cli->comm,
                                  .mesh = cli->comm == NULL ? cli->mesh : NULL,
                                  .shard = cli->split_text,
                                  .flags = cli->invariant != NULL ? DW_MODEL_INVARIANT : 0};
    return -1;
}

int cli_open(cli *cli, unsigned flags, dw_model **model) {
    dw_model_options options;
    char *policy;
    int code = cli_model_options(cli, &options, &policy);
    if (code >= 0) return code;
    options.flags |= flags;
    dw_status status = dw_model_open(cli->context, cli->file, &options, model);
    free(policy);
    return status == DW_OK ? -1 : cli_fail(cli);
}

int cli_gradient_options(const cli *cli, dw_gradient_options *options) {
    long long chunks = 0;
    *options = (dw_gradient_options){.loss = cli->loss, .trained = cli->trained, .inputs = cli->of, .recompute = cli->recompute};
    if (cli->chunks != NULL && !cli_integer("chunks", cli->chunks, 1, 64, &chunks)) return CLI_USAGE;
    options->chunks = (int)chunks;
    return -1;
}

dw_status cli_bind_weights(const cli *cli, dw_graph *graph, dw_tensors **file) {
    dw_status status = cli->weights != NULL ? dw_tensors_open(cli->context, cli->weights, file) : DW_OK;
    for (int i = 0; status == DW_OK && i < (*file != NULL ? dw_tensors_count(*file) : 0); i++) {
        const dw_named_tensor one = dw_tensors_at(*file, i);
        status = dw_graph_bind(graph, 1, &one);
    }
    return status;
}
