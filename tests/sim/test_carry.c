/* Pieces of a few bytes that one launch copies on simulated GPUs, between memory of the device and pinned memory of the host: of any length, at any place, and as many as a launch holds. At the ends of graphs they are what services run (tests/serve/test_device.c). */
#include "support/support.h"

#include <string.h>

#include "device/device.h"
#include "support/session.h"

enum { ROOM = 1 << 16, MOST = KERNEL_PIECES + 1 };

static const char *const devices[] = {"sim:h200", "sim:h200,seed=3,late=1", "sim:a100,late=2", "sim:b200,seed=5"};

/* Where pieces lie: lengths and places that are no multiples of a word, and longer ones than one block copies. */
static const struct { size_t to, from, bytes; } places[] = {{0, 64, 1}, {3, 131, 7}, {16, 160, 16}, {36, 196, 12}, {64, 256, 8}, {128, 512, KERNEL_PIECE_BYTES + 24}, {9001, 9002, 4097}, {20000, 20000, 9}};

static void fill(uint8_t *memory, unsigned seed) {
    for (size_t i = 0; i < ROOM; i++) memory[i] = (uint8_t)((seed = seed * 1664525 + 1013904223) >> 24);
}

static void take_over(uint8_t *to, const uint8_t *from) {
    for (size_t i = 0; i < COUNT_OF(places); i++) memcpy(to + places[i].to, from + places[i].from, places[i].bytes);
}

static int pieces_of(uint8_t *to, const uint8_t *from, kernel_piece *pieces) {
    for (size_t i = 0; i < COUNT_OF(places); i++) pieces[i] = (kernel_piece){to + places[i].to, from + places[i].from, places[i].bytes};
    return COUNT_OF(places);
}

/* From the host to the device and back, each way by one launch. */
static void there_and_back(dw_context *context, const char *name) {
    static uint8_t expected[ROOM], sent[ROOM];
    kernel_piece pieces[MOST];
    void *host, *back, *there, *mark;
    device *device;
    bool done;
    assert_ok(context, device_open(context, name, &device));
    const device_calls *calls = device->calls;
    assert_ok(context, calls->pin(device, ROOM, &host));
    assert_ok(context, calls->pin(device, ROOM, &back));
    assert_ok(context, calls->alloc(device, ROOM, &there));
    assert_ok(context, calls->mark_create(device, DEVICE_MARK, &mark));
    fill(host, 1);
    fill(back, 2);
    memcpy(expected, back, ROOM);
    assert_ok(context, calls->fill(device, there, 0x5a, ROOM));
    memset(sent, 0x5a, ROOM);
    assert_ok(context, calls->carry(device, pieces_of(there, host, pieces), pieces, &done));
    assert_true(done);
    take_over(sent, host);
    assert_ok(context, calls->carry(device, pieces_of(back, there, pieces), pieces, &done));
    assert_true(done);
    take_over(expected, sent);
    assert_ok(context, calls->mark(device, mark));
    assert_ok(context, calls->await(device, mark));
    assert_memory_equal(back, expected, ROOM);
    calls->mark_release(device, mark);
    calls->release(device, there, ROOM);
    calls->unpin(device, host);
    calls->unpin(device, back);
    device_close(device);
}

static void pieces_of_any_length_go_there_and_back(void **state) {
    if (kernel_lacks_images() != NULL) skip();
    for (size_t d = 0; d < COUNT_OF(devices); d++) there_and_back(*state, devices[d]);
}

/* Nothing is started then. */
static void what_is_too_much_is_not_carried(void **state) {
    static uint8_t memory[2][ROOM];
    const chip_caps *chip = &(chip_caps){0};
    kernel_piece pieces[MOST];
    kernel_launch launch;
    (void)state;
    for (int i = 0; i < MOST; i++) pieces[i] = (kernel_piece){memory[0] + 64 * i, memory[1] + 64 * i, 8};
    assert_true(kernel_carry(chip, KERNEL_PIECES, pieces, false, &launch));
    assert_int_equal(launch.grid[0], KERNEL_PIECES);
    assert_false(kernel_carry(chip, KERNEL_PIECES + 1, pieces, false, &launch));
    assert_true(kernel_carry(chip, 0, NULL, true, &launch));
    assert_int_equal(launch.grid[0], 1);
    pieces[0].bytes = KERNEL_CARRIED;
    assert_true(kernel_carry(chip, 1, pieces, false, &launch));
    assert_int_equal(launch.grid[0], KERNEL_CARRIED / KERNEL_PIECE_BYTES);
    assert_false(kernel_carry(chip, 2, pieces, false, &launch));
    pieces[0].bytes = SIZE_MAX;
    assert_false(kernel_carry(chip, 1, pieces, false, &launch));
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(pieces_of_any_length_go_there_and_back),
        cmocka_unit_test(what_is_too_much_is_not_carried),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
