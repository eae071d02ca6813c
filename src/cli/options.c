/* Parsing of the command line and its help, both from the rows of cmd.def and option.def. */
#include "cli.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct option_row {
    const char *name, *value, *commands, *meaning;
    size_t member;
} option_row;
typedef struct command_row {
    const char *name;
    char letter;
    const char *operand, *meaning;
} command_row;

static const option_row options[] = {
#define CLI_OPTION(name, value, commands, meaning) {#name, value, commands, meaning, offsetof(cli, name)},
#include "option.def"
#undef CLI_OPTION
};
static const command_row commands[] = {
#define CLI_COMMAND(name, letter, operand, meaning) {#name, letter, operand, meaning},
#include "cmd.def"
#undef CLI_COMMAND
};
enum { OPTION_COUNT = sizeof options / sizeof options[0], COMMAND_COUNT = sizeof commands / sizeof commands[0] };

static int takes(const command_row *command, const option_row *option) {
    return option->commands[0] == '*' || strchr(option->commands, command->letter) != NULL;
}

/* Rows are C names; users type dashes. */
static const char *dashed(const char *name, char *buffer, size_t size) {
    snprintf(buffer, size, "%s", name);
    for (char *at = buffer; *at != '\0'; at++)
        if (*at == '_') *at = '-';
    return buffer;
}

static void print_help(const command_row *command) {
    char name[32], left[48];
    printf("deepwell %s%s%s [options]: %s\n\n", command->name, command->operand ? " " : "", command->operand ? command->operand : "",
           command->meaning);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!takes(command, &options[i])) continue;
        snprintf(left, sizeof left, "--%s%s%s", dashed(options[i].name, name, sizeof name), options[i].value ? " " : "",
                 options[i].value ? options[i].value : "");
        printf("  %-22s %s\n", left, options[i].meaning);
    }
    if (command->operand != NULL) printf("\nFILE is a .pt2 archive of torch.export, a compiled .dw, or a graph in its text form.\n");
}

static void print_overview(FILE *to) {
    fprintf(to, "deepwell: PyTorch-exported transformers in low precision\n\n");
    for (int i = 0; i < COMMAND_COUNT; i++)
        fprintf(to, "  deepwell %-9s %-5s %s\n", commands[i].name, commands[i].operand ? commands[i].operand : "", commands[i].meaning);
    fprintf(to, "\n'deepwell COMMAND --help' lists a command's options; 'deepwell --version' tells the version.\n"
                "Results go to stdout, messages to stderr. Exit status: 0 done, 1 failed, 2 wrong usage.\n");
}

static int parse_options(int argc, char **argv, const command_row *command, cli *cli) {
    struct option rows[OPTION_COUNT + 1];
    char names[OPTION_COUNT][32];
    int count = 0, index[OPTION_COUNT], found;
    memset(rows, 0, sizeof rows);
    for (int i = 0; i < OPTION_COUNT; i++) {
        if (!takes(command, &options[i])) continue;
        rows[count] = (struct option){.name = dashed(options[i].name, names[i], sizeof names[i]),
                                      .has_arg = options[i].value ? required_argument : no_argument};
        index[count++] = i;
    }
    int at = 0;
    optind = 2;
    opterr = 0;
    const char *letters = strchr("k", command->letter) ? ":ho:" : ":h";
    while ((found = getopt_long(argc, argv, letters, rows, &at)) != -1) {
        const int is_prompt = found == 0 && (strcmp(options[index[at]].name, "ids") == 0 || strcmp(options[index[at]].name, "prompt") == 0);
        if (is_prompt && cli->prompt_count == CLI_MOST_PROMPTS) return cli_refuse("more than %d prompts are given", CLI_MOST_PROMPTS);
        if (is_prompt) cli->prompts[cli->prompt_count++] = optarg;
        const char *const *given = found == 0 ? (const char **)(void *)((char *)cli + options[index[at]].member) : &cli->out;
        const int takes_value = found == 'o' || (found == 0 && options[index[at]].value != NULL);
        if (takes_value && !is_prompt && *given != NULL)
            return cli_refuse("--%s is given twice, as %s and as %s: give it once%s", found == 0 ? names[index[at]] : "out", *given, optarg, strchr(*given, '=') != NULL ? ", with commas between" : "");
        if (found == 0) *(const char **)(void *)((char *)cli + options[index[at]].member) = options[index[at]].value ? optarg : "";
        else if (found == 'o') cli->out = optarg;
        else if (found == 'h') cli->help = "";
        else if (found == ':') return cli_refuse("%s needs a value; see 'deepwell %s --help'", argv[optind - 1], command->name);
        else if (optopt != 0 && argv[optind - 1][1] != '-')
            return cli_refuse("'-%c' is not an option of 'deepwell %s'; see 'deepwell %s --help'", optopt, command->name, command->name);
        else return cli_refuse("'%s' is not an option of 'deepwell %s'; see 'deepwell %s --help'", argv[optind - 1], command->name, command->name);
    }
    for (; optind < argc; optind++) {
        if (command->operand == NULL || cli->file != NULL) return cli_refuse("'%s' is one operand too many", argv[optind]);
        cli->file = argv[optind];
    }
    return -1;
}

