/* safetensors files: what is written is read back, in any strides; headers that lie are refused. */
#include "support/support.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "capture/capture.h"
#include "support/evaluate.h"

static const char path[] = TEST_BUILD_DIR "/test_safetensors.safetensors";

static int make_context(void **state) {
    static test_memory memory;
    memory = (test_memory){.calls = 0};
    *state = test_context_create(&memory, 1);
    return *state != NULL ? 0 : -1;
}

static int free_context(void **state) {
    dw_context_destroy(*state);
    unlink(path);
    return 0;
}

/* ---- round trips ---- */

static dw_status write_and_read(dw_context *context, void *argument) {
    (void)argument;
    float numbers[12];
    for (int i = 0; i < 12; i++) numbers[i] = (float)i / 4;
    int64_t one = 42;
    uint8_t flags[3] = {1, 0, 1};
    const dw_tensor rows = {.format = DW_FORMAT_f32, .rank = 2, .dims = {3, 4}, .strides = {4, 1}, .data = numbers};
    const dw_tensor columns = {.format = DW_FORMAT_f32, .rank = 2, .dims = {4, 3}, .strides = {1, 4}, .data = numbers};
    const dw_tensor scalar = {.format = DW_FORMAT_i64, .rank = 0, .data = &one};
    const dw_tensor bools = {.format = DW_FORMAT_bool, .rank = 1, .dims = {3}, .strides = {1}, .data = flags};
    const dw_tensor nothing = {.format = DW_FORMAT_bf16, .rank = 2, .dims = {0, 5}, .strides = {5, 1}, .data = NULL};
    const char *names[] = {"flags", "rows", "columns", "a scalar \"quoted\"", "nothing"};
    const dw_tensor *tensors[] = {&bools, &rows, &columns, &scalar, &nothing};
    const char *metadata[] = {"format", "pt", NULL};
    ir_weights weights;
    TRY(safetensors_write(context, path, 5, names, tensors, metadata));
    ir_weights_init(&weights, context);
    dw_status status = safetensors_open(context, path, &weights);
    if (status == DW_OK) {
        assert_int_equal(weights.by_name.count, 5);
        for (int i = 0; i < 5; i++) assert_true(tensor_is_same(&ir_weights_find(&weights, names[i])->tensor, tensors[i]));
    }
    ir_weights_free(&weights);
    return status;
}

static void what_is_written_is_read_back(void **state) { assert_int_equal(write_and_read(*state, NULL), DW_OK); }

static void every_allocation_may_fail(void **state) {
    (void)state;
    test_every_allocation(write_and_read, NULL);
}

static void formats_that_a_file_cannot_hold_are_refused(void **state) {
    uint8_t bytes[8] = {0};
    const dw_tensor four_bits = {.format = DW_FORMAT_e2m1, .rank = 1, .dims = {16}, .strides = {1}, .data = bytes};
    const dw_tensor *tensors[] = {&four_bits};
    const char *names[] = {"w"};
    unlink(path);
    test_assert_fails(*state, safetensors_write(*state, path, 1, names, tensors, NULL), DW_UNSUPPORTED, "tensor 'w' is e2m1");
    assert_int_not_equal(access(path, F_OK), 0);    /* and nothing was written */
}

/* ---- hostile headers ---- */

static dw_status read_file(dw_context *context, const char *header, size_t data_bytes, uint64_t claimed) {
    uint8_t file[4096] = {0};
    size_t length = strlen(header);
    for (int i = 0; i < 8; i++) file[i] = (uint8_t)(claimed >> (8 * i));
    memcpy(file + 8, header, length);
    ir_weights weights;
    ir_weights_init(&weights, context);
    dw_status status = safetensors_read(context, "some.safetensors", file, 8 + length + data_bytes, &weights);
    ir_weights_free(&weights);
    return status;
}

typedef struct row { const char *header; size_t data_bytes; dw_status status; const char *part; } row;

