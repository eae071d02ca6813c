/* File mappings and writers. */
#include "support/support.h"

#include <dirent.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/base.h"

static dw_context *context;
static char folder[64];

static int setup(void **state) {
    (void)state;
    strcpy(folder, "/tmp/deepwell-test-XXXXXX");
    if (mkdtemp(folder) == NULL) return -1;
    return dw_context_create(NULL, &context) == DW_OK ? 0 : -1;
}

static int teardown(void **state) {
    (void)state;
    dw_context_destroy(context);
    return rmdir(folder);   /* fails, as the test then does, when anything is left in it */
}

static const char *in_folder(const char *name) {
    static char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    return path;
}

static int files_in_folder(void) {
    DIR *open = opendir(folder);
    assert_non_null(open);
    int count = -2;   /* . and .. */
    while (readdir(open) != NULL) count++;
    closedir(open);
    return count;
}

static void a_committed_file_reads_back_as_written(void **state) {
    (void)state;
    file_writer *writer;
    static char block[100000];
    memset(block, 'x', sizeof block);
    assert_int_equal(file_writer_create(context, in_folder("a"), &writer), DW_OK);
    assert_int_equal(file_writer_add(writer, "head", 4), DW_OK);
    assert_int_equal(file_writer_pad(writer, 4096), DW_OK);
    assert_int_equal(file_writer_pad(writer, 4096), DW_OK);
    assert_int_equal(file_writer_offset(writer), 4096);
    assert_int_equal(file_writer_add(writer, block, sizeof block), DW_OK);
    for (int i = 0; i < 50000; i++) assert_int_equal(file_writer_add(writer, "yz", 2), DW_OK);
    assert_int_equal(file_writer_add(writer, NULL, 0), DW_OK);
    assert_int_equal(access(in_folder("a"), F_OK), -1);
    assert_int_equal(file_writer_commit(writer), DW_OK);
    assert_int_equal(files_in_folder(), 1);

    file_map map;
    assert_int_equal(file_map_open(context, in_folder("a"), &map), DW_OK);
    assert_int_equal(map.length, 4096 + 100000 + 100000);
    assert_memory_equal(map.bytes, "head\0\0", 6);
    assert_int_equal(map.bytes[4095], 0);
    assert_memory_equal(map.bytes + 4096, block, sizeof block);
    assert_memory_equal(map.bytes + 104096, "yzyz", 4);
    assert_int_equal(map.bytes[map.length - 1], 'z');
    file_map_close(&map);
    assert_null(map.bytes);
    assert_int_equal(unlink(in_folder("a")), 0);
}

static void a_file_is_replaced_whole_or_not_at_all(void **state) {
    (void)state;
    for (int round = 0; round < 3; round++) {
        file_writer *writer;
        assert_int_equal(file_writer_create(context, in_folder("b"), &writer), DW_OK);
        assert_int_equal(file_writer_add(writer, round == 0 ? "old" : "new", 3), DW_OK);
        if (round == 1) {
            file_writer_abandon(writer);
        } else {
            assert_int_equal(file_writer_commit(writer), DW_OK);
        }
        file_map map;
        assert_int_equal(file_map_open(context, in_folder("b"), &map), DW_OK);
        assert_memory_equal(map.bytes, round == 2 ? "new" : "old", 3);
        file_map_close(&map);
        assert_int_equal(files_in_folder(), 1);
    }
    file_writer_abandon(NULL);
    assert_int_equal(unlink(in_folder("b")), 0);
}

static void two_writers_of_one_name_do_not_meet(void **state) {
    (void)state;
    file_writer *first, *second;
    assert_int_equal(file_writer_create(context, in_folder("c"), &first), DW_OK);
    assert_int_equal(file_writer_create(context, in_folder("c"), &second), DW_OK);
    assert_int_equal(file_writer_add(first, "1", 1), DW_OK);
    assert_int_equal(file_writer_add(second, "2", 1), DW_OK);
    assert_int_equal(file_writer_commit(second), DW_OK);
    assert_int_equal(file_writer_commit(first), DW_OK);
    file_map map;
    assert_int_equal(file_map_open(context, in_folder("c"), &map), DW_OK);
    assert_int_equal(map.bytes[0], '1');
    file_map_close(&map);
    assert_int_equal(unlink(in_folder("c")), 0);
}

