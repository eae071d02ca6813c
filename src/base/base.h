/* The bottom layer: errors, memory, text, maps, threads and symbolic dimensions. Knows nothing of tensors. */
#ifndef BASE_BASE_H
#define BASE_BASE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "deepwell/status.h"

#if defined(__GNUC__)
#define BASE_PRINTF(format_index, first) __attribute__((format(printf, format_index, first)))
#else
#define BASE_PRINTF(format_index, first)
#endif

#define COUNT_OF(array) (sizeof(array) / sizeof((array)[0]))

/* Return the status of a call that failed, and nothing else. */
#define TRY(expression)                                      \
    do {                                                     \
        dw_status try_status_ = (expression);                \
        if (try_status_ != DW_OK) return try_status_;        \
    } while (0)

/* pointer = zeroed memory for count objects from the arena, or return NO_MEMORY (the context says how much and where). */
#define TRY_NEW(pointer, arena, count)                                                     \
    do {                                                                                   \
        (pointer) = arena_new((arena), (size_t)(count), sizeof *(pointer));                \
        if ((pointer) == NULL) return DW_NO_MEMORY;                                        \
    } while (0)

/* d = an expression of dim_..., or return the status of its failure. */
#define TRY_DIM(context, d, expression)                                 \
    do {                                                                \
        (d) = (expression);                                             \
        if ((d) == NULL) return base_last_status(context);              \
    } while (0)

/* ---- errors (error.c) ------------------------------------------------------------------------------------------ */

/* Record the message "STATUS: <text>" and return status. The text says what, where, the values, and what to do; it may quote the
 * last message. Needs no memory; a message beyond 4 KiB ends in "...". With context NULL nothing is recorded. */
dw_status base_fail(dw_context *context, dw_status status, const char *format, ...) BASE_PRINTF(3, 4);
/* Append " (<text>)" to the last message and return status: where a failure is given its place on the way up. */
dw_status base_fail_at(dw_context *context, dw_status status, const char *format, ...) BASE_PRINTF(3, 4);
/* The status of the last failure, for callers of functions that return NULL instead of it; DW_OK before the first. */
dw_status base_last_status(const dw_context *context);
void base_log(dw_context *context, dw_log_level level, const char *format, ...) BASE_PRINTF(3, 4);
/* CANCELLED when the caller asked to stop, else OK. */
dw_status base_poll(dw_context *context);
/* Seconds of a monotonic clock (clock.c). */
double base_now(void);

/* What a context destroys when it is destroyed, the last that was kept first. In memory of its allocator. */
typedef struct base_kept base_kept;
struct base_kept { base_kept *before; void (*close)(dw_context *context, base_kept *kept); };
void base_keep(dw_context *context, base_kept *kept);

/* A context of its own for another thread: with context's allocator, log and number of threads (context.c). Where context borrows its threads, so does it. */
dw_status base_context_like(const dw_context *context, dw_context **made);
/* Work by the context is cancelled where that of the other one is, which outlives it; NULL: never. */
void base_cancel_as(dw_context *context, const dw_context *other);

/* ---- memory (memory.c, arena.c) ---------------------------------------------------------------------------------- */

/* Uninitialised bytes from the context's allocator, aligned to align (a power of two, at most 4096). *memory is NULL on failure,
 * and, with OK, for 0 bytes. */
dw_status base_alloc(dw_context *context, size_t bytes, size_t align, void **memory);
void base_release(dw_context *context, void *memory, size_t bytes, size_t align);   /* NULL is allowed */
/* How many allocations have failed so far: for those who gather many things and check once, at the end. */
size_t base_failed_allocations(const dw_context *context);

/* Arithmetic that notices overflow: false, with the result untouched, when it does not fit. */
bool base_mul_size(size_t a, size_t b, size_t *product);
bool base_add_size(size_t a, size_t b, size_t *sum);
bool base_mul_i64(int64_t a, int64_t b, int64_t *product);
bool base_add_i64(int64_t a, int64_t b, int64_t *sum);
/* How many parts of that size hold so many: value / unit, rounded up. Neither is negative. */
static inline int64_t base_ceil_div(int64_t value, int64_t unit) { return (value + unit - 1) / unit; }
size_t base_align_up(size_t value, size_t align);   /* the next multiple of align; value is taken to be below SIZE_MAX - align */

/* Grows by blocks, frees all at once; the home of small things. arena_init comes first; after arena_free it is empty and usable. */
typedef struct arena_block arena_block;
typedef struct arena {
    dw_context *context;
    arena_block *blocks;
    size_t used, room;   /* in the newest block */
} arena;

