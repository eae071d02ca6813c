/* Part of engine.h, which includes it. What the files of generation share: what the graph is fed, the texts at work, and one run. */
#ifndef ENGINE_GENERATION_H
#define ENGINE_GENERATION_H

/* How the next token is come by. */
typedef enum generation_mode {
    GENERATION_STEP,     /* by the cached step: new tokens of several texts in one run */
    GENERATION_STATE,    /* by the whole graph, which keeps its own cache and has positions as inputs: new tokens of one text */
    GENERATION_WHOLE     /* by the whole graph: all tokens of one text again */
} generation_mode;

/* What an input is fed. */
typedef enum feed {
    FEED_UNKNOWN,
    FEED_IDS,
    FEED_ONES,           /* masks over all positions, */
    FEED_POSITIONS,      /* their numbers, */
    FEED_ZEROS,          /* type ids: filled once */
    FEED_PLACES,         /* positions of the new tokens */
    FEED_ROWS,           /* whose the new tokens are */
    FEED_LAST,           /* which of them end what is new of a text */
    FEED_GIVEN,          /* what the prelude makes */
    FEED_LIMIT,          /* how far that goes in the text of each new token */
    FEED_TABLE,          /* the pages of texts */
    FEED_CALLER          /* the caller's, as it is */
} feed;

enum { GENERATION_TENSORS = 256 };   /* inputs, and outputs, at most */

/* Caches in pages that lie in the same places, by a table of their own. */
enum { GENERATION_GROUPS = 8 };
typedef struct generation_group {
    size_t input;                   /* which input is the table */
    int symbol;                     /* how many pages there are */
    int64_t reach;                  /* of the keys so many of the last ones are seen; 0: all */
    int64_t pages;
    int32_t *table;                 /* [texts,entries], where that input is fed from */
} generation_group;

/* A text at work. What is there and how much of it comes next is src/serve's to say. */
typedef struct generation_text {
    int64_t *sequence;              /* the prompt and what was made: own, or whoever's the text is */
    int64_t *own;                   /* [max_tokens] */
    uint64_t serial;                /* whose text it is, for those who look at logits; 0: nobody's */
    int64_t length, past;           /* how many tokens there are, and how many of them are cached */
    int64_t *limits;                /* by output of the prelude: its last place along axis 2 */
    int64_t count, first;           /* of the run that is being prepared: its new tokens, and where they begin */
    int64_t picked;                 /* its row of the logits; -1: none, more of the prompt comes first */
} generation_text;

/* Logits of which each rank has a part: columns of them from its place times as many on. Memory for what a draw needs of the others'. */
typedef struct generation_parts {
    int ranks;                      /* 0: each rank has all of them */
    int64_t columns;
    void *sent, *received, *rows, *workspace;
} generation_parts;
enum { GENERATION_CANDIDATES = 256 };   /* the most of a rank's likeliest that are sent in place of its part */

/* Lies in session->generation. */
typedef struct generation {
    generation_mode mode;
    int64_t vocabulary;
    generation_parts parts;
    int output;                     /* which output is the logits, */
    int next;                       /* and which the likeliest token of each row of them; -1: none is */
    bool reads_logits;              /* of the call at work: are rows of the logits looked at? */
    dw_format logits_format;
    int64_t texts;                  /* how many may be at work at a time */
    int64_t cache_most;             /* tokens of a row that there is memory for */
    int64_t cache_rows, cache_tokens;   /* of that memory what runs see, of a call by what it asks for: what a session had room for before changes no run's sizes */
    int64_t rungs[ENGINE_LADDER];   /* the numbers of new tokens that runs have, in order: what a run has more is of row -1; */
    int rung_count;                 /* runs of more than the last one have as many as there are */
    bool is_ladder;                 /* of a service: no run has more, and the other sizes follow from the number of tokens */
    int64_t chunk, run_most;        /* the most new tokens of one text, and of all, in a run */
    int64_t asked;                  /* the former, where the caller said it; 0 */
    int64_t fixed;                  /* the number of tokens that the token input has; 0: any */
    bool by_text;                   /* what is given has a row for each text */
    int64_t room;                   /* tokens that the graph's own state holds */
    int64_t sizes[ENGINE_MAX_SYMBOLS];   /* of symbols that are not set by each run */
    int batch, fresh, rows, max, ring, total, ends, slots, entries;   /* symbols; -1: none */
    int64_t page, row_pages;        /* tokens of a page, and pages that a text may have; 0: caches are rows */
    int group_count;
    generation_group groups[GENERATION_GROUPS];
    feed feeds[GENERATION_TENSORS];
    int given[GENERATION_TENSORS];  /* of GIVEN and LIMIT: which output of the prelude */
    void *buffers[GENERATION_TENSORS];   /* one for each input; NULL of what the prelude makes on a device */
    engine_link *links;             /* [texts], of a run with ids that the host does not know */
    void *results[GENERATION_TENSORS];   /* one for each output */
    void *prelude[GENERATION_TENSORS];   /* where by_text, one for each output of the prelude; on a device none */
    generation_text *text;          /* [texts] */
    int64_t new_tokens;             /* of the run that is being prepared, without those of row -1 */
} generation;

