/* The pages of a cache: which are free, which texts have which, and which hold a beginning that a later text may have, too. Numbers only; what lies in a page is the engine's. */
#ifndef SERVE_PAGES_H
#define SERVE_PAGES_H

#include "base/base.h"

enum { PAGES_MAX_GROUPS = 8 };

/* Caches of one group lie in the same places: of their keys so many of the last ones are seen; 0: all. */
typedef struct pages_group {
    int64_t reach;
    int64_t pages;              /* how many there are */
    int32_t *table;             /* [rows,entries], the caller's: the pages of each text, -1 where it has none */
} pages_group;

typedef struct pages_options {
    int64_t slots;              /* tokens of a page */
    int64_t rows, entries;      /* texts at a time, and pages that each may have */
    int group_count;
    pages_group groups[PAGES_MAX_GROUPS];
    bool alone;                 /* nothing is shared */
} pages_options;

/* Whose texts may share: those of equal keys. */
typedef struct pages_key { uint64_t salt, owner; } pages_key;

typedef struct pages_facts {
    int64_t pages, used, idle, shared;      /* of all groups: all; in a table; in none, but known by what they hold; in several tables. free ones are the rest */
    int64_t hit_tokens, hits, released;     /* so far: tokens that were there already, texts that found any, pages that went back behind a window */
} pages_facts;

typedef struct pages pages;

/* All memory is taken here; tables are filled with -1. */
dw_status pages_create(dw_context *context, const pages_options *options, pages **made);
void pages_destroy(pages *pages);

/* Row takes a text that has nothing. */
void pages_begin(pages *pages, int64_t row, pages_key key);
/* What is known of the text's ids behind the tokens that it has, of at most count tokens, becomes the row's. Gives how many tokens the row has then. Does nothing unless the tokens that it has
 * end a page. */
int64_t pages_match(pages *pages, int64_t row, const int64_t *ids, int64_t count);
/* Would this many of ids, behind those that the row has, end in the same page that another row is filling: is it better to wait for that one? */
bool pages_is_same(const pages *pages, int64_t row, int64_t other, const int64_t *ids, const int64_t *other_ids, int64_t other_count);
/* Pages for all tokens in front of end; false: there are too few, and nothing changed. */
bool pages_reserve(pages *pages, int64_t row, int64_t end);
/* Are there pages for a text that is read piece by piece until end? Of a group that sees a window it is enough to have what is seen and a page: those behind the window go back meanwhile. */
bool pages_fit(const pages *pages, int64_t row, int64_t end);
/* How many tokens, at most until end, the row could have with the pages that are free. */
int64_t pages_room(const pages *pages, int64_t row, int64_t end);
/* The first past tokens of ids are in the cache: whole pages become known, and those that nobody will see go back. */
void pages_commit(pages *pages, int64_t row, const int64_t *ids, int64_t past);
/* The text leaves; all its pages go back. */
void pages_end(pages *pages, int64_t row);
/* Has an entry of a table changed, since this was asked? At first all have. */
bool pages_changed(pages *pages);
/* Nothing that is known is true any more (weights have changed): what rows have stays theirs, and is shared no further. */
void pages_forget(pages *pages);

void pages_count(const pages *pages, pages_facts *facts);
/* For tests. INTERNAL says what does not hold: each page is in as many tables as it counts, and used, idle and free ones are all. */
dw_status pages_check(dw_context *context, const pages *pages);

#endif