void arena_init(arena *arena, dw_context *context);
void arena_free(arena *arena);
/* Zeroed memory for count objects of size bytes, aligned to 16; never NULL for count 0. NULL on failure, with the message recorded. */
void *arena_new(arena *arena, size_t count, size_t size);
char *arena_text(arena *arena, const char *text);                     /* copies; NULL on failure */
char *arena_text_n(arena *arena, const char *text, size_t length);
char *arena_printf(arena *arena, const char *format, ...) BASE_PRINTF(2, 3);
/* Room for one more in an array of count objects: returns the array, moved when *capacity had to grow (doubling); NULL on failure, when the
 * old array stays valid. */
void *arena_grow(arena *arena, void *array, size_t count, size_t *capacity, size_t size);

/* ---- text (text.c, scanner.c) -------------------------------------------------------------------------------------- */

/* A growing string. A failed append is remembered, and text_status returns it at the end: appends need no checks. */
typedef struct text {
    dw_context *context;
    char *bytes;          /* NUL-terminated once anything was appended */
    size_t length, capacity;
    dw_status status;
} text;

void text_init(text *text, dw_context *context);
void text_free(text *text);
void text_add(text *text, const char *string);
void text_add_n(text *text, const char *string, size_t length);
void text_printf(text *text, const char *format, ...) BASE_PRINTF(2, 3);
void text_vprintf(text *text, const char *format, va_list arguments) BASE_PRINTF(2, 0);
void text_json_string(text *text, const char *string);   /* quoted and escaped */
/* The shortest of 15 to 17 digits that reads back as the same number, always distinct from an integer: "0.1", "2.0", "1e-05", "inf", "-inf",
 * "nan". Unlike text_printf it does not follow the locale: what a parser reads back is printed by this. */
void text_real(text *text, double number);
/* number with so many significant digits, whatever the locale. */
void text_digits(text *text, int digits, double number);
/* length characters of the form 12.5e-3, whatever the locale; false when they are too many or no such number. Beyond 64 bits it is infinite. */
bool text_read_real(const char *at, size_t length, double *number);
dw_status text_status(const text *text);
const char *text_string(const text *text);               /* "" when empty */

/* Reads tokens of the project's text forms. Tokens: names [A-Za-z_][A-Za-z0-9_.$]*, %numbers, integers (also 0x...), reals,
 * "strings" with JSON escapes, and single punctuation characters; '#' begins a comment that ends with the line; newlines count as
 * tokens. A minus belongs to the number after it, except after an operand (a name, a value, a number, a string, ')' or ']'):
 * "[-1,s-1]" holds the integer -1, then s, '-', 1. */
typedef enum scan_kind { SCAN_END, SCAN_NEWLINE, SCAN_NAME, SCAN_VALUE, SCAN_INTEGER, SCAN_REAL, SCAN_STRING, SCAN_PUNCTUATION } scan_kind;
typedef struct scanner {
    dw_context *context;
    arena *arena;             /* holds the strings that are returned */
    const char *source;       /* the name used in messages */
    const char *at, *end;
    int line;
    scan_kind kind;           /* the current token: */
    const char *token;        /* NUL-terminated text of NAME and STRING (stays in the arena); of PUNCTUATION the one character */
    char punctuation[2];
    int64_t integer;          /* of VALUE (%7 -> 7) and INTEGER */
    double real;              /* of REAL and INTEGER; inf, -inf and nan are REAL */
} scanner;

dw_status scan_open(scanner *scanner, arena *arena, const char *source, const char *bytes, size_t length);   /* and reads the first token */
dw_status scan_next(scanner *scanner);
/* Is the current token this name or punctuation? A string of the same text is not. */
bool scan_is(const scanner *scanner, const char *name_or_punctuation);
dw_status scan_accept(scanner *scanner, const char *name_or_punctuation, bool *accepted);   /* reads on if it is */
dw_status scan_expect(scanner *scanner, const char *name_or_punctuation);
/* These take the current token's value and read on; SYNTAX when it is of another kind. */
dw_status scan_name(scanner *scanner, const char **name);
dw_status scan_string(scanner *scanner, const char **string);
dw_status scan_integer(scanner *scanner, int64_t *integer);
dw_status scan_real(scanner *scanner, double *real);
dw_status scan_end_of_line(scanner *scanner);             /* one or more newlines, or the end */
/* SYNTAX: "<source>:<line>: <text>, found '<token>'" */
dw_status scan_fail(scanner *scanner, const char *format, ...) BASE_PRINTF(2, 3);

