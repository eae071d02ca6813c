/* What collectives take between threads of one process, beside copies of as many bytes by as many threads at the same time: a whole call; and a rank's share of it, which is its work
 * without the waiting for others, by a communicator that waits for nobody. The best and the median, each measured in turns with the others.
 * Usage: build/bench/cpu_ranks [RANKS [BYTES]]; 2 ranks and 1 MiB where nothing is said. */
#include "comm/comm.h"
#include "device/device.h"

#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { TURNS = 801, MOST = 16 };

typedef struct shared {
    int world;
    size_t bytes;
    uint8_t id[DW_COMM_ID_BYTES];
    const char *op;
    dw_format format;
    pthread_barrier_t barrier;
    const void *operands[MOST];
    void *results[MOST];
    double copies[TURNS], calls[TURNS], shares[TURNS];   /* seconds of one, in rank 0 */
} shared;

/* One that waits for nobody: all operands and results are there. */
typedef struct idle { kernel_comm comm; shared *all; int rank, met; } idle;

typedef struct rank { shared *all; int rank; } rank;

static int by_value(const void *a, const void *b) {
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void check(dw_context *context, dw_status status) {
    if (status == DW_OK) return;
    fprintf(stderr, "cpu_ranks: %s\n", context != NULL ? dw_context_error(context) : dw_status_name(status));
    exit(1);
}

static const kernel_row *row_of(op_id op) {
    for (int i = 0; i < kernel_count(); i++)
        if (kernel_at(i)->op == op && !kernel_at(i)->reference) return kernel_at(i);
    return NULL;
}

static dw_status idle_place(kernel_comm *comm, const kernel_run *run, int *rank, int *count) {
    const idle *own = (const void *)comm;
    (void)run;
    *rank = own->rank;
    *count = own->all->world;
    return DW_OK;
}

static dw_status idle_meet(kernel_comm *comm, const kernel_run *run, kernel_meeting how, const dw_tensor *mine, dw_tensor *theirs) {
    idle *own = (void *)comm;
    (void)run;
    (void)how;
    for (int i = 0; i < own->all->world; i++) {
        theirs[i] = *mine;
        theirs[i].data = own->met % 2 == 0 ? (void *)own->all->operands[i] : own->all->results[i];
    }
    own->met++;
    return DW_OK;
}

static dw_status idle_leave(kernel_comm *comm, const kernel_run *run) {
    (void)run;
    ((idle *)(void *)comm)->met = 0;
    return DW_OK;
}

static size_t idle_room(const kernel_comm *comm, int count, const dw_tensor *mine) {
    (void)comm;
    (void)count;
    (void)mine;
    return 0;
}

static const kernel_comm_calls idle_calls = {.place = idle_place, .meet = idle_meet, .leave = idle_leave, .room = idle_room};

/* Of a call of the row, or without one of a copy; all ranks begin together. */
static double time_one(shared *s, const kernel_row *row, kernel_run *run, void *to, const void *from) {
    pthread_barrier_wait(&s->barrier);
    const double begin = base_now();
    if (row != NULL) check(run->call.context, kernel_execute(row, run));
    else memcpy(to, from, s->bytes);
    __asm__ volatile("" ::: "memory");
    return base_now() - begin;
}

static void *run_rank(void *argument) {
    const rank *r = argument;
    shared *s = r->all;
    dw_context *context;
    dw_comm *comm;
    pool *pool;
    device *cpu;
    const op_id id = op_find(s->op);
    const bool gathers = id == OP_all_gather;
    int64_t count = (int64_t)s->bytes * 8 / dw_format_bits(s->format), made = gathers ? count * s->world : count;
    check(NULL, dw_context_create(&(dw_context_options){.threads = 1}, &context));
    check(context, dw_comm_create(context, NULL, &(dw_comm_options){.rank = r->rank, .world = s->world, .id = s->id, .id_bytes = sizeof s->id}, &comm));
    check(context, base_pool(context, &pool));
    check(context, device_open(context, "cpu", &cpu));
    op_attr attrs[] = {op_set_int(OP_ATTR_axis, 0), op_set_text(OP_ATTR_over, "tp"), op_set_int(OP_ATTR_ranks, s->world), op_set_text(OP_ATTR_by, "sum")};
    const op_attrs list = {3, gathers ? attrs : attrs + 1};
    dw_tensor in, out;
    void *from = aligned_alloc(4096, s->bytes), *to = aligned_alloc(4096, (size_t)made * (size_t)dw_format_bits(s->format) / 8);
    memset(from, 0, s->bytes);
    memset(to, 0, s->bytes);
    op_tensor_init(&in, s->format, DW_SCALE_plain, 1, &count, from);
    op_tensor_init(&out, s->format, DW_SCALE_plain, 1, &made, to);
    const dw_tensor *ins = &in, *outs = &out;
    kernel_run run = {.call = {.context = context, .op = op_get(id), .attrs = &list, .n_in = 1, .in = &ins, .n_out = 1, .out = &outs}, .pool = pool, .comm = comm_kernels(comm), .step = 1, .chip = &cpu->caps};
    run.workspace = aligned_alloc(64, kernel_workspace(row_of(id), &run) + 64);
    idle alone = {.comm = {.calls = &idle_calls, .shares_memory = true}, .all = s, .rank = r->rank};
    kernel_run share = run;
    share.comm = &alone.comm;
    s->operands[r->rank] = from;
    s->results[r->rank] = to;
    for (int turn = 0; turn < TURNS; turn++) {
        const double copy = time_one(s, NULL, NULL, to, from), call = time_one(s, row_of(id), &run, NULL, NULL);
        const double work = time_one(s, row_of(id), &share, NULL, NULL);
        if (r->rank == 0) s->copies[turn] = copy, s->calls[turn] = call, s->shares[turn] = work;
    }
    pthread_barrier_wait(&s->barrier);
    free(run.workspace);
    free(from);
    free(to);
    dw_comm_destroy(comm);
    device_close(cpu);
    dw_context_destroy(context);
    return NULL;
}

static void measure(shared *s) {
    pthread_t handles[MOST];
    rank ranks[MOST];
    dw_context *context;
    size_t bytes = sizeof s->id;
    check(NULL, dw_context_create(NULL, &context));
    check(context, dw_comm_id(context, NULL, s->id, &bytes));
    pthread_barrier_init(&s->barrier, NULL, (unsigned)s->world);
    for (int i = 0; i < s->world; i++) {
        ranks[i] = (rank){s, i};
        if (pthread_create(&handles[i], NULL, run_rank, &ranks[i]) != 0) exit(1);
    }
    for (int i = 0; i < s->world; i++) pthread_join(handles[i], NULL);
    pthread_barrier_destroy(&s->barrier);
    dw_context_destroy(context);
    qsort(s->copies, TURNS, sizeof *s->copies, by_value);
    qsort(s->calls, TURNS, sizeof *s->calls, by_value);
    qsort(s->shares, TURNS, sizeof *s->shares, by_value);
    for (int at = 0; at <= TURNS / 2; at += TURNS / 2)
        printf("%-10s %-4s %9zu bytes, %2d ranks, %s: %8.1f us, a rank's share %8.1f us, a copy %8.1f us: %.2f of its speed\n", s->op, dw_format_name(s->format), s->bytes, s->world,
               at == 0 ? "best  " : "median", s->calls[at] * 1e6, s->shares[at] * 1e6, s->copies[at] * 1e6, s->copies[at] / s->shares[at]);
}

int main(int argc, char **argv) {
    const int world = argc > 1 ? atoi(argv[1]) : 2;
    const size_t bytes = argc > 2 ? (size_t)strtoull(argv[2], NULL, 10) & ~(size_t)4095 : (size_t)1 << 20;
    if (world < 1 || world > MOST || bytes == 0) {
        fprintf(stderr, "usage: cpu_ranks [RANKS [BYTES]]: 1 to %d ranks, 4096 bytes or more\n", MOST);
        return 2;
    }
    const struct { const char *op; dw_format format; } cases[] = {{"all_reduce", DW_FORMAT_f32}, {"all_reduce", DW_FORMAT_bf16}, {"all_reduce", DW_FORMAT_f16}, {"all_gather", DW_FORMAT_bf16}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) measure(&(shared){.world = world, .bytes = bytes, .op = cases[i].op, .format = cases[i].format});
    return 0;
}
