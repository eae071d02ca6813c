/* A command on several ranks: threads of this process, each with a context, a communicator and a model of its own. Rank 0 writes what the command writes. */
#include "cli.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct rank {
    cli cli;
    int (*run)(cli *cli);
    int threads, code;
    unsigned char id[DW_COMM_ID_BYTES];
    size_t id_bytes;
    char failure[2048];             /* the context's message, where the command failed */
    pthread_t thread;
} rank;

static void print_log(void *user, dw_log_level level, const char *text) {
    const cli *cli = user;
    if (cli->rank == 0 && (level == DW_LOG_WARNING || cli->verbose != NULL)) fprintf(stderr, "deepwell: %s\n", text);
}

static dw_status join(rank *rank) {
    cli *cli = &rank->cli;
    const dw_comm_options options = {.rank = cli->rank, .world = cli->ranks, .mesh = cli->mesh, .id = rank->id, .id_bytes = rank->id_bytes};
    return dw_comm_create(cli->context, cli->device, &options, &cli->comm);
}

static void *run_rank(void *argument) {
    rank *rank = argument;
    cli *cli = &rank->cli;
    const dw_context_options options = {.threads = rank->threads, .log = print_log, .log_user = cli, .cancelled = cli_is_cancelled};
    const dw_status status = dw_context_create(&options, &cli->context);
    if (status != DW_OK) {
        snprintf(rank->failure, sizeof rank->failure, "no context: %s", dw_status_meaning(status));
        return NULL;
    }
    if (cli->rank > 0) cli_be_quiet();
    if (join(rank) == DW_OK) rank->code = rank->run(cli);
    if (rank->code == CLI_FAILED) snprintf(rank->failure, sizeof rank->failure, "%s", dw_context_error(cli->context));
    free(cli->tuning_text);
    free(cli->split_text);
    dw_comm_destroy(cli->comm);
    dw_context_destroy(cli->context);
    return NULL;
}

/* Of several failures the one that the others came of: theirs say that they lost a rank. */
static void print_failure(const rank *ranks, int count) {
    const rank *first = NULL;
    for (int i = 0; i < count; i++) {
        const int follows = strncmp(ranks[i].failure, "LOST", 4) == 0;
        if (ranks[i].code != CLI_FAILED || ranks[i].failure[0] == '\0') continue;
        if (first == NULL || (strncmp(first->failure, "LOST", 4) == 0 && !follows)) first = &ranks[i];
    }
    if (first != NULL) fprintf(stderr, "deepwell: rank %d: %s\n", first->cli.rank, first->failure);
}

/* --world, or the product of --mesh: what is no mesh at all is said by who reads it (dw_comm_create). */
int cli_count_ranks(const cli *cli) {
    long long world = 1, product = 1, size;
    if (cli->comm != NULL) {   /* ranks are there already, processes */
        const int fits = (cli->world == NULL || strtol(cli->world, NULL, 10) == cli->ranks) && (cli->mesh == NULL || strcmp(cli->mesh, dw_comm_mesh(cli->comm)) == 0);
        static const char *const commands[] = {"run", "generate", "check", "compile"};
        for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
            if (strcmp(cli->command, commands[i]) == 0) return fits ? 0 : (cli_refuse("there are %d ranks, %s: leave out --world and --mesh, or give these", cli->ranks, dw_comm_mesh(cli->comm)), -1);
        cli_refuse("%s is no command for several ranks; run, generate, check and compile are", cli->command);
        return -1;
    }
    if (strcmp(cli->command, "explain") == 0 || strcmp(cli->command, "inspect") == 0) return 0;
    for (const char *at = cli->mesh; at != NULL && (at = strchr(at, '=')) != NULL;) {
        char *end;
        size = strtoll(++at, &end, 10);
        product = size > 0 && size <= 4096 && product <= 4096 ? product * size : 0;
        at = end;
    }
    if (cli->world != NULL && !cli_integer("world", cli->world, 1, 256, &world)) return -1;
    if (cli->world == NULL) world = product;
    if (world >= 1 && world <= 256) return world == 1 && cli->mesh == NULL ? 0 : (int)world;
    cli_refuse("--mesh %s is no mesh of 1 to 256 ranks, such as tp=2", cli->mesh);
    return -1;
}

int cli_run_ranks(cli *cli, int count, int (*run)(struct cli *cli)) {
    rank *ranks = calloc((size_t)count, sizeof *ranks);
    unsigned char id[DW_COMM_ID_BYTES];
    size_t id_bytes = sizeof id;
    int started = 0, code = CLI_DONE;
    if (ranks == NULL) return cli_no_memory();
    if (dw_comm_id(cli->context, cli->device, id, &id_bytes) != DW_OK) {
        free(ranks);
        return cli_fail(cli);
    }
    const int threads = dw_context_threads(cli->context);
    for (; started < count; started++) {
        rank *rank = &ranks[started];
        *rank = (struct rank){.cli = *cli, .run = run, .threads = threads > count ? threads / count : 1, .code = CLI_FAILED, .id_bytes = id_bytes};
        memcpy(rank->id, id, sizeof id);
        rank->cli.rank = started;
        rank->cli.ranks = count;
        rank->cli.tuning_text = NULL;
        if (pthread_create(&rank->thread, NULL, run_rank, rank) != 0) break;
    }
    if (started < count) fprintf(stderr, "deepwell: no thread for rank %d\n", started);
    for (int i = 0; i < started; i++) pthread_join(ranks[i].thread, NULL);
    for (int i = 0; i < started; i++)
        if (ranks[i].code != CLI_DONE && (code == CLI_DONE || ranks[i].code == CLI_FAILED)) code = ranks[i].code;
    if (started < count) code = CLI_FAILED;
    print_failure(ranks, started);
    free(ranks);
    return code;
}