/* ---- maps (map.c) ---------------------------------------------------------------------------------------------------- */

/* String -> pointer, in an arena; keys are copied. entries[0 .. count - 1] stand in order of insertion. */
typedef struct map_entry { const char *key; void *value; uint64_t hash; } map_entry;
typedef struct map {
    arena *arena;
    map_entry *entries;
    size_t count, capacity;
    uint32_t *slots;          /* 1 + index into entries; 0 is free */
    size_t slot_count;
} map;

void map_init(map *map, arena *arena);
/* Adds or replaces. */
dw_status map_set(map *map, const char *key, void *value);
void *map_find(const map *map, const char *key);          /* NULL when absent */

/* 64-bit XXH3 of bytes with the seed, which may be the hash of what came before. */
uint64_t base_hash(const void *bytes, size_t length, uint64_t seed);
/* XXH3-128 of head and bytes, one behind the other. */
void base_hash_128(size_t head_length, const void *head, size_t length, const void *bytes, uint64_t *low, uint64_t *high);

/* ---- files (file.c) ---------------------------------------------------------------------------------------------------- */

/* A read-only mapping of a whole file. It must not shrink while mapped. An empty file has length 0 and bytes that may not be read. */
typedef struct file_map { const uint8_t *bytes; size_t length; void *handle; } file_map;
dw_status file_map_open(dw_context *context, const char *path, file_map *file);
void file_map_close(file_map *file);
/* Writes through a temporary name in the same folder and renames: the file appears whole or not at all, replacing one of that name. Adding
 * is buffered; what failed once fails at commit too. Refuses what exists and is no file (a folder, a device). */
typedef struct file_writer file_writer;
dw_status file_writer_create(dw_context *context, const char *path, file_writer **writer);
dw_status file_writer_add(file_writer *writer, const void *bytes, size_t length);
dw_status file_writer_pad(file_writer *writer, size_t align);          /* zeros up to a multiple of align */
uint64_t file_writer_offset(const file_writer *writer);
dw_status file_writer_commit(file_writer *writer);                     /* to the disk, then renames; destroys the writer in any case */
void file_writer_abandon(file_writer *writer);                         /* removes the temporary file; NULL is allowed */

/* ---- threads (pool.c) ---------------------------------------------------------------------------------------------------- */

typedef struct pool pool;
/* Task i of count runs once on some thread; worker < pool_threads(pool) names the thread, for scratch memory. What a task computes
 * must not depend on worker: results are the same bits at any number of threads. */
typedef void (*pool_task)(void *argument, int64_t task, int worker);

dw_status pool_create(dw_context *context, int threads, pool **pool);
void pool_destroy(pool *pool);
int pool_threads(const pool *pool);
/* Returns when all tasks are done; the caller works too, as worker 0. Tasks are handed out in order, whoever is free takes the next. With
 * one thread or one task all runs in the caller, and so it does while another caller has the workers. In a forked child the pool starts threads of
 * its own. */
void pool_run(pool *pool, int64_t count, pool_task task, void *argument);
/* The context's own pool, made at the first call. */
dw_status base_pool(dw_context *context, pool **pool);

/* ---- symbolic dimensions (dim.c) --------------------------------------------------------------------------------------- */

/* An integer expression over symbols, in canonical form inside its table: equal forms are one pointer, so == compares. A sum of integer
 * multiples of products of atoms; an atom is a symbol, floor(a / b), a mod b, min(a, b) or max(a, b). Constants fold. Expressions
 * fold by what the ranges of the symbols prove, at the time they are made. */
typedef struct dim_node dim_node;
typedef const dim_node *dim;
typedef struct dim_table dim_table;

#define DIM_UNBOUNDED INT64_MAX   /* the upper end of a range that nobody gave */

dw_status dim_table_create(dw_context *context, dim_table **table);
void dim_table_destroy(dim_table *table);

/* These return NULL on failure (INVALID: division by zero; LIMIT: a coefficient beyond int64, more than 256 terms, 16 factors, 64
 * nested functions or 2000 symbols within one; NO_MEMORY), with the message recorded. A NULL operand gives
 * NULL, so calls nest; TRY_DIM returns the status. */
