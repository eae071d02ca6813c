/* Philox4x32-10 by the vectors that its authors publish (Random123, kat_vectors), and each word of it by bit. */
#include "support/support.h"

#include "num/philox.h"

static void expect(philox_words counter, uint32_t key_0, uint32_t key_1, philox_words want) {
    const philox_words got = philox(counter, key_0, key_1);
    for (int i = 0; i < 4; i++) assert_int_equal(got.word[i], want.word[i]);
}

static void words_are_the_published_ones(void **state) {
    (void)state;
    expect((philox_words){{0}}, 0, 0, (philox_words){{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}});
    expect((philox_words){{UINT32_MAX, UINT32_MAX, UINT32_MAX, UINT32_MAX}}, UINT32_MAX, UINT32_MAX, (philox_words){{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}});
    expect((philox_words){{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}}, 0xa4093822, 0x299f31d0, (philox_words){{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}});
}

/* Of 4,096 counters a bit is set 2,048 times, give or take five standard deviations. */
static void each_bit_is_as_often_set_as_not(void **state) {
    (void)state;
    enum { COUNT = 4096, MOST_OFF = 5 * 32 };
    int set[4][32] = {{0}};
    for (uint32_t i = 0; i < COUNT; i++) {
        const philox_words got = philox((philox_words){{i, 3, 0, 0}}, 17, 0);
        for (int word = 0; word < 4; word++)
            for (int bit = 0; bit < 32; bit++) set[word][bit] += got.word[word] >> bit & 1;
    }
    for (int word = 0; word < 4; word++)
        for (int bit = 0; bit < 32; bit++) assert_in_range(set[word][bit], COUNT / 2 - MOST_OFF, COUNT / 2 + MOST_OFF);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(words_are_the_published_ones),
        cmocka_unit_test(each_bit_is_as_often_set_as_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
