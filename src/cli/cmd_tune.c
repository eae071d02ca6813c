/* tune: measures what a model runs on a GPU and keeps the fastest kernels on disk, where the other commands find them. */
#include "cli.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

typedef struct gathered { char *bytes; size_t length, room; int failed; } gathered;

static void gather(void *user, const char *text, size_t length) {
    gathered *all = user;
    if (all->length + length + 1 > all->room) {
        char *grown = realloc(all->bytes, 2 * (all->room + length) + 256);
        if (grown == NULL) {
            all->failed = 1;
            return;
        }
        all->bytes = grown;
        all->room = 2 * (all->room + length) + 256;
    }
    memcpy(all->bytes + all->length, text, length);
    all->length += length;
    all->bytes[all->length] = '\0';
}

/* The folder and all above it; 0: they are there. */
static int make_folders(const char *path) {
    char folder[4096];
    snprintf(folder, sizeof folder, "%s", path);
    for (char *at = folder + 1; *at != '\0'; at++) {
        if (*at != '/') continue;
        *at = '\0';
        if (mkdir(folder, 0777) != 0 && errno != EEXIST) return -1;
        *at = '/';
    }
    return 0;
}

static int write_text(const char *path, const char *text) {
    char fresh[4200];
    snprintf(fresh, sizeof fresh, "%s.%ld", path, (long)getpid());
    FILE *file = fopen(fresh, "w");
    if (file == NULL) return -1;
    int failed = fputs(text, file) < 0;
    failed |= fclose(file) != 0;
    if (!failed) failed = rename(fresh, path) != 0;
    if (failed) remove(fresh);
    return failed ? -1 : 0;
}

/* One process at a time measures and writes; what another wrote meanwhile is read behind the lock. */
static int tune_into(cli *cli, const dw_model_options *options, const char *path) {
    char lock[4200];
    gathered all = {0};
    snprintf(lock, sizeof lock, "%s.lock", path);
    int file = make_folders(path) == 0 ? open(lock, O_CREAT | O_RDWR, 0666) : -1;
    if (file < 0 || flock(file, LOCK_EX) != 0) {
        fprintf(stderr, "deepwell: IO: %s cannot be locked: %s; --tuning FILE names another place\n", lock, strerror(errno));
        if (file >= 0) close(file);
        return CLI_FAILED;
    }
    char *before = NULL;
    int code = access(path, F_OK) == 0 ? cli_read_text("tuning", path, &before) : -1;
    if (code < 0) code = dw_tune(cli->context, cli->file, options, before, gather, &all) == DW_OK ? CLI_DONE : cli_fail(cli);
    const int measured = code == CLI_DONE || (code == CLI_FAILED && all.length > 0);      /* of a run that was interrupted, what it had measured */
    if (measured && (all.failed || write_text(path, all.bytes) != 0)) {
        fprintf(stderr, "deepwell: IO: %s cannot be written: %s; --tuning FILE names another place\n", path, strerror(errno));
        code = CLI_FAILED;
    } else if (measured) {
        cli_print(NULL, all.bytes, all.length);
        fprintf(stderr, "kept in %s\n", path);
    }
    close(file);
    free(before);
    free(all.bytes);
    return code;
}

int cli_tune(cli *cli) {
    char path[4096];
    char *policy;
    dw_model_options options;
    int code = -1;
    if (cli->tuning != NULL) snprintf(path, sizeof path, "%s", cli->tuning);
    else code = cli_tuning_file(cli, path, sizeof path);
    if (code >= 0) return code;
    code = cli_model_options(cli, &options, &policy);
    options.tuning_name = path;
    if (code < 0) code = tune_into(cli, &options, path);
    free(policy);
    return code;
}
