/* Runs a model over the ranks of MPI: mpirun -np 2 build/examples/mpi models/kjv.pt2 73 110. Each rank makes the same model with a communicator, of the two functions in mpi.h; rank 0 says which id is
 * the likeliest next. mpi_serve.c has a service. */
#include "mpi.h"

int main(int argc, char **argv) {
    int64_t ids[16], count = argc - 2, next = 0, made;
    int rank, world;
    mpi m = {.along = {MPI_COMM_WORLD}};
    dw_context *context;
    dw_comm *comm;
    dw_model *model;
    dw_session *session;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (count < 1 || count > 16 || dw_context_create(&(dw_context_options){.threads = 1}, &context) != DW_OK) MPI_Abort(MPI_COMM_WORLD, 2);
    for (int i = 0; i < count; i++) ids[i] = atoll(argv[i + 2]);
    MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);   /* so that the message says at which op */
    const dw_collectives engine = {all_gather, all_to_all, &m, words_of};
    DO(dw_comm_create(context, "cpu", &(dw_comm_options){.rank = rank, .world = world, .engine = &engine}, &comm));
    DO(dw_model_open(context, argv[1], &(dw_model_options){.comm = comm, .shard = "all", .flags = DW_MODEL_GENERATE | DW_MODEL_GENERATE_ONLY}, &model));
    DO(dw_session_create(context, model, &(dw_session_options){.max_tokens = count + 1}, &session));
    DO(dw_session_generate(session, count, ids, &(dw_generate_options){.tokens = 1}, &next, &made, NULL));
    if (rank == 0) printf("the likeliest next id is %lld\n", (long long)next);
    dw_session_destroy(session);
    dw_model_destroy(model);
    dw_comm_destroy(comm);
    dw_context_destroy(context);
    MPI_Finalize();
    return 0;
}
