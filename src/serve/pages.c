/* Pages of a cache that texts share. A page has a count of the tables that name it. One that is full is a part of a node: a block of ids behind those of the node's parent, so a node stands for all
 * ids up to its end, and a text that begins with them takes its pages. Nodes are found by XXH3-128 of the parent's hash, the ids and the key, and compared by parent, ids and key, since no hash
 * that is not a cryptographic one decides who reads whose cache.
 *
 *     free      in no table, knows nothing            a list
 *     idle      in no table, part of a node           a list by last use: what is needed is taken from its head
 *     used      in count tables, part of a node or not
 *
 * A text gives its pages back from its end on, so that of one text the deepest goes first. A node stays as long as it has a page, a child, or a row that ends in it. */
#include "serve/pages.h"

#include <string.h>

enum { NONE = -1 };

/* A page of one group. */
typedef struct page {
    int32_t count;             /* tables that name it */
    int32_t node;              /* whose it is; NONE: nobody knows what it holds */
    int32_t before, after;     /* in the list of free or of idle ones */
} page;

typedef struct list { int32_t first, last; int64_t count; } list;

typedef struct group {
    int64_t reach, pages;
    int32_t *table;
    page *page;
    list free, idle;
} group;

typedef struct hash { uint64_t low, high; } hash;

typedef struct node {
    hash hash;
    pages_key key;
    int32_t parent, next;      /* next: in its bucket, or among free nodes */
    int32_t children, rows;    /* rows that end in it */
} node;

typedef struct row {
    bool is_busy, is_chained;  /* is_chained: its whole pages are nodes */
    pages_key key;
    int32_t node;              /* of its last whole page; NONE: none yet */
    int64_t blocks;            /* whole pages that are in */
    int64_t end;               /* pages that it has, from first on */
    int64_t first[PAGES_MAX_GROUPS];
} row;

struct pages {
    dw_context *context;
    arena arena;
    int64_t slots, rows, entries;
    bool alone;
    bool changed;              /* an entry of a table, since somebody asked */
    int group_count;
    group group[PAGES_MAX_GROUPS];
    row *row;
    node *node;
    int64_t node_count;
    int64_t *node_ids;         /* [nodes,slots] */
    int32_t *node_page;        /* [nodes,groups] */
    int32_t free_node;
    int32_t *bucket;
    uint64_t bucket_mask;
    pages_facts facts;
};

/* ---- lists ---- */

static void list_add(group *group, list *list, int32_t index) {
    group->page[index].before = list->last;
    group->page[index].after = NONE;
    if (list->last != NONE) group->page[list->last].after = index;
    else list->first = index;
    list->last = index;
    list->count++;
}

static void list_remove(group *group, list *list, int32_t index) {
    const page *page = &group->page[index];
    if (page->before != NONE) group->page[page->before].after = page->after;
    else list->first = page->after;
    if (page->after != NONE) group->page[page->after].before = page->before;
    else list->last = page->before;
    list->count--;
}

/* ---- nodes ---- */

static int32_t *page_of(const pages *pages, int32_t node, int group) { return &pages->node_page[(int64_t)node * pages->group_count + group]; }
static int64_t *ids_of(const pages *pages, int32_t node) { return &pages->node_ids[(int64_t)node * pages->slots]; }

static hash hash_of(const pages *pages, int32_t parent, pages_key key, const int64_t *ids) {
    const hash before = parent != NONE ? pages->node[parent].hash : (hash){0, 0};
    const uint64_t head[] = {before.low, before.high, key.salt, key.owner};
    hash made;
    base_hash_128(sizeof head, head, (size_t)pages->slots * sizeof *ids, ids, &made.low, &made.high);
    return made;
}

static bool is_node(const pages *pages, int32_t index, hash hash, int32_t parent, pages_key key, const int64_t *ids) {
    const node *node = &pages->node[index];
    return node->hash.low == hash.low && node->hash.high == hash.high && node->parent == parent && node->key.salt == key.salt && node->key.owner == key.owner &&
           memcmp(ids_of(pages, index), ids, (size_t)pages->slots * sizeof *ids) == 0;
}

static int32_t find_node(const pages *pages, int32_t parent, pages_key key, const int64_t *ids) {
    const hash hash = hash_of(pages, parent, key, ids);
    int32_t at = pages->bucket[hash.low & pages->bucket_mask];
    while (at != NONE && !is_node(pages, at, hash, parent, key, ids)) at = pages->node[at].next;
    return at;
}

