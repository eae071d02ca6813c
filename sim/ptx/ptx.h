/* PTX text as a tree: modules, functions, variables, instructions and their operands (PTX ISA 4 to 6 and 11). The tree says which name means
 * what, but not what an instruction does: that is decode.c's. */
#ifndef SIM_PTX_PTX_H
#define SIM_PTX_PTX_H

#include "base/base.h"

typedef enum ptx_type {
    PTX_NO_TYPE,
#define PTX_TYPE(name, bits, class) PTX_##name,
#include "type.def"
#undef PTX_TYPE
    PTX_TYPE_COUNT
} ptx_type;

typedef enum ptx_class { PTX_PREDICATE, PTX_BITS, PTX_UNSIGNED, PTX_SIGNED, PTX_FLOAT, PTX_PACKED } ptx_class;
typedef struct ptx_type_info { const char *name; int bits; ptx_class class; } ptx_type_info;
extern const ptx_type_info ptx_types[PTX_TYPE_COUNT];
/* PTX_NO_TYPE when no type is called so; name has no dot. */
ptx_type ptx_type_find(const char *name, size_t length);

/* ---- tokens (lex.c) ---- */

typedef enum ptx_token_kind {
    PTX_END, PTX_NAME, PTX_WORD, PTX_INTEGER, PTX_REAL, PTX_STRING, PTX_PUNCTUATION
} ptx_token_kind;

/* text is not terminated. A WORD is a dot and what follows it: ".s32", ".shared::cta", ".L2::128B". */
typedef struct ptx_token {
    ptx_token_kind kind;
    const char *text;
    size_t length;
    uint64_t bits;        /* INTEGER: the value; REAL: the bits of a double, or of a float for "0f" */
    int real_bits;        /* REAL: 64, or 32 for "0f" */
    bool spaced;          /* white space stands before it */
    int line;
} ptx_token;

typedef struct ptx_lexer {
    dw_context *context;
    const char *source;   /* named in messages */
    const char *at, *end;
    int line;
} ptx_lexer;

dw_status ptx_lex(ptx_lexer *lexer, ptx_token *token);

/* ---- the tree ---- */

typedef enum ptx_space { PTX_GENERIC, PTX_REG, PTX_PARAM, PTX_LOCAL, PTX_SHARED, PTX_GLOBAL, PTX_CONST, PTX_SPACE_COUNT } ptx_space;
extern const char *const ptx_space_names[PTX_SPACE_COUNT];

typedef struct ptx_function ptx_function;
typedef struct ptx_variable ptx_variable;

/* A symbol's address in an initialiser: bytes [offset, offset + size) hold (address + addend) >> shift. */
typedef struct ptx_relocation {
    size_t offset;
    int size, shift;
    const char *name;
    int64_t addend;
    bool generic;
    int line;
} ptx_relocation;

struct ptx_variable {
    const char *name;
    ptx_space space;
    ptx_type type;
    size_t align, bytes;         /* bytes 0: an array whose size the launch gives (.extern .shared x[]) */
    bool external, visible;
    bool managed;                /* of host and device: .attribute(.managed) */
    const uint8_t *init;         /* bytes of it, or NULL: zeros */
    ptx_relocation *relocations;
    size_t relocation_count;
    int reg;                     /* a parameter in a register (.reg in a parameter list), else -1 */
    int line;
    uint64_t address;            /* for those who place it */
};

typedef struct ptx_register { const char *name; ptx_type type; } ptx_register;

typedef enum ptx_operand_kind {
    PTX_OPERAND_REGISTER, PTX_OPERAND_INTEGER, PTX_OPERAND_REAL, PTX_OPERAND_SPECIAL, PTX_OPERAND_VARIABLE, PTX_OPERAND_FUNCTION,
    PTX_OPERAND_LABEL, PTX_OPERAND_ADDRESS, PTX_OPERAND_VECTOR, PTX_OPERAND_LIST, PTX_OPERAND_SINK, PTX_OPERAND_TABLE
} ptx_operand_kind;

