/* Ops: their names, operands, results' shapes, meaning and work. Knows nothing of graphs, kernels or devices. One row of op.def per op. */
#ifndef OP_OP_H
#define OP_OP_H

#include "base/base.h"
#include "num/num.h"
#include "op/sampling.h"
#include "op/scores.h"

typedef enum op_id {
#define OP(name, min_in, max_in, min_out, max_out, family, attributes, traits, meaning) OP_##name,
#include "op/op.def"
#undef OP
    OP_COUNT
} op_id;

enum op_trait {
    OP_TRAIT_POINTWISE = 1,     /* element i of the result depends on element i of the (broadcast) operands alone */
    OP_TRAIT_COMMUTES = 2,      /* the two operands may be swapped */
    OP_TRAIT_PREDICATE = 4,     /* the result is bool */
    OP_TRAIT_CREATE = 8,        /* no operands */
    OP_TRAIT_VIEW = 16,         /* the result is its operand under another index */
    OP_TRAIT_REDUCE = 32,
    OP_TRAIT_ROWWISE = 64,      /* rows along the last axis are independent */
    OP_TRAIT_CONTRACTION = 128, /* its FLOPs are those that roofline and coverage count */
    OP_TRAIT_EXACT = 256,       /* numbers of the result's format are moved or chosen, or need no rounding: all machines agree on every bit */
    OP_TRAIT_JUMPS = 512,       /* a small difference of an operand may become a large one, as in rounding to integers */
    OP_TRAIT_APPROXIMATE = 1024,/* a function whose last places differ between machines */
    OP_TRAIT_QUOTIENT = 2048,   /* a quotient or root: IEEE 754 rounds it correctly, some machines' fast instructions do not */
    OP_TRAIT_TAILS = 4096,      /* x times a share, or a logarithm of 1 + y: what is small beside 1 is lost */
    OP_TRAIT_ACTIVATION = 8192, /* what reads a product in the first half of an mlp */
    OP_TRAIT_NORM = 16384,      /* rows are shifted and scaled by their own statistics */
    OP_TRAIT_PAIRED = 32768,    /* what the first result is to the first operand the second is to the second: both are updated */
    OP_TRAIT_UPDATES = 65536,   /* each result is the new value of an operand (op_updated) */
    OP_TRAIT_COLLECTIVE = 131072 /* it reads the operand of other ranks as well, so all of them run it, in one order */
};

/* ---- types ---- */

/* What a value is: format and shape. Rank 0 is a scalar. */
typedef struct op_type {
    dw_format format;
    dw_scale_layout scale_layout;
    int rank;
    dim dims[DW_MAX_RANK];
} op_type;

bool op_type_equal(const op_type *a, const op_type *b);
/* "bf16[s0,4096]"; a scale layout other than plain follows the format: "mxfp8@tile128x4[128,64]" */
void op_type_print(text *text, const dim_table *dims, const op_type *type);
dw_status op_type_parse(scanner *scanner, dim_table *dims, op_type *type);
/* The fewest digits that read back as the same number of that format, without an exponent for numbers of everyday size; nan, inf, -inf, -0.0. */
void op_number_print(text *text, dw_format format, double number);

/* ---- attributes ---- */

typedef enum op_attr_kind { OP_KIND_INT, OP_KIND_INTS, OP_KIND_BOOL, OP_KIND_REAL, OP_KIND_TEXT, OP_KIND_FORMAT, OP_KIND_DIM, OP_KIND_DIMS } op_attr_kind;
typedef enum op_attr_id {
#define OP_ATTR(name, kind, meaning) OP_ATTR_##name,
#include "op/attr.def"
#undef OP_ATTR
    OP_ATTR_COUNT
} op_attr_id;

typedef struct op_attr {
    op_attr_id id;
    int count;                       /* of INTS and DIMS */
    union {
        int64_t integer;             /* INT, BOOL */
        double real;
        const char *text;
        dw_format format;
        dim dim;
        const int64_t *integers;
        const dim *dims;
    };
} op_attr;

