/* A service over the ranks of MPI: mpirun -np 2 build/examples/mpi_serve models/kjv.pt2 16 73,110 65,110,100. Behind the model and the number of tokens stand prompts of ids; rank 0, which leads, has them answered
 * together and prints them. The others follow it. It is stepped in the thread that began MPI, so that no other one calls MPI. */
#include "mpi.h"

#include <string.h>

enum { TEXTS = 16, PROMPT = 256, TOKENS = 256 };

typedef struct answer { uint64_t request; int made; int64_t ids[TOKENS]; } answer;

static int64_t read_ids(const char *words, int64_t *ids) {
    int64_t count = 0;
    for (const char *at = words; at != NULL && count < PROMPT; at = strchr(at, ','), at = at != NULL ? at + 1 : NULL) ids[count++] = atoll(at);
    return count;
}

static void take_events(dw_service *service, answer *answers, int texts) {
    dw_event events[64];
    for (int count; (count = dw_service_poll(service, events, 64)) > 0;)
        for (int e = 0; e < count; e++)
            for (int i = 0; i < texts; i++)
                if (answers[i].request == events[e].request && events[e].id >= 0) answers[i].ids[answers[i].made++] = events[e].id;
}

static dw_status lead(dw_context *context, dw_service *service, int texts, char **prompts, int64_t tokens) {
    static answer answers[TEXTS];
    int64_t ids[PROMPT];
    dw_status status = DW_OK;
    for (int i = 0; i < texts && status == DW_OK; i++) status = dw_service_submit(context, service, &(dw_request){.count = read_ids(prompts[i], ids), .ids = ids, .tokens = tokens}, &answers[i].request);
    for (int busy = 1; busy && status == DW_OK;) {
        status = dw_service_step(context, service, &busy);
        take_events(service, answers, texts);
    }
    for (int i = 0; i < texts && status == DW_OK; i++) {
        printf("%d:", i + 1);
        for (int k = 0; k < answers[i].made; k++) printf(" %lld", (long long)answers[i].ids[k]);
        printf("\n");
    }
    return status;
}

int main(int argc, char **argv) {
    int rank, world;
    mpi m = {.along = {MPI_COMM_WORLD}};
    const int64_t tokens = argc > 2 ? atoll(argv[2]) : 0;
    dw_context *context = NULL;
    dw_comm *comm;
    dw_model *model;
    dw_service *service;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (argc < 4 || argc > 3 + TEXTS || tokens < 1 || tokens > TOKENS || dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) MPI_Abort(MPI_COMM_WORLD, 2);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);   /* so that the message says at which op */
    const dw_collectives engine = {all_gather, all_to_all, &m, words_of};
    DO(dw_comm_create(context, "cpu", &(dw_comm_options){.rank = rank, .world = world, .engine = &engine}, &comm));
    DO(dw_model_open(context, argv[1], &(dw_model_options){.comm = comm, .shard = "all", .flags = DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY}, &model));
    DO(dw_service_create(context, model, NULL, &service));
    DO(dw_service_leads(service) ? lead(context, service, argc - 3, argv + 3, tokens) : dw_service_follow(context, service));
    dw_service_destroy(service);
    dw_model_destroy(model);
    dw_comm_destroy(comm);
    dw_context_destroy(context);
    MPI_Finalize();
    return 0;
}