typedef struct ptx_operand ptx_operand;
struct ptx_operand {
    ptx_operand_kind kind;
    bool negated;                 /* !p */
    bool minus;                   /* REGISTER: -r, of vmad alone */
    int reg;                      /* REGISTER: index into the function's registers */
    int64_t value;                /* INTEGER; REAL: its bits; VARIABLE, ADDRESS: what is added; LABEL: index of the instruction */
    int real_bits;                /* REAL: 32 or 64 */
    const char *select;           /* REGISTER: the part that a video instruction takes (".h0"), or NULL: the whole */
    const char *name;             /* as written: SPECIAL ("%tid.x"), VARIABLE, FUNCTION, LABEL, TABLE */
    ptx_variable *variable;
    ptx_function *function;
    ptx_operand *items;           /* ADDRESS: [0] is the base, the rest is what follows it in the brackets; VECTOR, LIST: the members */
    int count;
    ptx_operand *second;          /* p of d|p, or NULL */
    int scope;                    /* where a name was used that is resolved when the function ends */
};

typedef struct ptx_instruction {
    const char *opcode;           /* "add.s32" */
    int guard;                    /* register of @p, or -1 */
    bool guard_negated;
    ptx_operand *operands;
    int count;
    int line;                     /* of the PTX text */
    int file, source_line;        /* of the last .loc; file 0: none */
} ptx_instruction;

typedef struct ptx_table { const char *name; int scope; ptx_operand *items; int count; } ptx_table;   /* .branchtargets; of .callprototype and .calltargets the name alone */

/* Of a kernel, by its machine code: the registers that each thread has at launch, and the most that ptxas was to give it (255: no limit was set). 0: not said. */
typedef struct cubin_registers { int count, limit; } cubin_registers;

struct ptx_function {
    const char *name;
    bool entry, external, visible, no_return;
    bool address_taken;            /* it may be called through a pointer */
    ptx_variable **returns, **params;
    int return_count, param_count;
    ptx_register *registers;
    size_t register_count, register_capacity;
    ptx_variable **variables;      /* declared inside: .local, .shared, .param, .global, .const */
    size_t variable_count, variable_capacity;
    ptx_instruction *instructions;
    size_t instruction_count, instruction_capacity;
    ptx_table *tables;
    size_t table_count, table_capacity;
    int max_threads[3], required_threads[3], cluster[3];   /* 0: not said */
    int min_blocks, max_registers, max_cluster;
    bool explicit_cluster;
    cubin_registers machine;       /* by the machine code that came with the PTX; 0: there was none */
    int line;
    struct sim_code *code;         /* decoded, once somebody fetched it */
};

typedef struct ptx_module {
    dw_context *context;
    arena arena;
    const char *source;
    int version_major, version_minor;
    const char *target;            /* "sm_90a" */
    int arch;                      /* 90 */
    char arch_suffix;              /* 'a', 'f' or 0 */
    ptx_variable **variables;
    size_t variable_count, variable_capacity;
    ptx_function **functions;
    size_t function_count, function_capacity;
    const char **files;            /* by the number of .file; NULL where none */
    size_t file_count;
    map names;                     /* name -> ptx_symbol */
} ptx_module;

typedef struct ptx_symbol { ptx_variable *variable; ptx_function *function; } ptx_symbol;

/* SYNTAX "source:line: what is wrong"; LIMIT for texts that ask for absurd sizes. The text is copied where it is kept. */
dw_status ptx_parse(dw_context *context, const char *source, const char *text, size_t length, ptx_module **module);
void ptx_destroy(ptx_module *module);
ptx_function *ptx_find_function(const ptx_module *module, const char *name);   /* NULL when absent */
ptx_variable *ptx_find_variable(const ptx_module *module, const char *name);

/* ---- fatbin (fatbin.c) ---- */

typedef struct fatbin_ptx {
    char *text;           /* length bytes and a NUL; from the context's allocator */
    size_t length, room;
    int arch;
    uint8_t *machine;     /* the chip's machine code, an ELF file, which is read for what PTX does not say; NULL: there is none */
    size_t machine_length, machine_room;
} fatbin_ptx;

/* What cuLibraryLoadData takes: a fatbin, or the wrapper around one that the toolkit's host code carries, or PTX text itself (NUL-terminated). length
 * SIZE_MAX: as far as the image's own headers say. Takes the PTX that suits compute capability x 10 arch best: exactly it in its "a" or "f" form, else the
 * newest plain one of at most arch. NOT_FOUND lists what there is. */
dw_status fatbin_find_ptx(dw_context *context, const void *image, size_t length, int arch, fatbin_ptx *ptx);
void fatbin_release(dw_context *context, fatbin_ptx *ptx);

/* ---- machine code (cubin.c) ---- */

/* Bytes may be hostile: what makes no sense is as if it were not there. */
cubin_registers cubin_find_registers(const uint8_t *bytes, size_t length, const char *kernel);

#endif