/* Of a run of prompts alone, while texts wait for a token (serve/plan.c); chosen, not measured. */
static inline int64_t generation_prompts_most(const generation *g) { return g->run_most * 3 / 4; }

static inline engine_runner *generation_runner(dw_session *session) { return session->step.program != NULL ? &session->step : &session->full; }

/* generation_inputs.c: what the graph's inputs and outputs are; UNSUPPORTED says which one generation does not recognise. */
dw_status generation_find(dw_session *session, const ir_graph *graph, generation *g);
/* Fills what is the same in every run: masks, positions and type ids of count tokens. */
void generation_fill_constants(const ir_graph *graph, const generation *g, void *const *buffers, int64_t count);
/* Of a step: has all that is given a row for each text? */
bool generation_gives_rows(const ir_graph *step);
/* Has it that, and logits for each text? Then it serves several at a time. */
bool generation_tells_apart(const ir_graph *step);
void generation_store(dw_format format, void *buffer, int64_t index, int64_t value);

/* generation_memory.c: sizes of a run. */
void generation_set_sizes(engine_runner *runner, const generation *g, int64_t fresh, int64_t ends, int64_t total);

/* For the texts of a call, so many at a time, none longer than tokens; nothing is cached then. Pages and caches of the host stay whole: their size changes no bit. */
dw_status generation_fit(dw_session *session, int64_t texts, int64_t tokens);
/* And for what one of them is given, behind it. */
dw_status generation_fit_inputs(dw_session *session, int count, const dw_named_tensor *inputs);

/* generation_run.c: the inputs and sizes of a run of the new tokens of every text, text->count of them from text->past on; and that run. */
void generation_prepare(dw_session *session);
dw_status generation_run(dw_session *session);
/* Can runs be started whose ids the host does not know yet? Makes room for them. A token's id is then allowed to be generation_unknown(picked): what the run before made in that row of the logits. */
dw_status generation_look_ahead(dw_session *session, bool *can);
static inline int64_t generation_unknown(int64_t picked) { return -1 - picked; }
/* Starts the run that is prepared; which: of ENGINE_FLIGHTS, one that has landed. draws: tokens are as the sampler was asked, for each of generation_ends rows; else each is the likeliest. */
dw_status generation_launch(dw_session *session, int which, bool draws);
int64_t generation_ends(dw_session *session);
/* Waits for it; ids: the token of each of its rows of logits; made: what draws told besides. */
dw_status generation_land(dw_session *session, int which, const int64_t **ids, sampler_made *made);
/* Bindings and device graphs for all numbers of new tokens, where there is a ladder of them. */
dw_status generation_make_ready(dw_session *session);
/* Tables change only where generation_table_changed says so. */
void generation_table_changed(dw_session *session);
/* Gives each text pages of its own, in order, as far as there are any: for those who put tokens into caches without a scheduler. */
void generation_own_pages(dw_session *session);
/* logits.c: rows of all logits, of count rows of the run from the first on. most: of each row at most so many of the likeliest matter, the others may be -inf; 0: all do. Ranks that have a part of them
 * meet here: all of them call it, with the same numbers. */
dw_status generation_logits(dw_session *session, int64_t first, int64_t count, int64_t most, const void **rows);
/* The memory for that. */
dw_status generation_parts_bytes(const dw_session *session, const generation *g, size_t *sent, size_t *received, size_t *rows, size_t *workspace);
/* What a text is given besides its prompt. */
dw_status generation_set_inputs(dw_session *session, generation_text *text, int count, const dw_named_tensor *inputs);

#endif
