/* The pages of caches against a model of them: what each page holds is written down, and what a text sees must be its own beginning, whoever wrote it. */
#include "serve/pages.h"

#include <stdlib.h>
#include <string.h>

#include "support/session.h"
#include "support/support.h"

enum { ROWS = 5, ENTRIES = 7, SLOTS = 4, ROOM = ENTRIES * SLOTS, GROUPS = 2, MOST_PAGES = 24, CHUNK = 9 };

typedef struct world {
    pages *pages;
    dw_context *context;
    int groups;
    int64_t reach[GROUPS];
    int32_t table[GROUPS][ROWS * ENTRIES];
    uint64_t held[GROUPS][MOST_PAGES][SLOTS];   /* what each slot holds: the hash of the beginning that ends there, of its key */
    bool is_busy[ROWS];
    int64_t ids[ROWS][ROOM], length[ROWS], past[ROWS];
    pages_key key[ROWS];
    uint64_t random;
    int64_t hits, refused;
} world;

static int64_t draw(world *w, int64_t count) {
    w->random = w->random * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (int64_t)((w->random >> 33) % (uint64_t)count);
}

static uint64_t beginning(const world *w, int row, int64_t position) {
    return base_hash(w->ids[row], (size_t)(position + 1) * sizeof(int64_t), w->key[row].salt * 31 + w->key[row].owner);
}

static uint64_t *slot_of(world *w, int g, int row, int64_t position) {
    const int32_t page = w->table[g][row * ENTRIES + position / SLOTS];
    return page < 0 ? NULL : &w->held[g][page][position % SLOTS];
}

static void create(world *w, dw_context *context, int64_t pages_of_all, int64_t reach, int64_t pages_of_window, uint64_t seed) {
    *w = (world){.context = context, .groups = reach > 0 ? 2 : 1, .reach = {0, reach}, .random = seed};
    pages_options options = {.slots = SLOTS, .rows = ROWS, .entries = ENTRIES, .group_count = w->groups};
    options.groups[0] = (pages_group){0, pages_of_all, w->table[0]};
    options.groups[1] = (pages_group){reach, pages_of_window, w->table[1]};
    assert_ok(context, pages_create(context, &options, &w->pages));
}

/* Texts of few ids, so that many begin alike. */
static void begin(world *w, int row) {
    w->is_busy[row] = true;
    w->past[row] = 0;
    w->length[row] = 1 + draw(w, ROOM - 2);
    w->key[row] = (pages_key){(uint64_t)draw(w, 2), draw(w, 8) == 0 ? w->random : 0};
    for (int64_t i = 0; i < ROOM; i++) w->ids[row][i] = i < 2 * SLOTS ? draw(w, 8) == 0 : draw(w, 2);
    pages_begin(w->pages, row, w->key[row]);
}

/* Some more tokens come in, as the engine would write them. */
static void read_on(world *w, int row) {
    const int64_t had = w->past[row];
    if (w->past[row] % SLOTS == 0) w->past[row] = pages_match(w->pages, row, w->ids[row], w->length[row] - 1);
    if (w->past[row] < had) w->past[row] = had;
    w->hits += w->past[row] > had;
    int64_t count = 1 + draw(w, CHUNK);
    if (count > w->length[row] - w->past[row]) count = w->length[row] - w->past[row];
    const int64_t room = pages_room(w->pages, row, w->past[row] + count);
    if (!pages_reserve(w->pages, row, w->past[row] + count)) {
        w->refused++;
        assert_true(room < w->past[row] + count);
        return;
    }
    assert_int_equal(room, w->past[row] + count);
    for (int64_t i = w->past[row]; i < w->past[row] + count; i++)
        for (int g = 0; g < w->groups; g++) *slot_of(w, g, row, i) = beginning(w, row, i);
    w->past[row] += count;
    pages_commit(w->pages, row, w->ids[row], w->past[row]);
}

static void end(world *w, int row) {
    pages_end(w->pages, row);
    w->is_busy[row] = false;
}

/* Each token that the next one sees is there, and is the text's own. */
static void check_text(world *w, int row) {
    for (int g = 0; g < w->groups; g++) {
        const int64_t first = w->reach[g] > 0 && w->past[row] >= w->reach[g] ? w->past[row] - w->reach[g] + 1 : 0;
        for (int64_t i = first; i < w->past[row]; i++) {
            const uint64_t *slot = slot_of(w, g, row, i);
            if (slot == NULL) fail_msg("group %d: position %d of row %d has no page", g, (int)i, row);
            if (*slot != beginning(w, row, i)) fail_msg("group %d: position %d of row %d is another text's", g, (int)i, row);
        }
    }
}

static void check(world *w, int64_t step) {
    assert_ok(w->context, pages_check(w->context, w->pages));
    for (int row = 0; row < ROWS; row++)
        if (w->is_busy[row]) check_text(w, row);
    pages_facts facts;
    pages_count(w->pages, &facts);
    if (facts.used + facts.idle > facts.pages) fail_msg("step %lld: more pages than there are", (long long)step);
}

static void run(world *w, int64_t steps) {
    for (int64_t step = 0; step < steps; step++) {
        const int row = (int)draw(w, ROWS);
        if (!w->is_busy[row]) begin(w, row);
        else if (w->past[row] == w->length[row] || draw(w, 12) == 0) end(w, row);
        else read_on(w, row);
        if (draw(w, 5000) == 0) pages_forget(w->pages);
        check(w, step);
    }
    pages_facts facts;
    pages_count(w->pages, &facts);
    assert_true(w->hits > steps / 100);
    assert_true(w->refused > steps / 10000);
    assert_true(w->groups == 1 || facts.released > steps / 100);
    for (int row = 0; row < ROWS; row++)
        if (w->is_busy[row]) end(w, row);
    pages_count(w->pages, &facts);
    assert_int_equal(facts.used, 0);
    pages_destroy(w->pages);
}

