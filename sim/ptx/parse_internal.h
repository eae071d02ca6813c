/* What the files of the parser share: the state, and the pieces each gives the others. */
#ifndef SIM_PTX_PARSE_INTERNAL_H
#define SIM_PTX_PARSE_INTERNAL_H

#include "ptx.h"

enum {
    PARSE_MAX_DEPTH = 64,                 /* of scopes, braces and parentheses */
    PARSE_MAX_REGISTERS = 1 << 18,        /* of a function */
    PARSE_MAX_OPERANDS = 1024,            /* of a list */
    PARSE_MAX_VARIABLE_BYTES = 1 << 30,
    PARSE_MAX_INITIALISED_BYTES = 1 << 26,
};

/* A name declared in a function: a register, a range of them (%r<100>), a variable, or a label. */
typedef struct parse_name parse_name;
struct parse_name {
    parse_name *older;         /* of the same spelling */
    int scope;
    int reg, range;            /* first register; range > 0: that many, called name0, name1, .. */
    int vector;                /* > 1: as many registers from reg on, which .x, .y, .z, .w behind the name choose */
    ptx_variable *variable;
    int64_t label;             /* index of the instruction; -1: no label */
};

typedef struct parser {
    dw_context *context;
    ptx_module *module;
    arena *arena;
    ptx_lexer lexer;
    ptx_token token;           /* the current one */
    ptx_function *function;    /* NULL outside */
    map names;                 /* of the function: name -> newest parse_name */
    arena scratch;             /* holds the map above */
    int *parents;              /* of scopes */
    size_t scope_count, scope_capacity;
    int scope, depth;
    int file, source_line;     /* the last .loc */
} parser;

dw_status parse_next(parser *p);
bool parse_is(const parser *p, const char *text);
dw_status parse_accept(parser *p, const char *text, bool *accepted);
dw_status parse_expect(parser *p, const char *text);
dw_status parse_fail(parser *p, const char *format, ...) BASE_PRINTF(2, 3);
dw_status parse_take_name(parser *p, const char **name);
/* A constant expression of integers (PTX ISA 4.5.4). */
dw_status parse_integer(parser *p, int64_t *value);
bool parse_starts_integer(const parser *p);
/* A number in any form, as bits of a value of that type. */
dw_status parse_constant_bits(parser *p, ptx_type type, uint64_t *bits);
ptx_space parse_space_of(const ptx_token *token);     /* of ".shared" and the like; PTX_GENERIC: none */

/* The innermost declaration in sight of scope, or NULL. reg is that of "%r7". */
parse_name *parse_find(parser *p, const char *name, int scope, int *reg);
dw_status parse_declare(parser *p, const char *name, parse_name **made);
dw_status parse_add_register(parser *p, const char *name, ptx_type type, int *reg);

dw_status parse_operand(parser *p, ptx_operand *operand);
dw_status parse_operands(parser *p, ptx_operand **operands, int *count);
/* Gives labels, functions and variables that were not known when they were used their meaning. */
dw_status parse_resolve(parser *p);

/* After the state space: [.align n] .type name[..] [= ..]. Registers are declared, variables added to the function or module. */
dw_status parse_variables(parser *p, ptx_space space, bool external, bool visible);
/* "(" .param .. , .. ")" */
dw_status parse_parameters(parser *p, ptx_variable ***params, int *count);
dw_status parse_body(parser *p);

#endif
