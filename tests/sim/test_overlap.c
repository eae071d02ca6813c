/* Launches of a graph that overlap: what the simulator finds in kernels that do not wait, wait late or in some threads alone, and that it lets right ones pass. */
#include "support/support.h"

#include "sim/driver/driver.h"

enum { THREADS = 32, BYTES = THREADS * 4, BUFFERS = 4 };

#define FIRST(body) "ld.param.u64 %to, [to]; ld.param.u64 %from, [from]; ld.param.u64 %weights, [weights];\n" \
                    "mov.u32 %t, %tid.x; mul.wide.u32 %at, %t, 4; add.s64 %to, %to, %at; add.s64 %from, %from, %at; add.s64 %weights, %weights, %at;\n" body "ret;\n"
#define KERNEL(name, body) {name, ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry " name "(.param .u64 to, .param .u64 from, .param .u64 weights) {\n" \
                           ".reg .pred %p; .reg .b32 %t, %x, %y; .reg .b64 %to, %from, %weights, %at; .shared .align 16 .b8 room[128]; .shared .align 8 .b64 barrier;\n" FIRST(body) "}\n"},
#define WAIT "griddepcontrol.wait;\n"
#define RELEASE "griddepcontrol.launch_dependents;\n"
#define READ "ld.global.u32 %x, [%from];\n"
#define WEIGHT "ld.global.u32 %y, [%weights];\n"
#define WRITE "add.u32 %x, %x, %y; st.global.u32 [%to], %x;\n"

static const struct { const char *name, *text; } kernels[] = {
    KERNEL("late", RELEASE WAIT READ WEIGHT WRITE)
    KERNEL("weights_early", WEIGHT RELEASE WAIT READ WRITE)
    KERNEL("operand_early", READ RELEASE WAIT WEIGHT WRITE)
    KERNEL("result_early", "mov.u32 %x, 1; mov.u32 %y, 2;\n" WRITE WAIT)
    KERNEL("never", "")
    KERNEL("some_threads", "setp.lt.u32 %p, %t, 16;\n@%p " WAIT READ WEIGHT WRITE)
    KERNEL("some_threads_work", "setp.lt.u32 %p, %t, 16;\n@!%p bra END;\n" WAIT READ WEIGHT WRITE "END:\n")
    KERNEL("copies_early", "mov.u32 %y, room; mad.lo.u32 %y, %t, 4, %y; cp.async.ca.shared.global [%y], [%from], 4; cp.async.commit_group;\n" WAIT
           "cp.async.wait_group 0; ld.shared.u32 %x, [%y];\n" WEIGHT WRITE)
    KERNEL("bulk_early",
           "setp.eq.u32 %p, %t, 0; mov.u32 %x, room; mov.u32 %y, barrier;\n"
           "@%p mbarrier.init.shared::cta.b64 [%y], 1;\n@%p fence.mbarrier_init.release.cluster;\nbar.sync 0;\n"
           "@%p mbarrier.arrive.expect_tx.shared::cta.b64 _, [%y], 128;\n"
           "@%p cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%x], [%from], 128, [%y];\n" WAIT
           "TRY: mbarrier.try_wait.parity.shared::cta.b64 %p, [%y], 0;\n@!%p bra TRY;\n"
           "mad.lo.u32 %x, %t, 4, %x; ld.shared.u32 %x, [%x];\n" WEIGHT WRITE)
};

/* to, from: numbers of buffers; 0 holds the weights, which no launch writes. */
typedef struct launch { const char *kernel; bool early; int to, from; } launch;
typedef struct overlap_case { const char *finds; launch launches[4]; int count; } overlap_case;   /* finds NULL: it is right */

static char heard[2000];
static void hear(void *user, cuda_log_level level, char *text, size_t length) {
    (void)user, (void)level;
    snprintf(heard, sizeof heard, "%.*s", (int)length, text);
}

static cuda_pointer buffers[BUFFERS];

static void open_driver(void) {
    cuda_context context;
    assert_int_equal(deepwell_sim_configure("h200"), 0);
    assert_int_equal(cuInit(0), CUDA_OK);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_OK);
    assert_int_equal(cuCtxPushCurrent_v2(context), CUDA_OK);
    assert_int_equal(cuLogsRegisterCallback(hear, NULL, NULL), CUDA_OK);
    for (int i = 0; i < BUFFERS; i++) {
        uint32_t values[THREADS];
        for (uint32_t t = 0; t < THREADS; t++) values[t] = i == 0 ? t : 0;
        assert_int_equal(cuMemAlloc_v2(&buffers[i], BYTES), CUDA_OK);
        assert_int_equal(cuMemcpyHtoD_v2(buffers[i], values, BYTES), CUDA_OK);
    }
}

static void close_driver(void) {
    cuda_context context;
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), CUDA_OK);
    assert_int_equal(cuCtxPopCurrent_v2(&context), CUDA_OK);
    for (int i = 0; i < BUFFERS; i++) assert_int_equal(cuMemFree_v2(buffers[i]), CUDA_OK);
}

static cuda_library load(const char *kernel) {
    cuda_library library = NULL;
    for (size_t i = 0; i < COUNT_OF(kernels); i++)
        if (strcmp(kernels[i].name, kernel) == 0) assert_int_equal(cuLibraryLoadData(&library, kernels[i].text, NULL, NULL, 0, NULL, NULL, 0), CUDA_OK);
    assert_non_null(library);
    return library;
}

