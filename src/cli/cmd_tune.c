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

/* Where texts of tunings are kept, with a slash behind it; 0: there is no such place. */
static int find_folder(char *folder, size_t size) {
    const char *cache = getenv("XDG_CACHE_HOME"), *home = getenv("HOME");
    const int own = cache != NULL && cache[0] == '/';
    if (!own && (home == NULL || home[0] != '/')) return 0;
    const int length = snprintf(folder, size, "%s%s/deepwell/tuning/", own ? cache : home, own ? "" : "/.cache");
    return length > 0 && (size_t)length < size;
}

/* The file of the device's key; -1, or the exit code. */
static int find_file(cli *cli, char *path, size_t size) {
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

int cli_find_tuning(cli *cli) {
    char path[4096];
    if (strcmp(cli->command, "tune") == 0) return -1;
    if (cli->tuning != NULL) return read_tuning(cli, cli->tuning);
    if (cli->device == NULL || strncmp(cli->device, "cuda", 4) != 0 || is_compiled(cli->file)) return -1;
    if (!find_folder(path, sizeof path) || access(path, R_OK) != 0) return -1;      /* nobody has tuned here */
    const int code = find_file(cli, path, sizeof path);
    if (code >= 0) return code;
    if (access(path, F_OK) != 0) return -1;
    if (cli->verbose != NULL) fprintf(stderr, "tuning: %s\n", path);
    return read_tuning(cli, path);
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
    else code = find_file(cli, path, sizeof path);
    if (code >= 0) return code;
    code = cli_model_options(cli, &options, &policy);
    options.tuning_name = path;
    if (code < 0) code = tune_into(cli, &options, path);
    free(policy);
    return code;
}
