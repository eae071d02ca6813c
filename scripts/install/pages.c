/* Writes what is installed beside the command from the same rows as its --help: man pages (deepwell.1 and one per command) and completion for
 * bash. Usage: pages FOLDER. Runs while building, is not installed. */
#include <stdio.h>
#include <string.h>

typedef struct option_row { const char *name, *value, *commands, *meaning; } option_row;
typedef struct command_row { const char *name; char letter; const char *operand, *meaning; } command_row;

static const option_row options[] = {
#define CLI_OPTION(name, value, commands, meaning) {#name, value, commands, meaning},
#include "option.def"
#undef CLI_OPTION
};
static const command_row commands[] = {
#define CLI_COMMAND(name, letter, operand, meaning) {#name, letter, operand, meaning},
#include "cmd.def"
#undef CLI_COMMAND
};
enum { OPTIONS = sizeof options / sizeof options[0], COMMANDS = sizeof commands / sizeof commands[0] };

static int takes(const command_row *command, const option_row *option) {
    return option->commands[0] == '*' || strchr(option->commands, command->letter) != NULL;
}

/* roff: dashes that stay dashes, backslashes that stay. */
static void put(FILE *page, const char *text) {
    for (; *text != '\0'; text++) {
        if (*text == '-' || *text == '\\') fputc('\\', page);
        fputc(*text == '_' ? '_' : *text, page);
    }
}

static void put_option(FILE *page, const option_row *option) {
    fputs(".TP\n.B \\-\\-", page);
    for (const char *at = option->name; *at != '\0'; at++) fputs(*at == '_' ? "\\-" : (char[]){*at, '\0'}, page);
    if (option->value != NULL) {
        fputs(" \\fI", page);
        put(page, option->value);
        fputs("\\fR", page);
    }
    fputc('\n', page);
    put(page, option->meaning);
    fputs(".\n", page);
}

static FILE *open_page(const char *folder, const char *name) {
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *page = fopen(path, "w");
    if (page == NULL) fprintf(stderr, "pages: %s cannot be written\n", path);
    return page;
}

static int write_command(const char *folder, const command_row *command) {
    char name[64];
    snprintf(name, sizeof name, "deepwell-%s.1", command->name);
    FILE *page = open_page(folder, name);
    if (page == NULL) return 1;
    fprintf(page, ".TH DEEPWELL\\-%s 1\n.SH NAME\ndeepwell\\-%s \\- ", command->name, command->name);
    put(page, command->meaning);
    fprintf(page, "\n.SH SYNOPSIS\n.B deepwell %s\n", command->name);
    if (command->operand != NULL) fprintf(page, ".I %s\n", command->operand);
    fputs("[\\fIoptions\\fR]\n.SH OPTIONS\n", page);
    for (int i = 0; i < OPTIONS; i++) {
        if (takes(command, &options[i])) put_option(page, &options[i]);
    }
    fputs(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage.\n.SH SEE ALSO\n.BR deepwell (1)\n", page);
    return fclose(page) != 0;
}

static int write_overview(const char *folder) {
    FILE *page = open_page(folder, "deepwell.1");
    if (page == NULL) return 1;
    fputs(".TH DEEPWELL 1\n.SH NAME\ndeepwell \\- PyTorch\\-exported transformers in low precision\n.SH SYNOPSIS\n.B deepwell\n.I command\n[\\fIoptions\\fR]\n"
          ".SH DESCRIPTION\nFILE is a .pt2 archive of torch.export, a compiled .dw, or a graph in its text form. Results go to stdout, messages to stderr.\n"
          ".SH COMMANDS\n", page);
    for (int i = 0; i < COMMANDS; i++) {
        fprintf(page, ".TP\n.BR deepwell\\-%s (1)\n", commands[i].name);
        put(page, commands[i].meaning);
        fputs(".\n", page);
    }
    fputs(".SH EXIT STATUS\n0 done, 1 failed, 2 wrong usage.\n", page);
    return fclose(page) != 0;
}

static void put_words(FILE *file, const command_row *command) {
    for (int i = 0; i < OPTIONS; i++) {
        if (!takes(command, &options[i])) continue;
        fputs(" --", file);
        for (const char *at = options[i].name; *at != '\0'; at++) fputc(*at == '_' ? '-' : *at, file);
    }
}

static int write_completion(const char *folder) {
    FILE *file = open_page(folder, "deepwell.bash");
    if (file == NULL) return 1;
    fputs("# bash completion for deepwell\n_deepwell() {\n    local word=${COMP_WORDS[COMP_CWORD]} words\n    if [ \"$COMP_CWORD\" = 1 ]; then\n        words=\"", file);
    for (int i = 0; i < COMMANDS; i++) fprintf(file, "%s ", commands[i].name);
    fputs("--help --version\"\n    else\n        case ${COMP_WORDS[1]} in\n", file);
    for (int i = 0; i < COMMANDS; i++) {
        fprintf(file, "        %s) words=\"", commands[i].name);
        put_words(file, &commands[i]);
        fputs("\" ;;\n", file);
    }
    fputs("        esac\n    fi\n    case $word in\n    -*) COMPREPLY=($(compgen -W \"$words\" -- \"$word\")) ;;\n"
          "    *) [ \"$COMP_CWORD\" = 1 ] && COMPREPLY=($(compgen -W \"$words\" -- \"$word\")) || COMPREPLY=($(compgen -f -- \"$word\")) ;;\n    esac\n}\n"
          "complete -o filenames -F _deepwell deepwell\n", file);
    return fclose(file) != 0;
}

int main(int argc, char **argv) {
    if (argc != 2) return fprintf(stderr, "usage: pages FOLDER\n"), 2;
    int failed = write_overview(argv[1]) | write_completion(argv[1]);
    for (int i = 0; i < COMMANDS; i++) failed |= write_command(argv[1], &commands[i]);
    return failed;
}
