/* A service on standard input and output: each line is a prompt of token ids, and is answered with the ids that continue it, in a line that begins with its number. Many are read at a time; lines are
 * answered as they end.
 *
 *     printf '73 110 32 116 104\n65 110 100 32\n' | build/examples/serve models/kjv.pt2 [TOKENS]
 */
#include <deepwell/deepwell.h>

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 4096, TOKENS = 1024, OPEN = 256, EVENTS = 256 };

/* What came of a line so far. */
typedef struct answer { uint64_t request; int64_t line; int made; int64_t ids[TOKENS]; } answer;

static int fail(dw_context *context) {
    fprintf(stderr, "serve: %s\n", dw_context_error(context));
    return 1;
}

/* One line of ids; how many, or -1: a word is no id, or they are too many. */
static int64_t read_ids(char *line, int64_t *ids) {
    int64_t count = 0;
    for (char *word = strtok(line, " \t\n"), *end; word != NULL; word = strtok(NULL, " \t\n")) {
        if (count == PROMPT) return -1;
        ids[count++] = strtoll(word, &end, 10);
        if (*end != 0) return -1;
    }
    return count;
}

static void print_answer(const answer *answer, const dw_event *last) {
    printf("%lld:", (long long)answer->line);
    for (int i = 0; i < answer->made; i++) printf(" %lld", (long long)answer->ids[i]);
    if (last->end != DW_END_LENGTH) printf(" (%s)", dw_end_meaning(last->end));
    printf("\n");
    fflush(stdout);
}

/* Takes all events that there are; how many answers ended. */
static int take_events(dw_service *service, answer *answers) {
    dw_event events[EVENTS];
    int ended = 0;
    for (int i = 0, count = dw_service_poll(service, events, EVENTS); i < count; i++) {
        answer *answer = answers;
        while (answer->line == 0 || answer->request != events[i].request) answer++;
        if (events[i].id >= 0) answer->ids[answer->made++] = events[i].id;
        if (events[i].end == DW_END_NONE) continue;
        print_answer(answer, &events[i]);
        answer->line = 0;
        ended++;
    }
    return ended;
}

/* A line becomes a request, or is answered with what is wrong with it; 1: it is open. */
static int ask(dw_context *context, dw_service *service, char *line, int64_t number, int64_t tokens, answer *answers) {
    static int64_t ids[PROMPT];
    answer *answer = answers;
    while (answer->line != 0) answer++;
    const dw_request request = {.count = read_ids(line, ids), .ids = ids, .tokens = tokens};
    *answer = (struct answer){.line = number};
    if (request.count >= 0 && dw_service_submit(context, service, &request, &answer->request) == DW_OK) return 1;
    if (request.count < 0) printf("%lld: (a line is token ids, %d at most, with spaces between them)\n", (long long)number, PROMPT);
    else printf("%lld: (%s)\n", (long long)number, dw_context_error(context));
    fflush(stdout);
    answer->line = 0;
    return 0;
}

static int serve(dw_context *context, dw_service *service, int64_t tokens) {
    static answer answers[OPEN];
    static char line[16 * PROMPT];
    int open = 0, more = 1;
    setvbuf(stdin, NULL, _IONBF, 0);   /* so that poll sees every line that is there */
    for (int64_t number = 1; more || open > 0;) {
        struct pollfd events[2] = {{dw_service_fd(service), POLLIN, 0}, {more && open < OPEN ? 0 : -1, POLLIN, 0}};
        if (poll(events, 2, -1) <= 0) continue;
        if (events[0].revents != 0) open -= take_events(service, answers);
        if (events[1].revents == 0) continue;
        more = fgets(line, sizeof line, stdin) != NULL;
        if (more) open += ask(context, service, line, number++, tokens, answers);
    }
    return dw_service_stop(context, service, 0) == DW_OK ? 0 : fail(context);
}

int main(int argc, char **argv) {
    const dw_model_options generating = {.flags = DW_MODEL_GENERATE_ONLY};
    const int64_t tokens = argc > 2 ? strtoll(argv[2], NULL, 10) : 16;
    dw_context *context;
    dw_model *model = NULL;
    dw_service *service = NULL;
    int code = 1;
    if (argc < 2 || tokens < 1 || tokens > TOKENS) return fprintf(stderr, "serve MODEL [TOKENS]: of tokens 1 to %d\n", TOKENS), 2;
    if (dw_context_create(NULL, &context) != DW_OK) return 1;
    if (dw_model_open(context, argv[1], &generating, &model) != DW_OK || dw_service_create(context, model, NULL, &service) != DW_OK || dw_service_start(context, service) != DW_OK) fail(context);
    else code = serve(context, service, tokens);
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_context_destroy(context);
    return code;
}