/* Two times, as a launch of the graph before does not overlap. */
static cuda_result run(const overlap_case *c) {
    cuda_library libraries[4];
    cuda_graph graph;
    cuda_graph_exec exec;
    cuda_node nodes[4];
    cuda_instantiate_params params = {0};
    assert_int_equal(cuGraphCreate(&graph, 0), CUDA_OK);
    for (int i = 0; i < c->count; i++) {
        const launch *l = &c->launches[i];
        cuda_kernel kernel;
        cuda_function function;
        const cuda_edge edge = {.from_port = l->early ? CUDA_PORT_PROGRAMMATIC : 0, .type = l->early ? CUDA_EDGE_PROGRAMMATIC : 0};
        void *parameters[] = {&buffers[l->to], &buffers[l->from], &buffers[0]};
        libraries[i] = load(l->kernel);
        assert_int_equal(cuLibraryGetKernel(&kernel, libraries[i], l->kernel), CUDA_OK);
        assert_int_equal(cuKernelGetFunction(&function, kernel), CUDA_OK);
        cuda_node_params node = {.type = CUDA_NODE_KERNEL, .kernel = {.function = function, .grid_x = 1, .grid_y = 1, .grid_z = 1, .block_x = THREADS, .block_y = 1, .block_z = 1,
                                                                      .parameters = parameters}};
        assert_int_equal(cuGraphAddNode_v2(&nodes[i], graph, i > 0 ? &nodes[i - 1] : NULL, i > 0 ? &edge : NULL, i > 0, &node), CUDA_OK);
    }
    assert_int_equal(cuGraphInstantiateWithParams(&exec, graph, &params), CUDA_OK);
    cuda_result result = cuGraphLaunch(exec, NULL);
    if (result == CUDA_OK) result = cuGraphLaunch(exec, NULL);
    cuGraphExecDestroy(exec);
    cuGraphDestroy(graph);
    for (int i = 0; i < c->count; i++) cuLibraryUnload(libraries[i]);
    return result;
}

static const overlap_case cases[] = {
    {NULL, {{"late", false, 1, 0}, {"late", true, 2, 1}, {"late", true, 3, 2}}, 3},
    {NULL, {{"late", false, 1, 0}, {"weights_early", true, 2, 1}, {"weights_early", true, 1, 2}}, 3},
    {NULL, {{"weights_early", false, 1, 0}, {"operand_early", false, 2, 1}}, 2},
    {NULL, {{"late", false, 1, 0}, {"operand_early", true, 2, 0}}, 2},
    {NULL, {{"late", false, 1, 0}, {"never", false, 2, 1}, {"late", true, 3, 1}}, 3},
    {NULL, {{"late", false, 1, 0}, {"late", true, 2, 1}, {"late", false, 3, 2}, {"operand_early", true, 1, 2}}, 4},
    {NULL, {{"late", false, 1, 0}, {"some_threads_work", true, 2, 1}}, 2},
    {NULL, {{"late", false, 1, 0}, {"copies_early", false, 2, 1}, {"bulk_early", false, 3, 2}}, 3},
    {"reads 4 bytes of global memory", {{"late", false, 1, 0}, {"operand_early", true, 2, 1}}, 2},
    {"the 2. in front of this one", {{"late", false, 1, 0}, {"late", true, 2, 1}, {"operand_early", true, 3, 1}}, 3},
    {"writes 4 bytes of global memory", {{"late", false, 1, 0}, {"result_early", true, 2, 1}}, 2},
    {"kernel never: it began before", {{"late", false, 1, 0}, {"never", true, 2, 1}}, 2},
    {"lane 16", {{"late", false, 1, 0}, {"some_threads", true, 2, 1}}, 2},
    {"kernel copies_early", {{"late", false, 1, 0}, {"copies_early", true, 2, 1}}, 2},
    {"kernel bulk_early", {{"late", false, 1, 0}, {"bulk_early", true, 2, 1}}, 2},
};

static void launches_that_overlap_wait_for_those_in_front(void **state) {
    (void)state;
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        const overlap_case *c = &cases[i];
        heard[0] = '\0';
        open_driver();
        const cuda_result result = run(c);
        if (c->finds == NULL && result != CUDA_OK) fail_msg("case %zu: %s", i, heard);
        if (c->finds != NULL && (result != CUDA_LAUNCH_FAILED || strstr(heard, c->finds) == NULL)) fail_msg("case %zu: result %d, '%s' instead of '%s'", i, (int)result, heard, c->finds);
        close_driver();
    }
}

static void programmatic_edges_are_between_kernels(void **state) {
    (void)state;
    cuda_graph graph;
    cuda_node nodes[2];
    cuda_node_params set = {.type = CUDA_NODE_MEMSET, .memset = {.element_bytes = 4, .width = 1, .height = 1}};
    const cuda_edge edge = {.from_port = CUDA_PORT_PROGRAMMATIC, .type = CUDA_EDGE_PROGRAMMATIC};
    open_driver();
    set.memset.to = buffers[1];
    assert_int_equal(cuGraphCreate(&graph, 0), CUDA_OK);
    assert_int_equal(cuGraphAddNode_v2(&nodes[0], graph, NULL, NULL, 0, &set), CUDA_OK);
    assert_int_equal(cuGraphAddNode_v2(&nodes[1], graph, &nodes[0], &edge, 1, &set), CUDA_INVALID_VALUE);
    cuGraphDestroy(graph);
    close_driver();
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(launches_that_overlap_wait_for_those_in_front),
        cmocka_unit_test(programmatic_edges_are_between_kernels),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
