/* Option late=N: what is asked of streams is done later, so what a program reads or writes over too early is seen, and waiting makes it right. */
#include "support/support.h"

#include "sim/driver/driver.h"

enum { WORDS = 64, BYTES = WORDS * 4 };

static const char TEXT[] = ".version 8.0\n.target sm_90\n.address_size 64\n.visible .entry add_one(.param .u64 at) {\n.reg .b32 %t, %x; .reg .b64 %at, %o;\n"
                           "ld.param.u64 %at, [at]; mov.u32 %t, %tid.x; mul.wide.u32 %o, %t, 4; add.s64 %at, %at, %o; ld.global.u32 %x, [%at]; add.u32 %x, %x, 1; st.global.u32 [%at], %x; ret;\n}\n";

/* A device's buffer, pinned memory beside it, a stream and an event. */
typedef struct late { cuda_pointer at; uint32_t *pinned, *got; cuda_stream stream; cuda_event event; cuda_library library; cuda_function add; } late;

static void fill(uint32_t *words, uint32_t value) {
    for (int i = 0; i < WORDS; i++) words[i] = value;
}

static late open_driver(const char *options) {
    late l;
    cuda_context context;
    assert_int_equal(deepwell_sim_configure(options), 0);
    assert_int_equal(cuInit(0), CUDA_OK);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_OK);
    assert_int_equal(cuCtxPushCurrent_v2(context), CUDA_OK);
    assert_int_equal(cuMemAlloc_v2(&l.at, BYTES), CUDA_OK);
    assert_int_equal(cuMemHostAlloc((void **)&l.pinned, BYTES, 0), CUDA_OK);
    assert_int_equal(cuMemHostAlloc((void **)&l.got, BYTES, 0), CUDA_OK);
    assert_int_equal(cuStreamCreate(&l.stream, 0), CUDA_OK);
    assert_int_equal(cuEventCreate(&l.event, 0), CUDA_OK);
    assert_int_equal(cuModuleLoadData(&l.library, TEXT), CUDA_OK);
    assert_int_equal(cuModuleGetFunction(&l.add, l.library, "add_one"), CUDA_OK);
    fill(l.got, 77);
    return l;
}

static void close_driver(late *l) {
    assert_int_equal(cuModuleUnload(l->library), CUDA_OK);
    assert_int_equal(cuEventDestroy_v2(l->event), CUDA_OK);
    assert_int_equal(cuStreamDestroy_v2(l->stream), CUDA_OK);
    assert_int_equal(cuMemFreeHost(l->pinned), CUDA_OK);
    assert_int_equal(cuMemFreeHost(l->got), CUDA_OK);
    assert_int_equal(cuMemFree_v2(l->at), CUDA_OK);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), CUDA_OK);
}

/* there = value + 1, by a copy from that memory, a kernel, and a copy back, behind which an event stands. */
static void run(const late *l, const uint32_t *from) {
    void *parameters[] = {(void *)(uintptr_t)&l->at};
    assert_int_equal(cuMemcpyHtoDAsync_v2(l->at, from, BYTES, l->stream), CUDA_OK);
    assert_int_equal(cuLaunchKernel(l->add, 1, 1, 1, WORDS, 1, 1, 0, l->stream, parameters, NULL), CUDA_OK);
    assert_int_equal(cuMemcpyDtoHAsync_v2(l->got, l->at, BYTES, l->stream), CUDA_OK);
    assert_int_equal(cuEventRecord(l->event, l->stream), CUDA_OK);
}

static void results_are_there_when_they_were_waited_for(void **state) {
    static const char *const options[] = {"h200", "h200,late=0", "h200,late=1", "h200,late=2"};
    (void)state;
    for (size_t i = 0; i < COUNT_OF(options); i++) {
        late l = open_driver(options[i]);
        for (uint32_t k = 0; k < 20; k++) {
            fill(l.pinned, k);
            run(&l, l.pinned);
            assert_int_equal(k % 2 == 0 ? cuEventSynchronize(l.event) : cuStreamSynchronize(l.stream), CUDA_OK);
            assert_int_equal(cuEventQuery(l.event), CUDA_OK);
            for (int w = 0; w < WORDS; w++) assert_int_equal(l.got[w], k + 1);
        }
        close_driver(&l);
    }
}

/* Without waiting nothing is there yet, and pinned memory that is written over too early is what the copy reads. */
static void what_is_not_waited_for_is_late(void **state) {
    (void)state;
    late l = open_driver("h200,late=0");
    fill(l.pinned, 5);
    run(&l, l.pinned);
    assert_int_equal(cuEventQuery(l.event), CUDA_NOT_READY);
    assert_int_equal(cuStreamQuery(l.stream), CUDA_NOT_READY);
    assert_int_equal(l.got[0], 77);
    fill(l.pinned, 9);
    assert_int_equal(cuEventSynchronize(l.event), CUDA_OK);
    assert_int_equal(l.got[0], 10);
    close_driver(&l);
}