/* Of sizes each has one: "s=1,s=2" would be another model than one of the two, and nothing at all is no size. */
static int check_sizes(const char *words) {
    if (*words == '\0') return cli_refuse("--dim: expected name=size, comma-separated");
    for (const char *at = words; at != NULL; at = strchr(at, ',') != NULL ? strchr(at, ',') + 1 : NULL) {
        const size_t length = strcspn(at, "=,");
        for (const char *next = strchr(at, ','); next != NULL; next = strchr(next + 1, ','))
            if (at[length] == '=' && strncmp(next + 1, at, length + 1) == 0) return cli_refuse("--dim %s: %.*s has two sizes", words, (int)length, at);
    }
    return -1;
}

int cli_parse(int argc, char **argv, cli *cli) {
    if (argc < 2) {
        print_overview(stderr);
        return CLI_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        print_overview(stdout);
        return CLI_DONE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("deepwell %s\n", dw_version());
        return CLI_DONE;
    }
    for (int i = 0; i < COMMAND_COUNT; i++) {
        if (strcmp(argv[1], commands[i].name) != 0) continue;
        cli->command = commands[i].name;
        int code = parse_options(argc, argv, &commands[i], cli);
        if (code >= 0) return code;
        if (cli->help != NULL) {
            print_help(&commands[i]);
            return CLI_DONE;
        }
        if (cli->dim != NULL && (code = check_sizes(cli->dim)) >= 0) return code;
        if (commands[i].operand != NULL && cli->file == NULL && cli->operators == NULL)
            return cli_refuse("%s needs a file; see 'deepwell %s --help'", commands[i].name, commands[i].name);
        return -1;
    }
    return cli_refuse("there is no command '%s'; 'deepwell --help' lists them", argv[1]);
}

int cli_integer(const char *option, const char *value, long long least, long long most, long long *number) {
    char *end;
    errno = 0;
    *number = strtoll(value, &end, 10);
    if (errno == 0 && end != value && *end == '\0' && *number >= least && *number <= most) return 1;
    cli_refuse("--%s %s: expected an integer from %lld to %lld", option, value, least, most);
    return 0;
}

int cli_real(const char *option, const char *value, double most, double *number) {
    char *end;
    *number = strtod(value, &end);
    if (end != value && *end == '\0' && *number >= 0 && *number <= most) return 1;
    cli_refuse(most < 1e30 ? "--%s %s: expected a number from 0 to %g" : "--%s %s: expected a number of at least 0", option, value, most);
    return 0;
}

int cli_ids(const char *option, const char *value, int64_t **ids, int64_t *count) {
    size_t most = strlen(value) / 2 + 1;
    *count = 0;
    *ids = malloc(most * sizeof **ids);
    if (*ids == NULL) {
        cli_no_memory();
        return 0;
    }
    for (const char *at = value; *at != '\0';) {
        char *end;
        errno = 0;
        long long id = strtoll(at, &end, 10);
        if (errno != 0 || end == at || (*end != ',' && *end != '\0') || (*end == ',' && end[1] == '\0')) {
            cli_refuse("--%s %s: expected integers separated by commas", option, value);
            return 0;
        }
        (*ids)[(*count)++] = id;
        at = *end == ',' ? end + 1 : end;
    }
    return 1;
}