/* In ascending order of id, each at most once. */
typedef struct op_attrs { int count; const op_attr *items; } op_attrs;

const char *op_attr_name(op_attr_id id);
op_attr_kind op_attr_kind_of(op_attr_id id);
op_attr_id op_attr_find(const char *name);                       /* OP_ATTR_COUNT when there is none */
const op_attr *op_attrs_get(const op_attrs *attrs, op_attr_id id);  /* NULL when absent */
/* Absent attributes read as 0, false, 0.0, "", DW_FORMAT_COUNT, NULL (dim), count 0. */
int64_t op_attr_int(const op_attrs *attrs, op_attr_id id);
bool op_attr_bool(const op_attrs *attrs, op_attr_id id);
/* May via be the format that a result in blocks is rounded to before it is quantised; and which it is, f32 where the attribute is absent. */
bool op_is_via(dw_format via);
/* Is there the attribute level, the second level of a result in nvfp4; and it. */
bool op_has_level(const op_attrs *attrs);
float op_level(const op_attrs *attrs);
dw_format op_via(const op_attrs *attrs);
num_round op_quantize_round(const op_attrs *attrs);              /* how a result in a block format is scaled: floor, search or neither */
double op_attr_real(const op_attrs *attrs, op_attr_id id);
const char *op_attr_text(const op_attrs *attrs, op_attr_id id);
dw_format op_attr_format(const op_attrs *attrs, op_attr_id id);
dim op_attr_dim(const op_attrs *attrs, op_attr_id id);
int op_attr_ints(const op_attrs *attrs, op_attr_id id, const int64_t **values);
int op_attr_dims(const op_attrs *attrs, op_attr_id id, const dim **values);
/* Attributes to hand to a builder. */
static inline op_attr op_set_int(op_attr_id id, int64_t value) { return (op_attr){.id = id, .integer = value}; }
static inline op_attr op_set_bool(op_attr_id id, bool value) { return (op_attr){.id = id, .integer = value}; }
static inline op_attr op_set_real(op_attr_id id, double value) { return (op_attr){.id = id, .real = value}; }
static inline op_attr op_set_text(op_attr_id id, const char *value) { return (op_attr){.id = id, .text = value}; }
static inline op_attr op_set_format(op_attr_id id, dw_format value) { return (op_attr){.id = id, .format = value}; }
static inline op_attr op_set_dim(op_attr_id id, dim value) { return (op_attr){.id = id, .dim = value}; }
static inline op_attr op_set_ints(op_attr_id id, int count, const int64_t *values) { return (op_attr){.id = id, .count = count, .integers = values}; }
static inline op_attr op_set_dims(op_attr_id id, int count, const dim *values) { return (op_attr){.id = id, .count = count, .dims = values}; }
bool op_attrs_equal(const op_attrs *a, const op_attrs *b);

/* ---- post lists ---- */

typedef enum op_post_operand { OP_POST_NONE, OP_POST_COLUMN, OP_POST_FULL } op_post_operand;
typedef enum op_post {
#define OP_POST(name, operand, halves, meaning) OP_POST_##name,
#include "op/post.def"
#undef OP_POST
    OP_POST_COUNT
} op_post;
enum { OP_MAX_POST = 8 };
typedef struct op_post_list { int count; op_post steps[OP_MAX_POST]; } op_post_list;

/* INVALID names the step that does not exist. text may be "". */
dw_status op_post_parse(dw_context *context, const char *text, op_post_list *list);
const char *op_post_name(op_post step);
op_post_operand op_post_operand_of(op_post step);
bool op_post_halves(op_post step);
/* The op that the step is with its operand; of a step that halves, the op of g. */
op_id op_post_op(op_post step);
/* The step without an operand that is the op, or halved: the one that halves whose op of g it is. OP_POST_COUNT: there is none. */
op_post op_post_of(op_id op, bool halves);
/* The step on one value; g and u for steps that halve (y = g, x = u). */
float op_post_apply(op_post step, float y, float x);