dim dim_constant(dim_table *table, int64_t value);
/* The symbol of that name (a NAME of the scanner); made with the range when it is new, else its range is left as it is. */
dim dim_symbol(dim_table *table, const char *name, int64_t min, int64_t max);
dim dim_add(dim_table *table, dim a, dim b);
dim dim_sub(dim_table *table, dim a, dim b);
dim dim_mul(dim_table *table, dim a, dim b);
/* Rounds toward minus infinity, as Python does; exact where the polynomial divides. b is taken to be nowhere zero. */
dim dim_floordiv(dim_table *table, dim a, dim b);
dim dim_mod(dim_table *table, dim a, dim b);        /* a - b * floordiv(a, b) */
dim dim_min(dim_table *table, dim a, dim b);
dim dim_max(dim_table *table, dim a, dim b);
dim dim_product(dim_table *table, const dim *dims, int count);   /* 1 for none */
/* *quotient is a / b when b divides a as a polynomial (or both are constants that divide); else NULL, with OK. */
dw_status dim_divide(dim_table *table, dim a, dim b, dim *quotient);
/* The same for those who can do without the answer: NULL also when memory ran out. */
dim dim_divide_exact(dim_table *table, dim a, dim b);

int dim_symbol_count(const dim_table *table);
const char *dim_symbol_name(const dim_table *table, int index);
int dim_symbol_find(const dim_table *table, const char *name);     /* -1 when absent */
void dim_symbol_range(const dim_table *table, int index, int64_t *min, int64_t *max);
/* Narrows a range (INVALID when it would widen or leave nothing: what is folded already relies on it). Expressions made before stay as
 * they are; dim_rewrite folds them anew. */
dw_status dim_symbol_set_range(dim_table *table, int index, int64_t min, int64_t max);

bool dim_is_constant(dim d, int64_t *value);        /* value may be NULL */
bool dim_is_symbol(dim d, int *index);              /* index may be NULL */
/* Are all symbols in d known when a model is loaded? Such are the places of a rank along the axes of a mesh, DIM_RANK "tp": one text serves all ranks. */
#define DIM_RANK "rank."
bool dim_is_settled(dim d);
/* Bounds by interval arithmetic over the symbols' ranges (saturating at INT64_MIN, INT64_MAX), and tighter ones of sums of one product and of floors of it. */
void dim_range(const dim_table *table, dim d, int64_t *min, int64_t *max);
/* Is a <= b (a < b) for every value of the symbols? false when unknown. */
bool dim_always_le(dim_table *table, dim a, dim b);
bool dim_always_lt(dim_table *table, dim a, dim b);
/* values[i] is the value of symbol i. LIMIT on overflow, INVALID on division by zero. */
dw_status dim_eval(dw_context *context, dim d, const int64_t *values, int64_t *result);
/* d rewritten into table (which may be from itself) with symbol i of from replaced by replacement[i]; a NULL there keeps the symbol by
 * name and range, and so does replacement NULL for all. */
dim dim_rewrite(dim_table *table, const dim_table *from, dim d, const dim *replacement);

/* For those who take expressions apart: a dim is the sum of its terms, a term coefficient * product, a product the product of its
 * factors, a factor a symbol or a function of two operands. All of these are dims of the same table. */
typedef enum dim_kind {
    DIM_CONSTANT, DIM_SYMBOL, DIM_FLOORDIV, DIM_MOD, DIM_MIN, DIM_MAX,
    DIM_PRODUCT,   /* one term, but none of the above: 3*a, a*b */
    DIM_SUM        /* two terms or more */
} dim_kind;
dim_kind dim_kind_of(dim d);
int dim_term_count(dim d);                          /* 0 for the constant 0 */
/* product is 1 for the constant term, which comes last; terms of higher degree come first. */
void dim_term(dim d, int index, int64_t *coefficient, dim *product);
int dim_factor_count(dim product);                  /* of the only term of product: 0 when it is constant */
dim dim_factor(dim product, int index);
void dim_operands(dim d, dim *a, dim *b);           /* of FLOORDIV, MOD, MIN, MAX */

/* "b*s+1", "(s+7)/8" (floor), "s%4", "min(a,b)", "max(a,b)"; the same text for equal forms, whatever their table. A leading minus is
 * that of the whole term: "-s/8" is 0-(s/8). */
void dim_print(text *text, const dim_table *table, dim d);
/* Parses what dim_print prints, from the current token to the first that does not belong; unknown symbols are added with range
 * [0, DIM_UNBOUNDED]. */
dw_status dim_parse(scanner *scanner, dim_table *table, dim *result);

#endif