static void an_empty_file_maps_to_no_bytes(void **state) {
    (void)state;
    file_writer *writer;
    assert_int_equal(file_writer_create(context, in_folder("empty"), &writer), DW_OK);
    assert_int_equal(file_writer_commit(writer), DW_OK);
    file_map map;
    assert_int_equal(file_map_open(context, in_folder("empty"), &map), DW_OK);
    assert_int_equal(map.length, 0);
    file_map_close(&map);
    assert_int_equal(unlink(in_folder("empty")), 0);
}

static void what_is_no_file_cannot_be_opened(void **state) {
    (void)state;
    file_map map;
    test_assert_fails(context, file_map_open(context, in_folder("absent"), &map), DW_NOT_FOUND, "absent: cannot open: No such file");
    assert_null(map.bytes);
    test_assert_fails(context, file_map_open(context, folder, &map), DW_IO, "is a folder, not a file");
    test_assert_fails(context, file_map_open(context, "/dev/null", &map), DW_IO, "is a device or pipe, not a file");
    assert_int_equal(mkfifo(in_folder("pipe"), 0600), 0);
    test_assert_fails(context, file_map_open(context, in_folder("pipe"), &map), DW_IO, "is a device or pipe");
    assert_int_equal(unlink(in_folder("pipe")), 0);
}

static void what_is_no_file_cannot_be_replaced(void **state) {
    (void)state;
    file_writer *writer = (file_writer *)1;
    test_assert_fails(context, file_writer_create(context, folder, &writer), DW_IO, "is a folder and cannot be replaced");
    assert_null(writer);
    test_assert_fails(context, file_writer_create(context, "/dev/null", &writer), DW_IO, "is a device or pipe");
    test_assert_fails(context, file_writer_create(context, in_folder("absent/x"), &writer), DW_NOT_FOUND, "cannot create");
    assert_int_equal(files_in_folder(), 0);
}

static void a_failed_write_is_told_and_leaves_nothing(void **state) {
    (void)state;
    struct rlimit before, small;
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small = before;
    small.rlim_cur = 100000;   /* a full disk, as far as write can tell; the signal is ignored in main */
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    static char block[200000];
    file_writer *writer;
    dw_status created = file_writer_create(context, in_folder("full"), &writer);
    dw_status added = file_writer_add(writer, block, sizeof block);
    char message[256];
    snprintf(message, sizeof message, "%s", dw_context_error(context));
    dw_status added_again = file_writer_add(writer, "x", 1);
    dw_status committed = file_writer_commit(writer);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    assert_int_equal(created, DW_OK);
    assert_int_equal(added, DW_IO);
    assert_non_null(strstr(message, "cannot write: File too large"));
    assert_int_equal(added_again, DW_IO);
    assert_int_equal(committed, DW_IO);
    assert_int_equal(files_in_folder(), 0);
}

static dw_status write_file(dw_context *context, void *argument) {
    (void)argument;
    file_writer *writer;
    TRY(file_writer_create(context, in_folder("scarce"), &writer));
    file_writer_add(writer, "x", 1);
    TRY(file_writer_commit(writer));
    file_map map;
    TRY(file_map_open(context, in_folder("scarce"), &map));
    file_map_close(&map);
    return unlink(in_folder("scarce")) == 0 ? DW_OK : DW_IO;
}

static void every_failing_allocation_is_an_error_without_leak(void **state) {
    (void)state;
    test_every_allocation(write_file, NULL);
    assert_int_equal(files_in_folder(), 0);
}

int main(void) {
    signal(SIGXFSZ, SIG_IGN);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_committed_file_reads_back_as_written),
        cmocka_unit_test(a_file_is_replaced_whole_or_not_at_all),
        cmocka_unit_test(two_writers_of_one_name_do_not_meet),
        cmocka_unit_test(an_empty_file_maps_to_no_bytes),
        cmocka_unit_test(what_is_no_file_cannot_be_opened),
        cmocka_unit_test(what_is_no_file_cannot_be_replaced),
        cmocka_unit_test(a_failed_write_is_told_and_leaves_nothing),
        cmocka_unit_test(every_failing_allocation_is_an_error_without_leak),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