/* ---- chains: pointwise ops one after another (chain.c) ---- */

/* The program of a chain, in text: steps separated by ';', each an op and what it reads:
 *     mul(x0,x0);mul(t0,f32:0.044715);add(x0,t1);cast(t2,bf16)
 * x0 is operand 0, t0 the result of step 0, f32:0.5 a number that every element reads; cast also names its format. The last step's result is the chain's.
 * Each step means what the op alone means: its result is rounded to its format. */
enum { OP_CHAIN_STEPS = 16, OP_CHAIN_OPERANDS = 8, OP_CHAIN_READS = 3 };
typedef enum op_chain_kind { OP_CHAIN_OPERAND, OP_CHAIN_STEP, OP_CHAIN_NUMBER } op_chain_kind;
typedef struct op_chain_read {
    op_chain_kind kind;
    int index;                       /* of the operand or step */
    dw_format format;
    double number;
} op_chain_read;
typedef struct op_chain_step {
    op_id op;
    int n_in;
    op_chain_read in[OP_CHAIN_READS];
    dw_format to;                    /* of cast; DW_FORMAT_COUNT for any other op */
    dw_format format;                /* of the result */
} op_chain_step;
typedef struct op_chain { int count; op_chain_step steps[OP_CHAIN_STEPS]; } op_chain;

/* n_in operands of those formats. SYNTAX names the step; what its ops cannot take is left to inference. */
dw_status op_chain_parse(dw_context *context, const char *steps, int n_in, const dw_format *formats, op_chain *chain);
void op_chain_print(text *text, const op_chain *chain);
/* Steps on the values of a line (choose): a chain of one operand, x0, the values, all in f32, bf16 or f16, in which sum(t0) adds up a line, every element of which reads the sum, and softmax(t0) is that of a line. "": no steps. */
dw_status op_line_parse(dw_context *context, const char *steps, dw_format values, op_chain *chain);
/* Of a line of count values: values[0] holds them, an element in their format each, and values[1 + i] gets what step i makes. Real numbers in double, each step rounded once (line.c). */
enum { OP_LINE = 32, OP_SOFTMAX_LINE = 512 };   /* values at most; elements, where they are chosen by their softmax */
typedef uint64_t op_line_values[1 + OP_CHAIN_STEPS][OP_LINE];
void op_line_run(const op_chain *chain, dw_format format, int count, op_line_values values);
/* x[0..count) becomes its softmax; one of -inf zeros. */
void op_line_softmax(double *x, int64_t count);
/* Has every element of the format a byte or more, and is it a number or truth that steps can make? */
bool op_chain_holds(dw_format format);

/* ---- the op itself ---- */

typedef struct op_def op_def;

/* infer: fill out[0..n_out) from in[0..n_in) (NULL where an operand is absent) and attrs, or say what is wrong. Attributes have been
 * checked against the row already, counts as well. */
typedef struct op_infer {
    dw_context *context;
    dim_table *dims;
    const op_def *op;
    const op_attrs *attrs;
    int n_in;
    const op_type *const *in;
    int n_out;
    op_type *out;
} op_infer;

/* A call with everything known: tensors of concrete shape, values of all symbols. */
typedef struct op_call {
    dw_context *context;
    const op_def *op;
    const op_attrs *attrs;
    const int64_t *symbols;               /* for attributes that are dimensions: dim_eval(.., symbols, ..) */
    int n_in;
    const dw_tensor *const *in;           /* NULL where absent */
    int n_out;
    const dw_tensor *const *out;          /* shapes set, data to be written; strides may be any */
    unsigned known_in;                    /* bit i: the elements of operand i are in the memory of the host, so work may look at them */
    const struct op_group *group;         /* of a collective: the ranks that take part; NULL: the rank alone */
} op_call;

