/* Ranks that are processes, of which one is killed at any moment: while they meet, make their models, run, or have a service. The others get LOST in time, with the rank that is gone and, in a run, the op and
 * its layer. The engine is the caller's, over sockets, and says no more than what it sees: who closed, who did not come. */
#include "comm/comm.h"
#include "deepwell/deepwell.h"
#include "support/support.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { WORLD = 3, TIMES = 100, SERVED = 30, WORDS = 128, MESSAGE = 512 };
static const double TIMEOUT_S = 2;

static const char GRAPH[] =
    "graph three\n  input x f32[40]\n"
    "  %1 = all_reduce x {over=\"tp\",ranks=3,by=\"sum\"} at \"mlp.down\"\n"
    "  %2 = all_gather %1 {axis=0,over=\"tp\",ranks=3} at \"lm_head\"\n  output y %2\n";

/* Decodes: lookup and attention by heads, logits by vocabulary. */
static const char SERVED_GRAPH[] =
    "graph served\n  symbol b 1..4\n  symbol s 1..64\n  input ids i64[b,s]\n  param t f32[12,6]\n  %1 = take t, ids {axis=0} at \"embed\"\n  %2 = reshape %1 {shape=[b,s,3,2]}\n"
    "  %3 = transpose %2 {order=[0,2,1,3]}\n  %4 = attention %3, %3, %3 {scale=1.5,causal=true} at \"attn\"\n  %5 = transpose %4 {order=[0,2,1,3]}\n"
    "  %6 = reshape %5 {shape=[b,s,6]}\n  %7 = matmul %6, t {bt=true} at \"lm_head\"\n  output logits %7\n";

/* ---- an engine over sockets: peers[i] reaches rank i ---- */

typedef struct sockets { int rank, peers[WORLD]; char words[WORDS]; } sockets;

static int fail_with(sockets *s, int peer, const char *how) {
    snprintf(s->words, sizeof s->words, "rank %d %s", peer, how);
    return DW_LOST;
}

/* to[i] to rank i and what it sends to from[i], all at the same time. */
static int exchange(sockets *s, const uint8_t *const to[WORLD], uint8_t *const from[WORLD], size_t bytes) {
    size_t sent[WORLD] = {0}, received[WORLD] = {0};
    memcpy(from[s->rank], to[s->rank], bytes);
    sent[s->rank] = received[s->rank] = bytes;
    for (;;) {
        struct pollfd waits[WORLD];
        int waiting = -1;
        for (int i = 0; i < WORLD; i++) {
            waits[i] = (struct pollfd){.fd = -1};
            if (sent[i] == bytes && received[i] == bytes) continue;
            waits[i] = (struct pollfd){s->peers[i], (short)((sent[i] < bytes ? POLLOUT : 0) | (received[i] < bytes ? POLLIN : 0)), 0};
            if (waiting < 0 || received[i] < bytes) waiting = i;
        }
        if (waiting < 0) return DW_OK;
        const int ready = poll(waits, WORLD, (int)(TIMEOUT_S * 1e3));
        if (ready == 0) return fail_with(s, waiting, "did not come");
        for (int i = 0; i < WORLD; i++) {
            ssize_t moved;
            if ((waits[i].revents & (POLLIN | POLLHUP | POLLERR)) != 0 && received[i] < bytes) {
                moved = recv(s->peers[i], from[i] + received[i], bytes - received[i], MSG_DONTWAIT);
                if (moved == 0 || (moved < 0 && errno != EAGAIN)) return fail_with(s, i, "is gone");
                received[i] += moved > 0 ? (size_t)moved : 0;
            }
            if ((waits[i].revents & POLLOUT) != 0 && sent[i] < bytes) {
                moved = send(s->peers[i], to[i] + sent[i], bytes - sent[i], MSG_DONTWAIT | MSG_NOSIGNAL);
                if (moved < 0 && errno != EAGAIN) return fail_with(s, i, "is gone");
                sent[i] += moved > 0 ? (size_t)moved : 0;
            } else if ((waits[i].revents & (POLLHUP | POLLERR)) != 0) {
                return fail_with(s, i, "is gone");
            }
        }
    }
}

static int all_gather(void *user, int axis, const void *part, void *parts, size_t bytes) {
    const uint8_t *to[WORLD];
    uint8_t *from[WORLD];
    (void)axis;
    for (int i = 0; i < WORLD; i++) to[i] = part, from[i] = (uint8_t *)parts + (size_t)i * bytes;
    return exchange(user, to, from, bytes);
}

static int all_to_all(void *user, int axis, const void *parts, void *received, size_t bytes) {
    const uint8_t *to[WORLD];
    uint8_t *from[WORLD];
    (void)axis;
    for (int i = 0; i < WORLD; i++) to[i] = (const uint8_t *)parts + (size_t)i * bytes, from[i] = (uint8_t *)received + (size_t)i * bytes;
    return exchange(user, to, from, bytes);
}

static const char *words_of(void *user) { return ((sockets *)user)->words; }

/* ---- ranks ---- */