/* NONE: there is no room for one. */
static int32_t make_node(pages *pages, int32_t parent, pages_key key, const int64_t *ids) {
    const int32_t index = pages->free_node;
    if (index == NONE) return NONE;
    node *made = &pages->node[index];
    pages->free_node = made->next;
    *made = (node){.hash = hash_of(pages, parent, key, ids), .key = key, .parent = parent};
    int32_t *bucket = &pages->bucket[made->hash.low & pages->bucket_mask];
    made->next = *bucket;
    *bucket = index;
    memcpy(ids_of(pages, index), ids, (size_t)pages->slots * sizeof *ids);
    for (int g = 0; g < pages->group_count; g++) *page_of(pages, index, g) = NONE;
    if (parent != NONE) pages->node[parent].children++;
    return index;
}

static void unlink_node(pages *pages, int32_t index) {
    int32_t *at = &pages->bucket[pages->node[index].hash.low & pages->bucket_mask];
    while (*at != index) at = &pages->node[*at].next;
    *at = pages->node[index].next;
}

static bool is_needed(const pages *pages, int32_t index) {
    const node *node = &pages->node[index];
    for (int g = 0; g < pages->group_count; g++)
        if (*page_of(pages, index, g) != NONE) return true;
    return node->children > 0 || node->rows > 0;
}

/* The node, and then those above it, go where nothing needs them. */
static void drop_node(pages *pages, int32_t index) {
    while (index != NONE && !is_needed(pages, index)) {
        const int32_t parent = pages->node[index].parent;
        unlink_node(pages, index);
        pages->node[index].next = pages->free_node;
        pages->free_node = index;
        if (parent != NONE) pages->node[parent].children--;
        index = parent;
    }
}

/* The row ends in this node now. */
static void stand_at(pages *pages, row *row, int32_t index) {
    const int32_t before = row->node;
    if (index != NONE) pages->node[index].rows++;
    row->node = index;
    if (before == NONE) return;
    pages->node[before].rows--;
    drop_node(pages, before);
}

/* ---- pages ---- */

static int32_t *entry_of(const pages *pages, const group *group, int64_t row, int64_t block) { return &group->table[row * pages->entries + block]; }

static void set_entry(pages *pages, int32_t *entry, int32_t page) {
    pages->changed = pages->changed || *entry != page;
    *entry = page;
}

static void use_page(group *group, int32_t index) {
    if (group->page[index].count++ == 0) list_remove(group, &group->idle, index);
}

static void leave_page(group *group, int32_t index) {
    page *page = &group->page[index];
    if (--page->count > 0) return;
    list_add(group, page->node != NONE ? &group->idle : &group->free, index);
}

/* A page that nobody has, with count 1: there is one. */
static int32_t take_page(pages *pages, int g) {
    group *group = &pages->group[g];
    const bool is_free = group->free.count > 0;
    const int32_t index = is_free ? group->free.first : group->idle.first;
    page *page = &group->page[index];
    list_remove(group, is_free ? &group->free : &group->idle, index);
    page->count = 1;
    if (page->node == NONE) return index;
    const int32_t node = page->node;
    page->node = NONE;
    *page_of(pages, node, g) = NONE;
    drop_node(pages, node);
    return index;
}

static int64_t available(const group *group) { return group->free.count + group->idle.count; }

/* The first page that a token behind past others, and all after it, may see. */
static int64_t first_seen(const pages *pages, const group *group, int64_t past) {
    return group->reach > 0 && past >= group->reach ? (past - group->reach + 1) / pages->slots : 0;
}

/* ---- a row ---- */

void pages_begin(pages *pages, int64_t index, pages_key key) {
    pages->row[index] = (row){.is_busy = true, .is_chained = !pages->alone, .key = key, .node = NONE};
}

