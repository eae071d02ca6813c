/* Inside incremental*.c: what each axis of each value holds, and how the nodes of the whole-sequence graph are made again for a step.
 * Both stand in one graph, a copy, until the old nodes go.
 *
 * An axis is a list of atoms: plain sizes, and sequence atoms. Size 1 is the empty list. Labels come from where values come from, never from
 * their sizes: at a step the sequence length may be 1. Values made of token ids are active: their sequence atoms are NEW (the new tokens)
 * or ALL (all so far). Values made of positions, tables and other inputs are passive: theirs are FREE, and each use says which of the two it
 * needs; a passive value is made once for each need. */
#ifndef PASS_STEP_STEPPER_H
#define PASS_STEP_STEPPER_H

#include "pass/step/incremental.h"
#include "analysis/analysis.h"

enum { STEP_MAX_ATOMS = 4, STEP_MAX_SEQUENCES = 3, STEP_VARIANTS = 1 << STEP_MAX_SEQUENCES };

typedef enum step_kind { STEP_FREE, STEP_NEW, STEP_ALL } step_kind;

/* A sequence atom is the length itself; or, with sort set, the flattened tokens in the order that sort gave them; or, loose, some flattened
 * tokens of a value that is the same everywhere. */
typedef struct step_atom {
    bool sequence, loose;
    const ir_node *sort;
    dim size;
} step_atom;

typedef struct step_axis {
    int count;
    step_atom atoms[STEP_MAX_ATOMS];
} step_axis;

/* kinds: of the sequence atoms, numbered along the axes. */
typedef struct step_label {
    int rank;
    step_axis axes[DW_MAX_RANK];
    int sequences;
    step_kind kinds[STEP_MAX_SEQUENCES];
} step_label;

/* What a value says about the order of tokens, where it is no plain data. Such values may only be used as experts.c knows. */
typedef enum step_meaning {
    STEP_DATA,
    STEP_KEYS,         /* sorted keys (experts): data as well */
    STEP_ORDER,        /* the permutation of sort */
    STEP_ORDER_DIV,    /* it divided by divisor: tokens rather than (token, choice) */
    STEP_COUNTS,       /* how many keys of each kind */
    STEP_OFFSETS,      /* where each kind ends */
    STEP_FLAT,         /* 0, 1, .. over flattened tokens */
    STEP_INVERSE       /* the inverse of the permutation */
} step_meaning;

/* Where an operand's sequence atoms come from in the result: its number there, or all of the history whatever the result needs. */
enum { STEP_LINK_ALL = -1 };
typedef struct step_links { int8_t to[STEP_MAX_SEQUENCES]; } step_links;

/* What is known of one old value; found by value->mark. */
typedef struct step_record {
    bool active;
    bool given;                          /* depends on inputs, but neither on tokens nor on positions: the prelude computes it */
    step_label label;
    const char *refusal;                 /* why the value cannot be made; NULL: it can */
    const ir_node *culprit;              /* the node that is so */
    unsigned whole;                      /* bit n: sequence n can only be computed over all of it; the new part is a slice */
    bool shifts;                         /* iota or slice of a table: where the new tokens are needed, each has its own place */
    step_links *links;                   /* of the node's operands */
    step_meaning meaning;
    const ir_node *sort;                 /* of meaning */
    int64_t divisor;
    ir_value *made[STEP_VARIANTS];       /* for the step; by bits, set where ALL is needed; active values in [0] */
    ir_value *cached;                    /* of keys and values: all so far */
    ir_value *by_row;                    /* of given values that attention reads: those of all texts */
    int64_t reach;                       /* of keys and values: how many of the last ones are seen; 0: all */
    bool read;                           /* as keys or values: reach is known */
} step_record;

/* An axis of what is given along which texts differ, and the input that says where each ends. */
typedef struct step_limit {
    dim size;
    ir_value *last;
} step_limit;

/* Caches in pages that lie in the same places: of which so many of the last keys are seen. */
enum { STEP_MAX_GROUPS = 8 };
typedef struct step_group {
    int64_t reach;
    dim pages;
    ir_value *table;
} step_group;