static void a_million_steps_hold_what_texts_see(void **state) {
    static const struct { int64_t all, reach, window; } cases[] = {{12, 0, 0}, {ENTRIES, 0, 0}, {24, 6, 11}, {16, 1, 8}, {13, 13, 13}};
    for (size_t i = 0; i < COUNT_OF(cases); i++) {
        world w;
        create(&w, *state, cases[i].all, cases[i].reach, cases[i].window, i + 1);
        run(&w, 200000);
    }
}

static void texts_of_other_salts_share_nothing(void **state) {
    world w;
    create(&w, *state, 16, 0, 0, 1);
    for (int row = 0; row < 3; row++) {
        begin(&w, row);
        memset(w.ids[row], 0, sizeof w.ids[row]);
        w.length[row] = 3 * SLOTS;
        w.key[row] = (pages_key){row == 1 ? 7 : 0, 0};
        pages_begin(w.pages, row, w.key[row]);
        assert_int_equal(pages_match(w.pages, row, w.ids[row], w.length[row]), row == 2 ? 3 * SLOTS : 0);
        assert_true(pages_reserve(w.pages, row, 3 * SLOTS));
        pages_commit(w.pages, row, w.ids[row], 3 * SLOTS);
    }
    pages_facts facts;
    pages_count(w.pages, &facts);
    assert_int_equal(facts.used, 6);
    assert_int_equal(facts.shared, 3);
    assert_int_equal(facts.hit_tokens, 3 * SLOTS);
    pages_destroy(w.pages);
}

/* Two texts that came in together end with one copy. */
static void equal_pages_become_one(void **state) {
    world w;
    create(&w, *state, 16, 0, 0, 1);
    for (int row = 0; row < 2; row++) {
        pages_begin(w.pages, row, (pages_key){0, 0});
        assert_true(pages_reserve(w.pages, row, 2 * SLOTS));
    }
    for (int row = 0; row < 2; row++) pages_commit(w.pages, row, w.ids[row], 2 * SLOTS);
    pages_facts facts;
    pages_count(w.pages, &facts);
    assert_int_equal(facts.used, 2);
    assert_int_equal(facts.shared, 2);
    assert_ok(*state, pages_check(*state, w.pages));
    pages_destroy(w.pages);
}

static void a_model_that_shares_nothing_knows_nothing(void **state) {
    world w = {0};
    const pages_options options = {.slots = SLOTS, .rows = ROWS, .entries = ENTRIES, .group_count = 1, .groups = {{0, 8, w.table[0]}}, .alone = true};
    assert_ok(*state, pages_create(*state, &options, &w.pages));
    for (int row = 0; row < 2; row++) {
        pages_begin(w.pages, row, (pages_key){0, 0});
        assert_int_equal(pages_match(w.pages, row, w.ids[row], 2 * SLOTS), 0);
        assert_true(pages_reserve(w.pages, row, 2 * SLOTS));
        pages_commit(w.pages, row, w.ids[row], 2 * SLOTS);
    }
    pages_facts facts;
    pages_count(w.pages, &facts);
    assert_int_equal(facts.used, 4);
    pages_end(w.pages, 0);
    pages_count(w.pages, &facts);
    assert_int_equal(facts.used, 2);
    assert_int_equal(facts.idle, 0);
    pages_destroy(w.pages);
}

static void what_was_used_last_goes_last(void **state) {
    world w;
    create(&w, *state, 3, 0, 0, 1);
    for (int row = 0; row < 3; row++) {
        for (int i = 0; i < ROOM; i++) w.ids[row][i] = row;
        pages_begin(w.pages, row, (pages_key){0, 0});
        assert_true(pages_reserve(w.pages, row, SLOTS));
        pages_commit(w.pages, row, w.ids[row], SLOTS);
    }
    for (int row = 0; row < 3; row++) pages_end(w.pages, (row + 1) % 3);   /* row 1's page is the oldest, then that of row 2 */
    for (int i = 0; i < ROOM; i++) w.ids[3][i] = 3;
    pages_begin(w.pages, 3, (pages_key){0, 0});
    assert_true(pages_reserve(w.pages, 3, SLOTS));
    const int expected[] = {SLOTS, 0, SLOTS};
    for (int row = 0; row < 3; row++) {
        pages_begin(w.pages, row, (pages_key){0, 0});
        assert_int_equal(pages_match(w.pages, row, w.ids[row], SLOTS), expected[row]);
    }
    pages_destroy(w.pages);
}

static int setup(void **state) { return dw_context_create(NULL, (dw_context **)state) == DW_OK ? 0 : -1; }

static int teardown(void **state) {
    dw_context_destroy(*state);
    return 0;
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(a_million_steps_hold_what_texts_see, setup, teardown),
        cmocka_unit_test_setup_teardown(texts_of_other_salts_share_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(equal_pages_become_one, setup, teardown),
        cmocka_unit_test_setup_teardown(a_model_that_shares_nothing_knows_nothing, setup, teardown),
        cmocka_unit_test_setup_teardown(what_was_used_last_goes_last, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