/* What a rank tells the test when a call failed. */
typedef struct answer { dw_status status; bool in_a_run, is_wrong; int runs; double at_s; char message[MESSAGE]; } answer;

static dw_status run_once(dw_session *session, int rank, bool *is_wrong) {
    float x[40], y[3 * 40];
    dw_named_tensor in = {.name = "x"}, out = {.name = "y"};
    for (int i = 0; i < 40; i++) x[i] = (float)(rank + i);
    op_tensor_init(&in.tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){40}, x);
    op_tensor_init(&out.tensor, DW_FORMAT_f32, DW_SCALE_plain, 1, (int64_t[]){3 * 40}, y);
    const dw_status status = dw_session_run(session, 1, &in, 1, &out);
    for (int i = 0; i < 3 * 40 && status == DW_OK; i++) *is_wrong |= y[i] != (float)(3 * (i % 40) + 3);
    return status;
}

/* Requests without end, until one ends by a fault; then the service stops with the reason. */
static dw_status lead(dw_context *context, dw_service *service, answer *a) {
    static const int64_t ids[] = {1, 5, 2};
    dw_event events[64];
    uint64_t request;
    bool faults = false;
    TRY(dw_service_start(context, service));
    for (int open = 0; !faults;) {
        for (; open < 3; open++)
            if (dw_service_submit(context, service, &(dw_request){.count = 3, .ids = ids, .tokens = 8}, &request) != DW_OK) faults = true;
        const int count = dw_service_poll(service, events, COUNT_OF(events));
        for (int i = 0; i < count; i++) {
            open -= events[i].end != DW_END_NONE;
            faults |= events[i].end == DW_END_FAULT;
            a->is_wrong |= events[i].end == DW_END_FAULT && strstr(events[i].message, "LOST") == NULL;
        }
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
    }
    return dw_service_stop(context, service, 0);
}

static dw_status serve(dw_context *context, dw_comm *comm, int tells, answer *a) {
    static float weights[12 * 6];
    const dw_named_tensor weight = {"t", {.format = DW_FORMAT_f32, .rank = 2, .dims = {12, 6}, .strides = {6, 1}, .data = weights}};
    dw_graph *graph;
    dw_model *model;
    dw_service *service;
    for (int i = 0; i < 12 * 6; i++) weights[i] = (float)(i * 7 % 11) / 4 - 1;
    TRY(dw_graph_parse(context, "text", SERVED_GRAPH, strlen(SERVED_GRAPH), &graph));
    TRY(dw_graph_bind(graph, 1, &weight));
    TRY(dw_model_create(context, graph, &(dw_model_options){.comm = comm, .shard = "all", .flags = DW_MODEL_GENERATE_ONLY}, &model));
    TRY(dw_service_create(context, model, &(dw_service_options){.rows = 2, .context = 32, .page_tokens = 16}, &service));
    a->in_a_run = true;
    if (write(tells, "R", 1) != 1) _exit(2);
    return dw_service_leads(service) ? lead(context, service, a) : dw_service_follow(context, service);
}

/* Tells the test that it has begun to run, and runs until a call fails. */
static dw_status live(dw_context *context, sockets *s, int tells, bool serves, answer *a) {
    const dw_collectives engine = {all_gather, all_to_all, s, words_of};
    dw_comm *comm;
    dw_graph *graph;
    dw_model *model;
    dw_session *session;
    TRY(dw_comm_create(context, "cpu", &(dw_comm_options){.rank = s->rank, .world = WORLD, .engine = &engine}, &comm));
    if (serves) return serve(context, comm, tells, a);
    TRY(dw_graph_parse(context, "text", GRAPH, strlen(GRAPH), &graph));
    TRY(dw_model_create(context, graph, &(dw_model_options){.comm = comm}, &model));
    TRY(dw_session_create(context, model, NULL, &session));
    a->in_a_run = true;
    if (write(tells, "R", 1) != 1) _exit(2);
    for (;; a->runs++) TRY(run_once(session, s->rank, &a->is_wrong));
}

/* A process; what it leaves behind ends with it. */
static void be_rank(int rank, int pairs[WORLD][WORLD], int tells, bool serves) {
    sockets s = {.rank = rank};
    answer a = {0};
    dw_context *context;
    for (int i = 0; i < WORLD; i++)
        for (int j = 0; j < WORLD; j++)
            if (i == rank) s.peers[j] = pairs[i][j];
            else if (i != j) close(pairs[i][j]);
    if (dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) _exit(2);
    a.status = live(context, &s, tells, serves, &a);
    a.at_s = base_now();
    snprintf(a.message, sizeof a.message, "%s", dw_context_error(context));
    _exit(write(tells, "A", 1) != 1 || write(tells, &a, sizeof a) != (ssize_t)sizeof a);
}

typedef struct started { pid_t pids[WORLD]; int heard[WORLD]; } started;