typedef struct stepper {
    ir_graph *graph;
    arena arena;
    value_analysis *analysis;            /* of the old nodes */
    ir_value *tokens;
    dim length, rows, max, chunk, total; /* length: of the sequence in old nodes, of the new tokens in new ones */
    int length_symbol, batch_symbol;     /* batch_symbol -1: the batch is a number */
    ir_value *row, *position;            /* inputs of the step */
    step_cache cache;
    dim slots, entries;                  /* of pages */
    step_group groups[STEP_MAX_GROUPS];
    int group_count;
    step_limit *limits;
    size_t limit_count, limit_capacity;
    int cache_count;
    ir_value **given;                    /* old values that the prelude gives to the step, in the order of their names */
    size_t given_count, given_capacity;
    text *why;
} stepper;

static inline step_record *step_of(const ir_value *value) { return value->mark; }

/* ---- labels (label.c) ---- */

/* Does the size depend on the sequence length? */
dw_status step_uses_length(stepper *stepper, dim size, bool *uses);
/* A size of the old graph in the step, where the batch is 1. */
dw_status step_size(stepper *stepper, dim size, dim *made);
/* Where operand axes go: a result axis; nowhere (then they must hold no sequence); or they are looked up, so that all of them is needed. */
enum { STEP_DROP = -1, STEP_WHOLE = -2 };
typedef struct step_map { int8_t to[DW_MAX_RANK]; } step_map;
/* The label of node's results from its operands' along the maps (one per operand). Axes that no operand fills take their size from the
 * source; where that is the length itself they are a new sequence if may_create. Sets refusal where axes do not correspond. */
dw_status step_join(stepper *stepper, const ir_node *node, const step_map *maps, bool may_create, step_record *record);
/* The label of a reshape: atoms are concatenated and regrouped, only plain numbers are split. */
dw_status step_regroup(stepper *stepper, const ir_node *node, step_record *record);
/* Refusal of record because of node. */
dw_status step_refuse(stepper *stepper, step_record *record, const ir_node *node, const char *format, ...) BASE_PRINTF(4, 5);
int step_axis_sequences(const step_axis *axis);
bool step_same_atoms(const step_axis *a, const step_axis *b);
/* The number of the first sequence atom of axis. */
int step_first_sequence(const step_label *label, int axis);

/* ---- rules (rules.c) ---- */

/* Label and links of the node's results, or their refusal. */
dw_status step_rule(stepper *stepper, const ir_node *node, step_record *record);

/* ---- room (capacity.c) ---- */

/* Lowers *room to the most tokens that tables looked up by position, in the nodes up to last, have places for. */
dw_status step_find_room(stepper *stepper, const ir_node *last, int64_t *room);

/* ---- experts (experts.c) ---- */

/* The rule of a node that sorts tokens by expert, or uses what is known of such an order. *known is false: it is another node. */
dw_status step_rule_experts(stepper *stepper, const ir_node *node, step_record *record, bool *known);
/* What results after the first one mean. */
void step_set_meanings(const ir_node *node);

/* ---- attention (attention.c) ---- */

dw_status step_rule_attention(stepper *stepper, const ir_node *node, step_record *record);
/* Before any is made: keys and values that one attention reads are kept alike. */
void step_join_groups(stepper *stepper);
dw_status step_make_attention(stepper *stepper, ir_node *node);

/* ---- what is given (prelude.c) ---- */

/* The rule of a node that has no sequence in any operand and none in itself. *known is false: it is another node. */
dw_status step_rule_alone(stepper *stepper, const ir_node *node, step_record *record, bool *known);
/* The input of the step that takes a given value. */
dw_status step_make_given(stepper *stepper, ir_value *value, ir_value **made);
/* The same for attention: a row for each text; and the input that says where the size along axis 2 ends, NULL where that is a number. */
dw_status step_make_rows(stepper *stepper, ir_value *value, ir_value **made);
dw_status step_make_limit(stepper *stepper, const ir_value *value, ir_value **last);
/* The graph of all given values, from the graph that the stepper's is a copy of; while old nodes are still there. */
dw_status step_make_prelude(const stepper *stepper, const ir_graph *whole, ir_graph **prelude);
/* The inputs that the prelude takes leave the step, when the old nodes are gone. */
dw_status step_remove_given(stepper *stepper);

/* ---- making (make.c) ---- */

/* value for the step, its sequences as kinds say (ignored for active values, which are made already). */
dw_status step_make(stepper *stepper, ir_value *value, const step_kind *kinds, ir_value **made);
/* An active node whose operands are made or passive. */
dw_status step_make_node(stepper *stepper, ir_node *node, const step_kind *kinds);

#endif