/* The ranks along one axis of a mesh as one of them sees it: operand 0 of each, in order of ranks, its own among them. */
typedef struct op_group { int rank, count; const dw_tensor *in; } op_group;

/* What a pointwise op makes of real numbers, in double. false: it takes no real numbers, or another count of them. */
bool op_pointwise_value(op_id op, int count, const double *x, double *value);

/* The operand, NULL where it is absent. */
static inline const dw_tensor *op_operand(const op_call *call, int index) { return index < call->n_in ? call->in[index] : NULL; }

/* Operands by name, of ops that have many. */
enum { ATTENTION_Q, ATTENTION_K, ATTENTION_V, ATTENTION_MASK, ATTENTION_BIAS, ATTENTION_SINK, ATTENTION_ROW, ATTENTION_POSITION, ATTENTION_TABLE, ATTENTION_OPERANDS };
enum { ATTENTION_BACKWARD_Q, ATTENTION_BACKWARD_K, ATTENTION_BACKWARD_V, ATTENTION_BACKWARD_OUT, ATTENTION_BACKWARD_LSE, ATTENTION_BACKWARD_DOUT, ATTENTION_BACKWARD_MASK, ATTENTION_BACKWARD_BIAS };
enum { MQA_Q, MQA_K, MQA_WEIGHTS, MQA_FACTOR, MQA_START, MQA_END, MQA_TABLE, MQA_OPERANDS };
enum { CACHE_X, CACHE_Y, CACHE_ROW, CACHE_POSITION, CACHE_TABLE, CACHE_OPERANDS };
enum { UPDATE_X, UPDATE_Y, UPDATE_KEYS, UPDATE_VALUES, UPDATE_ROW, UPDATE_POSITION, UPDATE_COS, UPDATE_SIN, UPDATE_QUERIES, UPDATE_TABLE, UPDATE_OPERANDS };

enum { ADAMW_P, ADAMW_M, ADAMW_V, ADAMW_G, ADAMW_RATE, ADAMW_STEP, ADAMW_SCALE, ADAMW_OPERANDS };
enum { SUMS_SUM, SUMS_G, SUMS_FACTOR, SUMS_OPERANDS };
/* Operands of an op that updates many tensors at once (OP_TRAIT_UPDATES): those of the first, what is the same for all, those of the others one after another. */
static inline int op_update_results(op_id op) { return op == OP_adamw ? ADAMW_G : SUMS_G; }   /* of each group, which has as many operands of its own, and a gradient; */
static inline int op_update_common(op_id op) { return op == OP_adamw ? ADAMW_OPERANDS - ADAMW_RATE : SUMS_OPERANDS - SUMS_FACTOR; }   /* operands that all have together */
static inline int op_update_groups(op_id op, int n_in) {
    const int own = op_update_results(op) + 1, first = own + op_update_common(op);
    return n_in <= first ? 1 : 1 + (n_in - first + own - 1) / own;
}
/* The operand `place` of those of its own that the group has. */
static inline int op_update_operand(op_id op, int group, int place) { return group == 0 ? place : op_update_common(op) + group * (op_update_results(op) + 1) + place; }
/* The operand that the result is the new value of. */
static inline int op_updated(op_id op, int result) { return op_update_operand(op, result / op_update_results(op), result % op_update_results(op)); }

enum { CHOOSE_X, CHOOSE_Y, CHOOSE_OPERANDS };
enum { SAMPLE_LOGITS, SAMPLE_PARAMETERS, SAMPLE_DRAW, SAMPLE_ROW, SAMPLE_COUNTS, SAMPLE_BIAS, SAMPLE_MASK, SAMPLE_OPERANDS };
enum { TALLY_X, TALLY_IDS, TALLY_ROW };

/* Of a call of the op chain, which has been inferred. */
dw_status op_chain_of(const op_call *call, op_chain *chain);
/* Of a call of the op choose. */
dw_status op_line_of(const op_call *call, op_chain *chain);