/* How many whole pages, up to most, the row can have of what is known: all groups have what the tokens behind them see. */
static int64_t known_blocks(const pages *pages, const row *row, const int64_t *ids, int64_t most) {
    int64_t missing[PAGES_MAX_GROUPS], known = row->blocks;
    int32_t at = row->node;
    for (int g = 0; g < pages->group_count; g++) missing[g] = row->blocks - 1;
    for (int64_t block = row->blocks; block < most; block++) {
        bool is_whole = true;
        at = find_node(pages, at, row->key, ids + block * pages->slots);
        if (at == NONE) return known;
        for (int g = 0; g < pages->group_count; g++) {
            const group *group = &pages->group[g];
            if (*page_of(pages, at, g) == NONE) missing[g] = block;
            if (group->reach == 0 && missing[g] == block) return known;
            const int64_t first = first_seen(pages, group, (block + 1) * pages->slots);
            is_whole = is_whole && (missing[g] < first || missing[g] < row->blocks);
        }
        if (is_whole) known = block + 1;
    }
    return known;
}

int64_t pages_match(pages *pages, int64_t index, const int64_t *ids, int64_t count) {
    row *row = &pages->row[index];
    const int64_t before = row->blocks;
    if (!row->is_chained || row->end > row->blocks) return row->blocks * pages->slots;
    const int64_t known = known_blocks(pages, row, ids, count / pages->slots < pages->entries ? count / pages->slots : pages->entries);
    for (int64_t block = before; block < known; block++) {
        const int32_t next = find_node(pages, row->node, row->key, ids + block * pages->slots);
        for (int g = 0; g < pages->group_count; g++) {
            group *group = &pages->group[g];
            if (block < first_seen(pages, group, known * pages->slots)) continue;
            set_entry(pages, entry_of(pages, group, index, block), *page_of(pages, next, g));
            use_page(group, *page_of(pages, next, g));
        }
        stand_at(pages, row, next);
    }
    row->blocks = row->end = known;
    if (known > before) {
        pages->facts.hits += before == 0;
        pages->facts.hit_tokens += (known - before) * pages->slots;
        pages_commit(pages, index, ids, known * pages->slots);
    }
    return known * pages->slots;
}

bool pages_is_same(const pages *pages, int64_t index, int64_t other_index, const int64_t *ids, const int64_t *other_ids, int64_t other_count) {
    const row *row = &pages->row[index], *other = &pages->row[other_index];
    if (!row->is_chained || !other->is_chained || row->end > row->blocks || row->blocks < other->blocks) return false;
    if (row->key.salt != other->key.salt || row->key.owner != other->key.owner) return false;
    const int64_t end = (row->blocks + 1) * pages->slots;
    return end <= other_count && memcmp(ids, other_ids, (size_t)end * sizeof *ids) == 0;
}

bool pages_reserve(pages *pages, int64_t index, int64_t end) {
    row *row = &pages->row[index];
    const int64_t blocks = base_ceil_div(end, pages->slots);
    for (int g = 0; g < pages->group_count; g++)
        if (blocks - row->end > available(&pages->group[g])) return false;
    for (; row->end < blocks; row->end++)
        for (int g = 0; g < pages->group_count; g++) set_entry(pages, entry_of(pages, &pages->group[g], index, row->end), take_page(pages, g));
    return true;
}

bool pages_fit(const pages *pages, int64_t index, int64_t end) {
    const int64_t all = base_ceil_div(end, pages->slots) - pages->row[index].end;
    for (int g = 0; g < pages->group_count; g++) {
        const group *group = &pages->group[g];
        const int64_t seen = base_ceil_div(group->reach, pages->slots) + 2;   /* it may begin within a page, and one is for what comes */
        if ((group->reach > 0 && seen < all ? seen : all) > available(group)) return false;
    }
    return true;
}

int64_t pages_room(const pages *pages, int64_t index, int64_t end) {
    int64_t room = end;
    for (int g = 0; g < pages->group_count; g++) {
        const int64_t tokens = (pages->row[index].end + available(&pages->group[g])) * pages->slots;
        if (tokens < room) room = tokens;
    }
    return room;
}

/* The row's block is that of node: pages that others brought are taken instead of its own, which go back. */
static void share_block(pages *pages, int64_t index, int64_t block, int32_t node) {
    for (int g = 0; g < pages->group_count; g++) {
        group *group = &pages->group[g];
        int32_t *known = page_of(pages, node, g), *own = entry_of(pages, group, index, block);
        if (*own == NONE || *own == *known) continue;
        if (*known == NONE) {
            *known = *own;
            group->page[*own].node = node;
            continue;
        }
        use_page(group, *known);
        leave_page(group, *own);
        set_entry(pages, own, *known);
    }
}

