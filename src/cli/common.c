/* What every command prints, refuses and reads. */
#include "cli.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static _Thread_local int is_quiet;   /* a rank that is not the first: that one says what is wrong with the options */

void cli_be_quiet(void) { is_quiet = 1; }

/* Of a rank the failure is printed once all have ended (ranks.c). */
int cli_fail(const cli *cli) {
    if (cli->ranks > 0) return CLI_FAILED;
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
    if (is_quiet) return CLI_USAGE;
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
        if (!is_quiet) fprintf(stderr, "deepwell: --%s %s: cannot open: %s\n", option, path, strerror(errno));
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
    if (!is_quiet) fprintf(stderr, "deepwell: --%s %s: %s\n", option, path, failed ? "cannot be read" : "is no text of at most 1 MiB");
    free(*text);
    *text = NULL;
    return CLI_FAILED;
}
