/* The command line: parses, makes a context, runs one command. */
#include "cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_log(void *user, dw_log_level level, const char *text) {
    if (level == DW_LOG_WARNING || user != NULL) fprintf(stderr, "deepwell: %s\n", text);
}

static const struct {
    const char *name;
    int (*run)(cli *cli);
} commands[] = {
#define CLI_COMMAND(name, letter, operand, meaning) {#name, cli_##name},
#include "cmd.def"
#undef CLI_COMMAND
};

static int run_command(cli *cli) {
    const int ranks = cli_count_ranks(cli);
    if (ranks < 0) return CLI_USAGE;
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, cli->command) == 0) return ranks > 0 ? cli_run_ranks(cli, ranks, commands[i].run) : commands[i].run(cli);
    return CLI_USAGE;
}

/* What was printed has arrived, or that is the failure. */
static int finish(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "deepwell: stdout cannot be written\n");
    return CLI_FAILED;
}

/* What a rank of several processes could not do. Those that lost another one leave it to that one and to the first. */
static void print_failure(const cli *cli) {
    const char *error = dw_context_error(cli->context);
    if (cli->rank == 0 || strncmp(error, "LOST", 4) != 0) fprintf(stderr, "deepwell: rank %d: %s\n", cli->rank, error);
}

int cli_main(int argc, char **argv) { return cli_main_of_rank(argc, argv, NULL); }

int cli_main_of_rank(int argc, char **argv, dw_comm *comm) {
    cli cli = {0};
    if (comm != NULL && dw_comm_rank(comm) > 0) cli_be_quiet();
    int code = cli_parse(argc, argv, &cli);
    if (comm != NULL) {
        cli.comm = comm;
        cli.rank = dw_comm_rank(comm);
        cli.ranks = dw_comm_world(comm);
    }
    if (code >= 0) return finish(code);
    long long threads = 0;
    if (cli.threads != NULL && !cli_integer("threads", cli.threads, 1, 1024, &threads)) return CLI_USAGE;
    dw_context_options options = {.threads = (int)threads, .log = print_log, .log_user = cli.verbose ? &cli : NULL, .cancelled = cli_is_cancelled};
    cli_catch_interrupts();
    dw_status status = dw_context_create(&options, &cli.context);
    if (status != DW_OK) {
        fprintf(stderr, "deepwell: no context: %s\n", dw_status_meaning(status));
        return CLI_FAILED;
    }
    code = run_command(&cli);
    if (comm != NULL && code == CLI_FAILED) print_failure(&cli);
    free(cli.tuning_text);
    free(cli.split_text);
    dw_context_destroy(cli.context);
    return finish(code);
}