static void learn_block(pages *pages, int64_t index, const int64_t *ids) {
    row *row = &pages->row[index];
    const int64_t *block = ids + row->blocks * pages->slots;
    int32_t next = NONE;
    if (row->is_chained) next = find_node(pages, row->node, row->key, block);
    if (row->is_chained && next == NONE) next = make_node(pages, row->node, row->key, block);
    row->is_chained = next != NONE;
    if (next != NONE) {
        share_block(pages, index, row->blocks, next);
        stand_at(pages, row, next);
    }
    row->blocks++;
}

void pages_commit(pages *pages, int64_t index, const int64_t *ids, int64_t past) {
    row *row = &pages->row[index];
    while ((row->blocks + 1) * pages->slots <= past) learn_block(pages, index, ids);
    for (int g = 0; g < pages->group_count; g++) {
        group *group = &pages->group[g];
        const int64_t first = first_seen(pages, group, past);
        for (; row->first[g] < first && row->first[g] < row->end; row->first[g]++) {
            int32_t *entry = entry_of(pages, group, index, row->first[g]);
            if (*entry == NONE) continue;
            leave_page(group, *entry);
            set_entry(pages, entry, NONE);
            pages->facts.released++;
        }
    }
}

void pages_end(pages *pages, int64_t index) {
    row *row = &pages->row[index];
    for (int64_t block = row->end; block-- > 0;)
        for (int g = 0; g < pages->group_count; g++) {
            int32_t *entry = entry_of(pages, &pages->group[g], index, block);
            if (*entry != NONE) leave_page(&pages->group[g], *entry);
            set_entry(pages, entry, NONE);
        }
    stand_at(pages, row, NONE);
    row->is_busy = false;
    row->end = row->blocks = 0;
}

bool pages_changed(pages *pages) {
    const bool changed = pages->changed;
    pages->changed = false;
    return changed;
}

void pages_forget(pages *pages) {
    for (int g = 0; g < pages->group_count; g++) {
        group *group = &pages->group[g];
        for (int32_t i = 0; i < group->pages; i++) {
            page *page = &group->page[i];
            const int32_t node = page->node;
            if (node == NONE) continue;
            if (page->count == 0) {
                list_remove(group, &group->idle, i);
                list_add(group, &group->free, i);
            }
            page->node = NONE;
            *page_of(pages, node, g) = NONE;
            drop_node(pages, node);
        }
    }
    for (int64_t i = 0; i < pages->rows; i++) {
        row *row = &pages->row[i];
        row->is_chained = row->is_chained && row->end == 0;
        stand_at(pages, row, NONE);
    }
}

/* ---- facts ---- */

void pages_count(const pages *pages, pages_facts *facts) {
    *facts = pages->facts;
    for (int g = 0; g < pages->group_count; g++) {
        const group *group = &pages->group[g];
        facts->pages += group->pages;
        facts->idle += group->idle.count;
        facts->used += group->pages - available(group);
        for (int64_t i = 0; i < group->pages; i++) facts->shared += group->page[i].count > 1;
    }
}

static dw_status check_lists(dw_context *context, const pages *pages, int g) {
    const group *group = &pages->group[g];
    int64_t used = 0, free = 0, idle = 0;
    for (int32_t i = group->free.first; i != NONE; i = group->page[i].after, free++)
        if (group->page[i].count != 0 || group->page[i].node != NONE) return base_fail(context, DW_INTERNAL, "page %d of group %d is free and used", i, g);
    for (int32_t i = group->idle.first; i != NONE; i = group->page[i].after, idle++)
        if (group->page[i].count != 0 || group->page[i].node == NONE || *page_of(pages, group->page[i].node, g) != i)
            return base_fail(context, DW_INTERNAL, "page %d of group %d is idle, and used or unknown", i, g);
    for (int64_t i = 0; i < group->pages; i++) used += group->page[i].count > 0;
    if (free == group->free.count && idle == group->idle.count && used + free + idle == group->pages) return DW_OK;
    return base_fail(context, DW_INTERNAL, "group %d has %lld pages: %lld are used, %lld idle, %lld free", g, (long long)group->pages, (long long)used, (long long)idle,
                     (long long)free);
}

