/* The runner of text cases; see cases.h. */
#include "support/cases.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "support/support.h"

#define SEPARATOR "----\n"
#define PATH_BYTES 1024

typedef struct case_set {
    const char *folder;
    case_run run;
    bool update;
    char **filters;
    int filter_count;
    int count, failed;
} case_set;

static char *read_file(const char *path, size_t *length) {
    FILE *file = fopen(path, "rb");
    if (file == NULL) return NULL;
    char *bytes = NULL;
    if (fseek(file, 0, SEEK_END) == 0) {
        long size = ftell(file);
        rewind(file);
        bytes = size >= 0 ? malloc((size_t)size + 1) : NULL;
        *length = bytes != NULL ? fread(bytes, 1, (size_t)size, file) : 0;
        if (bytes != NULL) bytes[*length] = '\0';
    }
    fclose(file);
    return bytes;
}

/* Where the expected text begins: behind the first line that is the separator; NULL when there is none. */
static char *find_expected(char *bytes) {
    if (strncmp(bytes, SEPARATOR, strlen(SEPARATOR)) == 0) return bytes + strlen(SEPARATOR);
    char *found = strstr(bytes, "\n" SEPARATOR);
    return found != NULL ? found + 1 + strlen(SEPARATOR) : NULL;
}

static bool write_case(const char *path, const char *input, size_t input_length, const char *output) {
    FILE *file = fopen(path, "wb");
    if (file == NULL) return false;
    bool written = fwrite(input, 1, input_length, file) == input_length && fputs(SEPARATOR, file) >= 0 && fputs(output, file) >= 0;
    return fclose(file) == 0 && written;
}

static void show_difference(const char *expected, const char *output) {
    int line = 1;
    while (*expected != '\0' && *expected == *output) {
        line += *expected == '\n';
        expected++, output++;
    }
    fprintf(stderr, "  the first difference is in line %d of the expected text\n", line);
}

/* bytes hold the whole file and are cut at the expected text. */
static void check_case(case_set *set, const char *path, const char *name, char *bytes) {
    char *expected = find_expected(bytes);
    size_t input_length = expected != NULL ? (size_t)(expected - bytes) - strlen(SEPARATOR) : strlen(bytes);
    if (expected == NULL && !set->update) {
        fprintf(stderr, "FAILED %s: no line \"----\" between input and expected text\n", name);
        set->failed++;
        return;
    }
    test_memory memory = {0};
    dw_context *context = test_context_create(&memory, 1);
    text output;
    text_init(&output, context);
    dw_status status = set->run(context, name, bytes, input_length, &output);
    if (status != DW_OK) {
        text_free(&output);
        text_init(&output, context);
        text_printf(&output, "error: %s\n", dw_context_error(context));
    }
    const char *made = text_string(&output);
    if (expected == NULL || strcmp(expected, made) != 0) {
        if (set->update && write_case(path, bytes, input_length, made)) {
            printf("updated %s\n", name);
        } else {
            fprintf(stderr, "FAILED %s\n--- expected\n%s--- came out\n%s", name, expected != NULL ? expected : "", made);
            if (expected != NULL) show_difference(expected, made);
            set->failed++;
        }
    }
    text_free(&output);
    dw_context_destroy(context);
    if (memory.live_count != 0) {
        fprintf(stderr, "FAILED %s: %zu allocations stay live\n", name, memory.live_count);
        set->failed++;
    }
}

static bool is_wanted(const case_set *set, const char *name) {
    for (int i = 0; i < set->filter_count; i++) {
        if (strstr(name, set->filters[i]) != NULL) return true;
    }
    return set->filter_count == 0;
}

static void run_file(case_set *set, const char *path) {
    char name[PATH_BYTES];
    size_t length = strlen(path + strlen(set->folder) + 1) - strlen(".txt");
    snprintf(name, sizeof name, "%.*s", (int)length, path + strlen(set->folder) + 1);
    if (!is_wanted(set, name)) return;
    size_t bytes_length = 0;
    char *bytes = read_file(path, &bytes_length);
    set->count++;
    if (bytes == NULL || strlen(bytes) != bytes_length) {
        fprintf(stderr, "FAILED %s: the file cannot be read as text\n", name);
        set->failed++;
    } else {
        check_case(set, path, name, bytes);
    }
    free(bytes);
}

static void run_folder(case_set *set, const char *folder) {
    struct dirent **entries;
    int count = scandir(folder, &entries, NULL, alphasort);
    for (int i = 0; i < count; i++) {
        const char *name = entries[i]->d_name;
        size_t length = strlen(name);
        char path[PATH_BYTES];
        if (name[0] != '.' && snprintf(path, sizeof path, "%s/%s", folder, name) < PATH_BYTES) {
            if (length > 4 && strcmp(name + length - 4, ".txt") == 0) run_file(set, path);
            else run_folder(set, path);
        }
        free(entries[i]);
    }
    if (count >= 0) free(entries);
}

int cases_main(int argc, char **argv, const char *folder, case_run run) {
    case_set set = {.folder = folder, .run = run, .filters = argv + 1, .filter_count = argc - 1};
    if (argc > 1 && strcmp(argv[1], "--update") == 0) {
        set.update = true;
        set.filters++;
        set.filter_count--;
    }
    run_folder(&set, folder);
    printf("%d cases, %d failed\n", set.count, set.failed);
    if (set.count == 0) fprintf(stderr, "no case was found in %s\n", folder);
    return set.failed > 0 || set.count == 0;
}

bool case_take_line(const char **input, size_t *length, const char *prefix, char *line, size_t room) {
    size_t prefix_length = strlen(prefix);
    if (*length < prefix_length || memcmp(*input, prefix, prefix_length) != 0) return false;
    const char *end = memchr(*input, '\n', *length);
    size_t line_length = end != NULL ? (size_t)(end - *input) : *length;
    snprintf(line, room, "%.*s", (int)line_length, *input);
    size_t taken = line_length + (end != NULL);
    *input += taken;
    *length -= taken;
    return true;
}