/* What a call does at least: FLOPs (a multiply-add is two), and bytes, with those of scales. Each operand is read once, however often it occurs, and where its elements repeat (a stride
 * of 0) once; of unread[i] bytes of operand i nothing is read, of further operands everything is. */
enum { OP_WORK_OPERANDS = 8 };
typedef struct op_work { double flops, bytes_read, bytes_written, unread[OP_WORK_OPERANDS]; } op_work;
/* Bytes of the tensor's elements and scales; those that lie in the same place count once. */
double op_tensor_bytes(const dw_tensor *tensor);
/* Of these, what a call with this work reads of operand i. */
double op_bytes_read(const op_call *call, const op_work *work, int operand);

struct op_def {
    const char *name, *meaning, *attributes;
    op_id id;
    int min_in, max_in, min_out, max_out;
    unsigned traits;
    dw_status (*infer)(op_infer *infer);
    /* The plain meaning: computes in double (integers in int64), rounds once to the result's format; allocates nothing; any strides. */
    dw_status (*reference)(const op_call *call);
    /* Tensors need no data; what is known of operands in known_in makes it exact where it depends on their elements. */
    void (*work)(const op_call *call, op_work *work);
};

const op_def *op_get(op_id id);
/* The format of what concat makes of parts in a format: of one whose parts have a factor each, one whose rows have. */
dw_format op_concat_format(dw_format parts);
op_id op_find(const char *name);          /* OP_COUNT when there is none */
bool op_has(op_id id, unsigned traits);   /* any of them */
/* Checks counts and attributes against the row, then infers. The message names the op and the operand. */
dw_status op_infer_types(op_infer *infer);
/* How many results a call with these operands has (norms: 2 when there is a residual; cache_update: 3 when there are queries; attention: 2 with lse; attention_backward: 4 with dbias; ops that update: so many for each group of operands). */
int op_result_count(op_id id, const op_attrs *attrs, int n_in, const bool *present);

/* ---- ranks (mesh.c, collective.c) ---- */

/* How ranks lie: axes by name and size, the outermost first, so that rank = (place on the first * size of the second + place on the second) .. */
enum { OP_MESH_AXES = 5, OP_MESH_NAME = 16, OP_MESH_RANKS = 4096 };
typedef struct op_mesh_axis { char name[OP_MESH_NAME]; int size; } op_mesh_axis;
typedef struct op_mesh { int count; op_mesh_axis axes[OP_MESH_AXES]; } op_mesh;
/* "dp=2,tp=4". SYNTAX, INVALID or LIMIT with what would do. */
dw_status op_mesh_parse(dw_context *context, const char *text, op_mesh *mesh);
void op_mesh_print(text *text, const op_mesh *mesh);
int op_mesh_find(const op_mesh *mesh, const char *name);           /* -1: there is no such axis */
int op_mesh_world(const op_mesh *mesh);                            /* how many ranks it has */
int op_mesh_place(const op_mesh *mesh, int rank, int axis);        /* the rank's place on the axis */
/* Ranks of the axis are so far apart: those beside a rank are rank + (i - its place) * op_mesh_stride. */
int op_mesh_stride(const op_mesh *mesh, int axis);

/* Is the collective by sum, rather than by max? */
bool op_collective_sums(const op_attrs *attrs);
/* What the ranks' elements become: values[0..count) in order of ranks, of a format that is computed with, as real numbers, and as integers. */
double op_collective_real(dw_format format, bool sums, int count, const double *values);
int64_t op_collective_int(dw_format format, bool sums, int count, const int64_t *values);
/* The box of a call of all_gather or all_to_all that comes of one rank: so many elements along each axis, from first_in of its operand to first_out of the result, offsets in elements. */
typedef struct op_collective_box { int64_t dims[DW_MAX_RANK], first_in, first_out; } op_collective_box;
/* INVALID: sizes that do not go together, as only a run knows. */
dw_status op_collective_check(const op_call *call);
void op_collective_box_of(const op_call *call, int rank, int from, const dw_tensor *in, op_collective_box *box);

