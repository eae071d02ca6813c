/* The command line: parses, makes a context, runs one command. */
#include "cli.h"

#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static volatile sig_atomic_t interrupted;

static void interrupt(int signal) {
    (void)signal;
    interrupted = 1;
}

static int is_cancelled(void *user) {
    (void)user;
    return interrupted;
}

static void print_log(void *user, dw_log_level level, const char *text) {
    if (level == DW_LOG_WARNING || user != NULL) fprintf(stderr, "deepwell: %s\n", text);
}

int cli_fail(const cli *cli) {
    const char *error = dw_context_error(cli->context);
    fprintf(stderr, "deepwell: %s\n", error[0] != '\0' ? error : "out of memory");   /* memory of our own: no call has failed */
    return CLI_FAILED;
}

int cli_no_memory(void) {
    fputs("deepwell: out of memory\n", stderr);
    return CLI_FAILED;
}

int cli_refuse(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("deepwell: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    return CLI_USAGE;
}

void cli_print(void *user, const char *text, size_t length) {
    (void)user;
    fwrite(text, 1, length, stdout);
}

enum { TEXT_BYTES = 1 << 20 };

int cli_read_text(const char *option, const char *path, char **text) {
    FILE *file = fopen(path, "rb");
    *text = NULL;
    if (file == NULL) {
        fprintf(stderr, "deepwell: --%s %s: cannot open: %s\n", option, path, strerror(errno));
        return CLI_FAILED;
    }
    *text = malloc(TEXT_BYTES + 1);
    size_t length = *text ? fread(*text, 1, TEXT_BYTES + 1, file) : 0;
    int failed = ferror(file);
    fclose(file);
    if (*text == NULL) return cli_no_memory();
    if (!failed && length <= TEXT_BYTES && memchr(*text, 0, length) == NULL) {
        (*text)[length] = '\0';
        return -1;
    }
    fprintf(stderr, "deepwell: --%s %s: %s\n", option, path, failed ? "cannot be read" : "is no text of at most 1 MiB");
    free(*text);
    *text = NULL;
    return CLI_FAILED;
}

int cli_model_options(cli *cli, dw_model_options *options, char **policy) {
    *policy = NULL;
    int code = cli->policy != NULL ? cli_read_text("policy", cli->policy, policy) : -1;
    if (code < 0 && cli->tuning_text == NULL) code = cli_find_tuning(cli);
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
                                  .tuning_name = cli->tuning_name};
    return -1;
}

int cli_open(cli *cli, unsigned flags, dw_model **model) {
    dw_model_options options;
    char *policy;
    int code = cli_model_options(cli, &options, &policy);
    if (code >= 0) return code;
    options.flags = flags;
    dw_status status = dw_model_open(cli->context, cli->file, &options, model);
    free(policy);
    return status == DW_OK ? -1 : cli_fail(cli);
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
    for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
        if (strcmp(commands[i].name, cli->command) == 0) return commands[i].run(cli);
    return CLI_USAGE;
}

/* What was printed has arrived, or that is the failure. */
static int finish(int code) {
    if (fflush(stdout) == 0 && !ferror(stdout)) return code;
    fprintf(stderr, "deepwell: stdout cannot be written\n");
    return CLI_FAILED;
}

int cli_main(int argc, char **argv) {
    cli cli = {0};
    interrupted = 0;
    int code = cli_parse(argc, argv, &cli);
    if (code >= 0) return finish(code);
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
    free(cli.tuning_text);
    dw_context_destroy(cli.context);
    return finish(code);
}