static void headers_that_lie_are_refused(void **state) {
    static const row rows[] = {
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 16, DW_OK, ""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}} ", 16, DW_OK, ""},
        {"{\"__metadata__\":{\"x\":\"y\"}}", 0, DW_OK, ""},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 15, DW_CORRUPT, "not an offset"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,2],\"data_offsets\":[0,16]}}", 17, DW_CORRUPT, "belong to none"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[2,3],\"data_offsets\":[0,16]}}", 16, DW_CORRUPT, "do not take the bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[16,0]}}", 16, DW_CORRUPT, "do not take the bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[-1],\"data_offsets\":[0,16]}}", 16, DW_CORRUPT, "not a size"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4611686018427387904,4],\"data_offsets\":[0,0]}}", 0, DW_CORRUPT, "do not take the bytes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[1,1,1,1,1,1,1,1,1],\"data_offsets\":[0,4]}}", 4, DW_UNSUPPORTED, "9 axes"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":4,\"data_offsets\":[0,16]}}", 16, DW_CORRUPT, "no shape"},
        {"{\"a\":{\"dtype\":\"F32\",\"shape\":[4],\"data_offsets\":[0]}}", 16, DW_CORRUPT, "lacks dtype or data_offsets"},
        {"{\"a\":{\"shape\":[4],\"data_offsets\":[0,16]}}", 16, DW_CORRUPT, "lacks dtype"},
        {"{\"a\":{\"dtype\":\"C64\",\"shape\":[2],\"data_offsets\":[0,16]}}", 16, DW_UNSUPPORTED, "dtype C64"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"U8\",\"shape\":[9],\"data_offsets\":[7,16]}}", 16, DW_CORRUPT,
         "inside another tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"b\":{\"dtype\":\"U8\",\"shape\":[7],\"data_offsets\":[9,16]}}", 16, DW_CORRUPT,
         "belong to no tensor"},
        {"{\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[0,8]},\"a\":{\"dtype\":\"U8\",\"shape\":[8],\"data_offsets\":[8,16]}}", 16, DW_CORRUPT,
         "not a JSON object"},
        {"[]", 0, DW_CORRUPT, "not a JSON object"},
        {"{", 0, DW_CORRUPT, "not a JSON object"},
        {"", 0, DW_CORRUPT, "not a JSON object"},
    };
    for (size_t i = 0; i < COUNT_OF(rows); i++) {
        dw_status status = read_file(*state, rows[i].header, rows[i].data_bytes, strlen(rows[i].header));
        if (rows[i].status == DW_OK) assert_int_equal(status, DW_OK);
        else test_assert_fails(*state, status, rows[i].status, rows[i].part);
    }
}

static void lengths_that_lie_are_refused(void **state) {
    test_assert_fails(*state, read_file(*state, "{}", 0, 3), DW_CORRUPT, "truncated");
    test_assert_fails(*state, read_file(*state, "{}", 0, UINT64_MAX), DW_CORRUPT, "truncated");
    test_assert_fails(*state, read_file(*state, "{}", 0, (uint64_t)1 << 40), DW_CORRUPT, "truncated");
    ir_weights weights;
    ir_weights_init(&weights, *state);
    for (size_t length = 0; length < 8; length++) {
        test_assert_fails(*state, safetensors_read(*state, "short", "\0\0\0\0\0\0\0\0", length, &weights), DW_CORRUPT, "too few");
    }
    ir_weights_free(&weights);
}

/* A header of odd length puts fp32 data on an odd address: it is copied to a proper one. */
static void misaligned_tensors_are_copied(void **state) {
    const char *header = "{\"abcd\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}";
    _Alignas(8) uint8_t file[128] = {(uint8_t)strlen(header)};
    float number = 1.5f;
    size_t at = 8 + strlen(header);
    assert_int_not_equal(at % 4, 0);
    memcpy(file + 8, header, strlen(header));
    memcpy(file + at, &number, sizeof number);
    ir_weights weights;
    ir_weights_init(&weights, *state);
    assert_int_equal(safetensors_read(*state, "odd", file, at + 4, &weights), DW_OK);
    const dw_tensor *tensor = &ir_weights_find(&weights, "abcd")->tensor;
    assert_int_equal((uintptr_t)tensor->data % 4, 0);
    assert_true(op_tensor_load(tensor, (int64_t[]){0}) == 1.5);
    ir_weights_free(&weights);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_is_written_is_read_back, make_context, free_context),
        cmocka_unit_test(every_allocation_may_fail),
        cmocka_unit_test_setup_teardown(formats_that_a_file_cannot_hold_are_refused, make_context, free_context),
        cmocka_unit_test_setup_teardown(headers_that_lie_are_refused, make_context, free_context),
        cmocka_unit_test_setup_teardown(lengths_that_lie_are_refused, make_context, free_context),
        cmocka_unit_test_setup_teardown(misaligned_tensors_are_copied, make_context, free_context),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