/* ---- tensors, for references and kernels (tensor.c) ---- */

/* A contiguous tensor of a concrete shape over memory that holds num_layout's three parts; dims may be tensor->dims. false: sizes overflow. */
bool op_tensor_init(dw_tensor *tensor, dw_format format, dw_scale_layout layout, int rank, const int64_t *dims, void *memory);
/* The concrete shape of a type; memory as above. */
dw_status op_tensor_bind(dw_context *context, const op_type *type, const int64_t *symbols, void *memory, dw_tensor *tensor);
bool op_tensor_is_contiguous(const dw_tensor *tensor);
/* A tensor of block format, rank 1 or more, as matrices one after the other. */
num_matrix op_tensor_matrix(const dw_tensor *tensor);

/* ---- rows in groups (grouped.c) ---- */

/* Of padded groups how many rows lie from one to the next; 0: they lie side by side. */
int64_t op_rows_apart(const op_call *call);
/* The rows of a that are the group's, [*begin, *end). INVALID: the offset is none. */
dw_status op_group_rows(const op_call *call, int64_t group, int64_t *begin, int64_t *end);
/* For estimates: how many rows are in groups, and how many groups have any: as many as rows that fall into groups at random fill on average, or all padded ones. */
double op_group_rows_expected(const op_call *call);
double op_groups_filled(const op_call *call);

/* ---- attention, for its reference and kernels (attention_view.c) ---- */

/* The result of a call of attention, in an element format, as [b,h,s,e], also where it is joined. */
void op_attention_by_heads(const op_call *call, dw_tensor *out);

enum { OP_NOWHERE = -1 };             /* a row of no text, an entry of a table whose page is not there: not seen, written nowhere */

/* Who sees what in a call of attention: made once of its operands and attributes, and read by the reference and by all kernels. */
typedef struct op_attention_view {
    int64_t slots, rows;              /* keys that a row has room for, which is a ring where there are positions and no pages; rows of the cache */
    int64_t page, pages;              /* with a table: keys of a page, pages of k and v; else 0 */
    bool causal;
    int64_t window, ahead;            /* 0: no limit */
    int64_t offset;                   /* the position of query 0 where none is given, from -2^60 to 2^60: beyond any number of keys it is all the same */
    const dw_tensor *row, *position;  /* of each query; NULL: its batch, its place behind offset */
    const dw_tensor *table;           /* [rows,slots / page]: the page of each page's worth of positions of a row; NULL: k and v have a row for each row */
    const dw_tensor *mask, *bias;     /* NULL: none */
    int64_t mask_strides[4], bias_strides[4];   /* over [b,h,s,t]; 0 where they repeat */
    int64_t mask_keys, bias_keys;     /* positions that they have; 0: any */
} op_attention_view;
/* The call of attention whose gradients a call of attention_backward makes, its operands in in. */
op_call op_attention_forward(const op_call *call, const dw_tensor *in[ATTENTION_OPERANDS]);
/* MISMATCH when the heads of k do not divide those of q; where it fails all but offset is there. */
dw_status op_attention_view_of(const op_call *call, op_attention_view *view);
/* The row of mask, bias, table and (where there is no table) of k and v that a query of a batch reads, -1: it sees nothing; and its position. */
int64_t op_attention_row(const op_attention_view *view, int64_t batch, int64_t query);
int64_t op_attention_position(const op_attention_view *view, int64_t query);
/* The positions whose keys a query sees, [begin, end), but for those that the mask hides and those of pages that are not there. */
typedef struct op_attention_span { int64_t begin, end; } op_attention_span;
op_attention_span op_attention_seen(const op_attention_view *view, int64_t query);
/* Entry [row,index] of the table. */
int64_t op_attention_entry(const op_attention_view *view, int64_t row, int64_t index);
/* Where the key of a position of a row lies in k and v: row (or page) and slot. Without a table at p mod slots. row OP_NOWHERE: its page is not there. */
typedef struct op_cache_slot { int64_t row, slot; } op_cache_slot;
op_cache_slot op_attention_key(const op_attention_view *view, int64_t row, int64_t position);
/* INVALID or MISMATCH names what lies outside for a query: its row, its position (of mask, bias or table), or an entry of the table that it reads and that is no page. */
dw_status op_attention_check(const op_call *call, const op_attention_view *view, int64_t batch, int64_t query);