/* So is a box of rows between memory of the device; what is wrong with it is said at once. */
static void rows_are_copied_late(void **state) {
    enum { ROW = 16, ROWS = 2, PITCH = 128 };
    (void)state;
    late l = open_driver("h200,late=0");
    cuda_copy box = {.from_type = CUDA_MEMORY_DEVICE, .from_device = l.at, .from_pitch = ROW, .from_height = ROWS, .to_type = CUDA_MEMORY_DEVICE, .to_device = l.at + PITCH, .to_pitch = PITCH / ROWS,
                     .to_height = ROWS, .width_bytes = ROW, .height = ROWS, .depth = 1};
    fill(l.pinned, 5);
    assert_int_equal(cuMemcpyHtoDAsync_v2(l.at, l.pinned, BYTES, l.stream), CUDA_OK);
    assert_int_equal(cuMemcpy3DAsync_v2(&box, l.stream), CUDA_OK);
    assert_int_equal(cuMemcpyDtoHAsync_v2(l.got, l.at, BYTES, l.stream), CUDA_OK);
    for (uint32_t w = 0; w < WORDS; w++) l.pinned[w] = w;
    assert_int_equal(l.got[0], 77);
    assert_int_equal(cuStreamSynchronize(l.stream), CUDA_OK);
    for (uint32_t w = 0; w < WORDS; w++) {
        const uint32_t in_box = w - PITCH / 4, row = in_box / (PITCH / ROWS / 4), col = in_box % (PITCH / ROWS / 4);
        assert_int_equal(l.got[w], w >= PITCH / 4 && col < ROW / 4 ? row * (ROW / 4) + col : w);
    }
    box.to_pitch = (size_t)1 << 31;
    assert_int_equal(cuMemcpy3DAsync_v2(&box, l.stream), CUDA_INVALID_VALUE);
    box.to_pitch = ROW - 1;
    assert_int_equal(cuMemcpy3DAsync_v2(&box, l.stream), CUDA_INVALID_VALUE);
    box.to_pitch = BYTES;
    assert_int_equal(cuMemcpy3DAsync_v2(&box, l.stream), CUDA_INVALID_VALUE);
    close_driver(&l);
}

/* Memory of the host that is not pinned is read when the copy is asked for. */
static void plain_memory_is_read_at_once(void **state) {
    uint32_t plain[WORDS];
    (void)state;
    late l = open_driver("h200,late=0");
    fill(plain, 5);
    run(&l, plain);
    fill(plain, 9);
    assert_int_equal(cuCtxSynchronize(), CUDA_OK);
    assert_int_equal(l.got[0], 6);
    close_driver(&l);
}

/* Nothing is left for the next context. */
static void all_is_done_before_the_context_is_given_back(void **state) {
    cuda_context context;
    (void)state;
    late l = open_driver("h200,late=0");
    fill(l.pinned, 5);
    run(&l, l.pinned);
    assert_int_equal(cuDevicePrimaryCtxRelease_v2(0), CUDA_OK);
    assert_int_equal(l.got[0], 6);
    assert_int_equal(cuDevicePrimaryCtxRetain(&context, 0), CUDA_OK);
    close_driver(&l);
}

/* By the seed some is done sooner than it is waited for, and an event says so. */
static void some_is_done_by_itself(void **state) {
    int ready = 0, not_ready = 0;
    (void)state;
    late l = open_driver("h200,late=3");
    for (uint32_t k = 0; k < 40; k++) {
        fill(l.pinned, k);
        run(&l, l.pinned);
        const cuda_result result = cuEventQuery(l.event);
        assert_true(result == CUDA_OK || result == CUDA_NOT_READY);
        ready += result == CUDA_OK;
        not_ready += result == CUDA_NOT_READY;
        if (result == CUDA_OK) assert_int_equal(l.got[0], k + 1);
        assert_int_equal(cuEventSynchronize(l.event), CUDA_OK);
    }
    assert_true(ready > 0 && not_ready > 0);
    close_driver(&l);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(results_are_there_when_they_were_waited_for),
        cmocka_unit_test(what_is_not_waited_for_is_late),
        cmocka_unit_test(rows_are_copied_late),
        cmocka_unit_test(plain_memory_is_read_at_once),
        cmocka_unit_test(all_is_done_before_the_context_is_given_back),
        cmocka_unit_test(some_is_done_by_itself),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
