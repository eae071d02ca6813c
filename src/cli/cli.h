/* What the files of the command line share. It uses the public interface alone. */
#ifndef CLI_CLI_H
#define CLI_CLI_H

#include "deepwell/deepwell.h"

/* Exit codes. */
enum { CLI_DONE = 0, CLI_FAILED = 1, CLI_USAGE = 2 };

enum { CLI_MOST_PROMPTS = 256 };

/* The options as given; NULL: not given. Those without a value are "". */
typedef struct cli {
    const char *command, *file;
#define CLI_OPTION(name, value, commands, meaning) const char *name;
#include "option.def"
#undef CLI_OPTION
    const char *prompts[CLI_MOST_PROMPTS];   /* each --ids or --prompt, in order; ids and prompt are the last */
    int prompt_count;
    char *tuning_text;                       /* of --tuning, or of what tune has kept for the device; NULL: none */
    char tuning_name[4096];                  /* its file */
    char *split_text;                        /* of --shard; NULL: none */
    dw_context *context;
    int rank, ranks;                         /* of a command on several ranks which one this is, of how many; ranks 0: it is alone */
    dw_comm *comm;
} cli;

#define CLI_COMMAND(name, letter, operand, meaning) int cli_##name(cli *cli);
#include "cmd.def"
#undef CLI_COMMAND

/* options.c. parse: fills cli, or prints what is wrong (or the help that was asked for) and gives the exit code; -1: go on. */
int cli_parse(int argc, char **argv, cli *cli);
/* An option's value as a number; prints and gives false when it is none or lies outside [least, most]. */
int cli_integer(const char *option, const char *value, long long least, long long most, long long *number);
int cli_real(const char *option, const char *value, double most, double *number);   /* from 0 */
/* "1,2,3" into *ids (malloc) and *count. */
int cli_ids(const char *option, const char *value, int64_t **ids, int64_t *count);

/* cli.c */
int cli_main(int argc, char **argv);                        /* the whole command; its exit code. Handles SIGINT and SIGTERM from then on */
int cli_main_of_rank(int argc, char **argv, dw_comm *comm); /* the same of a process that is one of its ranks: all of them run it, the first writes its results. NULL: it is alone */

/* interrupt.c: SIGINT and SIGTERM end a run at its next step; or, where patient, the first one is only counted. The third ends the process */
void cli_catch_interrupts(void);
int cli_is_cancelled(void *user);                           /* a dw_context_options.cancelled */
void cli_set_patient(int patient);
int cli_interrupts(void);

/* common.c */
int cli_fail(const cli *cli);                               /* prints the context's message; CLI_FAILED */
int cli_no_memory(void);                                    /* says so; CLI_FAILED */
int cli_refuse(const char *format, ...);                    /* prints a usage message; CLI_USAGE */
void cli_be_quiet(void);                                    /* of this thread usage messages are not printed */
void cli_print(void *user, const char *text, size_t length);/* a dw_sink to stdout */
/* A file of at most 1 MiB as a text (malloc); -1: it is read, else the exit code. option names it in messages. */
int cli_read_text(const char *option, const char *path, char **text);

/* model.c */
/* Model options from the command line; *policy (malloc) holds the policy file's text and outlives the options. */
int cli_model_options(cli *cli, dw_model_options *options, char **policy);
/* What --loss, --trained, --recompute and --chunks say of gradients; -1, or an exit code. */
int cli_gradient_options(const cli *cli, dw_gradient_options *options);
/* --weights for a graph: its data, or other numbers. *file, NULL before, stays open as long as the graph lives. */
dw_status cli_bind_weights(const cli *cli, dw_graph *graph, dw_tensors **file);
int cli_open(cli *cli, unsigned flags, dw_model **model);
/* The file of what was tuned for the device; -1, or the exit code. */
int cli_tuning_file(cli *cli, char *path, size_t size);

/* cmd_train.c: what the options say of a trainer; -1, or an exit code. model is what cli_model_options gave. */
int cli_trainer_options(const cli *cli, const dw_model_options *model, dw_trainer_options *options);

/* ranks.c: --world and --mesh */
int cli_count_ranks(const cli *cli);                        /* 0: the command is alone, or one of several processes; -1: a usage error, which is printed */
int cli_run_ranks(cli *cli, int count, int (*run)(struct cli *cli));

/* cmd_run.c */
/* One run on these inputs; write gets all outputs. */
dw_status cli_run_on(cli *cli, const dw_model *model, int count, const dw_named_tensor *inputs,
                     dw_status (*write)(struct cli *cli, const dw_model *model, const dw_named_tensor *outputs, int count));
/* What a file holds as an array (malloc) of borrowed tensors; NULL: no memory. */
dw_named_tensor *cli_inputs(const dw_tensors *file, int *count);

#endif