/* ---- logits of keys, for their reference and kernels (mqa_logits.c) ---- */

/* Who sees what in a call of mqa_logits. */
typedef struct op_mqa_view {
    const dw_tensor *factor, *start, *end, *table;   /* NULL: none */
    double scale;
    int64_t keys;                     /* positions of a batch */
    int64_t page, pages;              /* with a table: keys of a page, pages of k; else 0 */
} op_mqa_view;
op_mqa_view op_mqa_view_of(const op_call *call);
/* The positions of a query's range, within those that there are; begin may be behind end. */
op_attention_span op_mqa_seen(const op_mqa_view *view, int64_t batch, int64_t query);
/* Where the key of a position lies in k and factor; row OP_NOWHERE: its page is not there. */
op_cache_slot op_mqa_key(const op_mqa_view *view, int64_t batch, int64_t position);
/* INVALID names an entry of the table that a query reads and that is no page. */
dw_status op_mqa_check(const op_call *call, const op_mqa_view *view, int64_t batch, int64_t query);

/* ---- tokens into caches (attention_view.c) ---- */

/* Where tokens go in a cache: by row and position, [count] each, and the table, NULL: none. The cache has so many rows (or pages) of so many slots. */
typedef struct op_cache_places { const dw_tensor *row, *position, *table; int64_t rows, slots; } op_cache_places;
op_cache_places op_cache_places_of(const op_call *call);
/* The place of a token; row OP_NOWHERE: it is written nowhere. */
op_cache_slot op_cache_slot_of(const op_cache_places *places, int64_t token);
/* May a cache be in that block format: do its blocks lie within rows, with no level above but one for the tensor? */
bool op_is_cache_format(dw_format format);
/* count numbers become the elements of a cache in blocks from offset on, which begins a block of a row and ends none; the cache's second level is there (cache.c). */
void op_cache_quantize(const dw_tensor *cache, int64_t offset, const float *values, int64_t count);
/* The second level of a cache: 1 where it is 0 or there is none. */
float op_cache_second(const dw_tensor *cache);
/* INVALID names a token whose row, position or page lies outside. */
dw_status op_cache_check(const op_call *call, const op_cache_places *places);

/* ---- tensors once more ---- */

int64_t op_tensor_count(const dw_tensor *tensor);
/* From one element to the next along an axis, counted from the last one, which is 0; 0 where a tensor that broadcasts has it in size 1 or not at all. */
int64_t op_tensor_step(const dw_tensor *tensor, int axis_from_last);
/* The value at index[0..rank), scales applied; and its writing (element formats only). */
double op_tensor_load(const dw_tensor *tensor, const int64_t *index);
void op_tensor_store(const dw_tensor *tensor, const int64_t *index, double value);
int64_t op_tensor_load_int(const dw_tensor *tensor, const int64_t *index);
void op_tensor_store_int(const dw_tensor *tensor, const int64_t *index, int64_t value);
void op_tensor_next(const dw_tensor *tensor, int64_t *index);            /* row-major; behind the last element comes the first */
/* tensor seen through a view op (reshape of a contiguous tensor, transpose, broadcast, slice): false when no strides express it. */
bool op_tensor_view(const op_call *call, dw_tensor *view);

#endif