static dw_status check_counts(dw_context *context, const pages *pages, int g) {
    const group *group = &pages->group[g];
    int64_t named = 0, counted = 0;
    for (int64_t i = 0; i < pages->rows * pages->entries; i++) named += group->table[i] != NONE;
    for (int32_t i = 0; i < group->pages; i++) {
        int32_t tables = 0;
        counted += group->page[i].count;
        for (int64_t k = 0; k < pages->rows * pages->entries; k++) tables += group->table[k] == i;
        if (tables != group->page[i].count)
            return base_fail(context, DW_INTERNAL, "page %d of group %d is in %d tables and counts %d", i, g, tables, group->page[i].count);
    }
    return named == counted ? DW_OK : base_fail(context, DW_INTERNAL, "group %d: tables name pages that there are not", g);
}

static dw_status check_nodes(dw_context *context, const pages *pages) {
    int64_t free = 0, needed = 0;
    for (int32_t i = pages->free_node; i != NONE; i = pages->node[i].next) free++;
    for (int32_t i = 0; i < pages->node_count; i++) needed += is_needed(pages, i);
    return free + needed == pages->node_count ? DW_OK : base_fail(context, DW_INTERNAL, "of %lld nodes %lld are needed and %lld free", (long long)pages->node_count,
                                                                  (long long)needed, (long long)free);
}

dw_status pages_check(dw_context *context, const pages *pages) {
    for (int g = 0; g < pages->group_count; g++) {
        TRY(check_lists(context, pages, g));
        TRY(check_counts(context, pages, g));
    }
    return check_nodes(context, pages);
}

/* ---- life ---- */

static dw_status make_group(pages *pages, const pages_group *options, group *group) {
    *group = (struct group){.reach = options->reach, .pages = options->pages, .table = options->table, .free = {NONE, NONE, 0}, .idle = {NONE, NONE, 0}};
    TRY_NEW(group->page, &pages->arena, options->pages);
    for (int32_t i = 0; i < options->pages; i++) {
        group->page[i].node = NONE;
        list_add(group, &group->free, i);
    }
    for (int64_t i = 0; i < pages->rows * pages->entries; i++) group->table[i] = NONE;
    return DW_OK;
}

static dw_status make_nodes(pages *pages) {
    int64_t buckets = 1;
    while (buckets < 2 * pages->node_count) buckets *= 2;
    pages->bucket_mask = (uint64_t)buckets - 1;
    pages->free_node = NONE;
    TRY_NEW(pages->bucket, &pages->arena, buckets);
    TRY_NEW(pages->node, &pages->arena, pages->node_count);
    TRY_NEW(pages->node_ids, &pages->arena, pages->node_count * pages->slots);
    TRY_NEW(pages->node_page, &pages->arena, pages->node_count * pages->group_count);
    for (int64_t i = 0; i < buckets; i++) pages->bucket[i] = NONE;
    for (int64_t i = 0; i < pages->node_count * pages->group_count; i++) pages->node_page[i] = NONE;
    for (int32_t i = (int32_t)pages->node_count; i-- > 0; pages->free_node = i) pages->node[i] = (node){.next = pages->free_node, .parent = NONE};
    return DW_OK;
}

static dw_status build(pages *pages, const pages_options *options) {
    TRY_NEW(pages->row, &pages->arena, pages->rows);
    for (int64_t i = 0; i < pages->rows; i++) pages->row[i].node = NONE;
    for (int g = 0; g < pages->group_count; g++) {
        if (options->groups[g].pages > INT32_MAX / 4)
            return base_fail(pages->context, DW_LIMIT, "%lld pages of a cache, at most %d", (long long)options->groups[g].pages, INT32_MAX / 4);
        TRY(make_group(pages, &options->groups[g], &pages->group[g]));
        if (!pages->alone) pages->node_count += options->groups[g].pages;
    }
    if (!pages->alone) pages->node_count += pages->rows;
    return make_nodes(pages);
}

dw_status pages_create(dw_context *context, const pages_options *options, pages **made) {
    void *memory;
    *made = NULL;
    TRY(base_alloc(context, sizeof(pages), _Alignof(max_align_t), &memory));
    pages *created = memory;
    *created = (pages){.changed = true, .context = context, .slots = options->slots, .rows = options->rows, .entries = options->entries, .alone = options->alone, .group_count = options->group_count};
    arena_init(&created->arena, context);
    const dw_status status = build(created, options);
    if (status == DW_OK) *made = created;
    else pages_destroy(created);
    return status;
}

void pages_destroy(pages *pages) {
    if (pages == NULL) return;
    arena_free(&pages->arena);
    base_release(pages->context, pages, sizeof *pages, _Alignof(max_align_t));
}