static void start_all(started *all, bool serves) {
    int pairs[WORLD][WORLD];
    for (int i = 0; i < WORLD; i++)
        for (int j = i + 1; j < WORLD; j++) {
            int both[2];
            assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, both), 0);
            pairs[i][j] = both[0];
            pairs[j][i] = both[1];
        }
    for (int i = 0; i < WORLD; i++) {
        int tells[2];
        assert_int_equal(pipe(tells), 0);
        all->heard[i] = tells[0];
        all->pids[i] = fork();
        assert_true(all->pids[i] >= 0);
        if (all->pids[i] == 0) be_rank(i, pairs, tells[1], serves);
        close(tells[1]);
    }
    for (int i = 0; i < WORLD; i++)
        for (int j = 0; j < WORLD; j++)
            if (i != j) close(pairs[i][j]);
}

static char tag_of(int heard) {
    char tag;
    assert_int_equal(read(heard, &tag, 1), 1);
    return tag;
}

/* how: SIGKILL or SIGSTOP, so many seconds after all have started, or have begun to run. Returns how many of the others were in a run. */
static int lose_one(int who, int how, bool running, bool serves, double after_s) {
    started all;
    char named[32];
    int in_runs = 0;
    start_all(&all, serves);
    for (int i = 0; i < WORLD && running; i++) assert_int_equal(tag_of(all.heard[i]), 'R');
    nanosleep(&(struct timespec){.tv_nsec = (long)(after_s * 1e9)}, NULL);
    const double begin = base_now();
    assert_int_equal(kill(all.pids[who], how), 0);
    snprintf(named, sizeof named, "rank %d %s", who, how == SIGKILL ? "is gone" : "did not come");
    for (int i = 0; i < WORLD; i++) {
        answer a;
        if (i == who) continue;
        if (tag_of(all.heard[i]) == 'R') assert_int_equal(tag_of(all.heard[i]), 'A');
        assert_int_equal(read(all.heard[i], &a, sizeof a), sizeof a);
        /* Who has heard of it first gives up, and is gone for the third. Who stops may have sent to one of the others and not to the other, which then comes no further either. */
        char third[32], waits[32];
        snprintf(third, sizeof third, "rank %d is gone", WORLD - who - i);
        snprintf(waits, sizeof waits, "rank %d did not come", WORLD - who - i);
        const bool is_named = strstr(a.message, named) != NULL || strstr(a.message, third) != NULL || (how == SIGSTOP && strstr(a.message, waits) != NULL);
        if (a.status != DW_LOST || a.at_s - begin > TIMEOUT_S + 2 || a.is_wrong || !is_named)
            fail_msg("rank %d, when rank %d got signal %d after %.4f s: status %d, %.3f s later, wrong: %d: %s", i, who, how, after_s, a.status, a.at_s - begin, a.is_wrong, a.message);
        in_runs += a.in_a_run;
        if (serves && a.in_a_run && strstr(a.message, "orders over tp") == NULL && strstr(a.message, "over tp) (step") == NULL) fail_msg("neither an order nor a step is named: %s", a.message);
        if (serves) continue;
        if (a.in_a_run && strstr(a.message, "mlp.down") == NULL && strstr(a.message, "lm_head") == NULL) fail_msg("no layer is named: %s", a.message);
        if (a.in_a_run && strstr(a.message, "all_reduce over tp") == NULL && strstr(a.message, "all_gather over tp") == NULL) fail_msg("no op is named: %s", a.message);
    }
    kill(all.pids[who], SIGKILL);
    for (int i = 0; i < WORLD; i++) {
        assert_int_equal(waitpid(all.pids[i], NULL, 0), all.pids[i]);
        close(all.heard[i]);
    }
    return in_runs;
}

static void a_rank_killed_at_any_moment_is_an_error_of_the_others(void **state) {
    int in_runs = 0;
    (void)state;
    for (int i = 0; i < TIMES; i++) in_runs += lose_one((int)(num_random(1, (uint64_t)i) % WORLD), SIGKILL, i % 2 != 0, false, (double)(num_random(2, (uint64_t)i) % 1000) * 2e-5);
    print_message("%d of %d errors came in a run\n", in_runs, TIMES * (WORLD - 1));
    assert_true(in_runs >= TIMES);   /* those of ranks that had begun to run */
}

static void a_rank_of_a_service_is_no_other(void **state) {
    int in_runs = 0;
    (void)state;
    for (int i = 0; i < SERVED; i++) in_runs += lose_one(i % WORLD, SIGKILL, i % 4 != 0, true, (double)(num_random(3, (uint64_t)i) % 1000) * 2e-5);
    print_message("%d of %d errors came in a run or at an order\n", in_runs, SERVED * (WORLD - 1));
    assert_true(in_runs >= SERVED);
}

static void a_rank_that_stops_is_an_error_in_time(void **state) {
    (void)state;
    for (int i = 0; i < WORLD; i++) lose_one(i, SIGSTOP, true, i == 1, 0.01);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_rank_killed_at_any_moment_is_an_error_of_the_others),
        cmocka_unit_test(a_rank_of_a_service_is_no_other),
        cmocka_unit_test(a_rank_that_stops_is_an_error_in_time),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
