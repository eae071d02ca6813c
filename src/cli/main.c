/* The command `deepwell`: parses, makes a context, runs one command. */
#include "cli.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

static int is_cancelled(void *user)
{
    (void)user;
    return interrupted;
}

static void print_log(void *user, dw_log_level level, const char *text)
{
    if (level == DW_LOG_WARNING || user != NULL) fprintf(stderr, "deepwell: %s\n", text);
}

int cli_fail(const cli *cli)
{
    fprintf(stderr, "deepwell: %s\n", dw_context_error(cli->context));
    return CLI_FAILED;
}

int cli_refuse(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("deepwell: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return CLI_USAGE;
}

void cli_print(void *user, const char *text, size_t length)
{
    (void)user;
    fwrite(text, 1, length, stdout);
}

static char *read_text(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = file ? malloc(1 << 20) : NULL;
    if (text != NULL) text[fread(text, 1, (1 << 20) - 1, file)] = '\0';
    if (file != NULL) fclose(file);
    return text;
}

int cli_model_options(const cli *cli, dw_model_options *options, char **policy)
{
    *policy = NULL;
    if (cli->policy != NULL && (*policy = read_text(cli->policy)) == NULL) {
        fprintf(stderr, "deepwell: --policy: %s cannot be read\n", cli->policy);
        return CLI_FAILED;
    }
    *options = (dw_model_options){.precision = cli->precision, .policy = *policy, .device = cli->device, .chip = cli->chip, .dims = cli->dim,
                                  .weights = cli->weights, .kernels = cli->kernels};
    return -1;
}

int cli_open(cli *cli, unsigned flags, dw_model **model)
{
    dw_model_options options;
    char *policy;
    int code = cli_model_options(cli, &options, &policy);
    if (code >= 0) return code;
    options.flags = flags;
    dw_status status = dw_model_open(cli->context, cli->file, &options, model);
    free(policy);
    return status == DW_OK ? -1 : cli_fail(cli);
}

static const struct { const char *name; int (*run)(cli *cli); } commands[] = {
#define CLI_COMMAND(name, letter, operand, meaning) {#name, cli_##name},
#include "cmd.def"
#undef CLI_COMMAND
};

static int run_command(cli *cli)
{
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, cli->command) == 0) return commands[i].run(cli);
    return CLI_USAGE;
}

int main(int argc, char **argv)
{
    cli cli = {0};
    int code = cli_parse(argc, argv, &cli);
    if (code >= 0) return code;
    long long threads = 0;
    if (cli.threads != NULL && !cli_integer("threads", cli.threads, 1, 1024, &threads)) return CLI_USAGE;
    dw_context_options options = {.threads = (int)threads, .log = print_log, .log_user = cli.verbose ? &cli : NULL, .cancelled = is_cancelled};
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = interrupt;
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    dw_status status = dw_context_create(&options, &cli.context);
    if (status != DW_OK) {
        fprintf(stderr, "deepwell: no context: %s\n", dw_status_meaning(status));
        return CLI_FAILED;
    }
    code = run_command(&cli);
    dw_context_destroy(cli.context);
    if (fflush(stdout) != 0 || ferror(stdout)) {
        fprintf(stderr, "deepwell: stdout cannot be written\n");
        return CLI_FAILED;
    }
    return code;
}
