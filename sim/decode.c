/* Decodes a function once: each instruction is matched against the rows of ptx.def, its operands become rows, and its family chooses the handler
 * that its types and modifiers ask for. What no row describes fails here, with its line. */
#include "decode.h"

#include <stdlib.h>

static const struct { const char *text; ptx_type type; } specials[] = {
    {"", PTX_NO_TYPE},
#define SIM_SPECIAL(name, text, type) {text, PTX_##type},
#include "special.def"
#undef SIM_SPECIAL
};

typedef struct constant { uint64_t low; uint8_t bytes; uint32_t row; } constant;

typedef struct sim_decoder {
    dw_context *context;
    ptx_module *module;
    ptx_function *function;
    sim_code *code;
    arena *arena;
    uint32_t *rows;                    /* of the function's registers */
    size_t op_capacity;
    constant *constants;
    size_t constant_count, constant_capacity, constant_room;
    size_t given_capacity;
    uint32_t carry;                    /* SIM_NO_ROW: not used */
    sim_use *touched;                   /* which registers instructions use */
    size_t touched_count, touched_capacity;
    size_t watched_capacity;
    size_t *first_op;                  /* of each instruction: index of the first op it became */
    int depth;
} sim_decoder;

enum { MAX_CONSTANT_BYTES = 1 << 26, MAX_CALL_DEPTH = 200, MAX_REGISTER_BYTES = 1 << 26 };

/* ---- messages ---- */

dw_status sim_decode_fail(const sim_decoding *d, dw_status status, const char *format, ...) {
    char what[512], source[300] = "";
    va_list arguments;
    const ptx_instruction *in = d->instruction;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    if (in->file > 0 && (size_t)in->file < d->module->file_count && d->module->files[in->file] != NULL) {
        snprintf(source, sizeof source, " (%s:%d)", d->module->files[in->file], in->source_line);
    }
    return base_fail(d->context, status, "%.160s: PTX line %d%s: %s: %s", d->function->name, in->line, source, in->opcode, what);
}

/* ---- memory of a function ---- */

void *sim_decode_new(sim_decoding *d, size_t bytes) { return arena_new(&d->module->arena, bytes, 1); }

static sim_op *add_op(sim_decoding *d) {
    sim_decoder *k = d->decoder;
    k->code->ops = arena_grow(k->arena, k->code->ops, k->code->op_count, &k->op_capacity, sizeof *k->code->ops);
    if (k->code->ops == NULL) return NULL;
    sim_op *op = &k->code->ops[k->code->op_count++];
    *op = (sim_op){.guard = SIM_NO_ROW, .instruction = (int)(d->instruction - d->function->instructions)};
    for (int i = 0; i < SIM_MAX_ARGS; i++) op->arg[i] = SIM_NO_ROW;
    return op;
}

sim_op *sim_decode_before(sim_decoding *d) {
    sim_op copy = *d->op;
    if (add_op(d) == NULL) return NULL;
    d->op = &d->code->ops[d->code->op_count - 1];
    *d->op = copy;
    sim_op *before = d->op - 1;
    *before = (sim_op){.guard = copy.guard, .guard_negated = copy.guard_negated, .instruction = copy.instruction};
    for (int i = 0; i < SIM_MAX_ARGS; i++) before->arg[i] = SIM_NO_ROW;
    return before;
}

static uint32_t new_row(sim_decoder *k, ptx_type type) {
    size_t bytes = type == PTX_pred ? 4 : (size_t)(ptx_types[type].bits < 16 ? 16 : ptx_types[type].bits) / 8 * LANES;
    size_t align = bytes < 64 ? bytes : 64;
    size_t at = base_align_up(k->code->register_bytes, align);
    k->code->register_bytes = at + bytes;
    return (uint32_t)at;
}

uint32_t sim_decode_scratch(sim_decoding *d, ptx_type type) { return new_row(d->decoder, type); }

uint32_t sim_decode_carry(sim_decoding *d) {
    if (d->decoder->carry == SIM_NO_ROW) d->decoder->carry = new_row(d->decoder, PTX_pred);
    return d->decoder->carry;
}

/* The row of 32 equal values; bytes 4 of a predicate: a mask. */
static dw_status constant_row(sim_decoding *d, uint64_t value, ptx_type type, uint32_t *row) {
    sim_decoder *k = d->decoder;
    size_t bytes = type == PTX_pred ? 1 : (size_t)(ptx_types[type].bits < 16 ? 16 : ptx_types[type].bits) / 8;
    if (bytes < 8 && bytes > 1) value &= (1ull << bytes * 8) - 1;
    for (size_t i = k->constant_count; i > 0 && i + 64 > k->constant_count; i--) {   /* near ones: enough to share most */
        if (k->constants[i - 1].low == value && k->constants[i - 1].bytes == bytes) {
            *row = k->constants[i - 1].row;
            return DW_OK;
        }
    }
    size_t row_bytes = bytes == 1 ? 64 : bytes * LANES, at = k->code->constant_bytes;
    if (at + row_bytes > MAX_CONSTANT_BYTES) return sim_decode_fail(d, DW_LIMIT, "more than %d bytes of constants in a function", MAX_CONSTANT_BYTES);
    if (at + row_bytes > k->constant_room) {
        size_t room = k->constant_room == 0 ? 4096 : k->constant_room * 2;
        uint8_t *larger = arena_new(k->arena, room / 64 + 2, 64);
        if (larger == NULL) return DW_NO_MEMORY;
        larger += (64 - (uintptr_t)larger % 64) % 64;
        if (at > 0) memcpy(larger, k->code->constants, at);
        k->code->constants = larger;
        k->constant_room = room;
    }
    uint8_t *to = k->code->constants + at;
    if (bytes == 1) memcpy(to, &(uint32_t){value != 0 ? SIM_ALL_LANES : 0}, 4);
    for (int i = 0; i < LANES && bytes > 1; i++) memcpy(to + (size_t)i * bytes, &value, bytes < 8 ? bytes : 8);
    k->code->constant_bytes = at + row_bytes;
    k->constants = arena_grow(k->arena, k->constants, k->constant_count, &k->constant_capacity, sizeof *k->constants);
    if (k->constants == NULL) return DW_NO_MEMORY;
    *row = (uint32_t)at | SIM_CONSTANT_ROW;
    k->constants[k->constant_count++] = (constant){value, (uint8_t)bytes, *row};
    return DW_OK;
}

static dw_status given_row(sim_decoding *d, int what, int64_t value, ptx_type type, uint32_t *row) {
    sim_code *code = d->code;
    for (size_t i = 0; i < code->given_count; i++) {
        if (code->given[i].what == what && code->given[i].value == value) {
            *row = code->given[i].row;
            return DW_OK;
        }
    }
    code->given = arena_grow(d->decoder->arena, code->given, code->given_count, &d->decoder->given_capacity, sizeof *code->given);
    if (code->given == NULL) return DW_NO_MEMORY;
    *row = new_row(d->decoder, type);
    code->given[code->given_count++] = (sim_given){what, *row, value};
    return DW_OK;
}

/* ---- operands ---- */

ptx_type sim_decode_register_type(const sim_decoding *d, const ptx_operand *operand) {
    return operand->kind == PTX_OPERAND_REGISTER ? d->function->registers[operand->reg].type : PTX_NO_TYPE;
}

static int container_bits(ptx_type type) { return type != PTX_pred && ptx_types[type].bits < 16 ? 16 : ptx_types[type].bits; }

static dw_status check_register(sim_decoding *d, const ptx_operand *o, ptx_type type) {
    ptx_type held = d->function->registers[o->reg].type;
    if (o->select != NULL) return sim_decode_fail(d, DW_SYNTAX, "operand %s%s: only video instructions take parts of registers", o->name, o->select);
    if (container_bits(held) == container_bits(type) && (held == PTX_pred) == (type == PTX_pred)) return DW_OK;
    return sim_decode_fail(d, DW_SYNTAX, "operand %s is .%s, where .%s is expected", o->name, ptx_types[held].name, ptx_types[type].name);
}

static uint64_t real_bits(const ptx_operand *o, ptx_type type) {
    if (o->real_bits == ptx_types[type].bits) return (uint64_t)o->value;
    uint64_t bits = (uint64_t)o->value;
    uint32_t narrow_bits = (uint32_t)bits;
    float narrow;
    double wide;
    if (o->real_bits == 32) {
        memcpy(&narrow, &narrow_bits, sizeof narrow);
        wide = (double)narrow;
    } else {
        memcpy(&wide, &bits, sizeof wide);
        narrow = (float)wide;
    }
    if (ptx_types[type].bits == 64) {
        memcpy(&bits, &wide, sizeof bits);
        return bits;
    }
    memcpy(&narrow_bits, &narrow, sizeof narrow_bits);
    return narrow_bits;
}

static uint64_t integer_bits(int64_t value, ptx_type type) {
    if (type != PTX_f32 && type != PTX_f64) return (uint64_t)value;
    double wide = (double)value;
    float narrow = (float)value;
    uint64_t bits = 0;
    if (type == PTX_f64) memcpy(&bits, &wide, sizeof wide);
    else memcpy(&bits, &narrow, sizeof narrow);
    return bits;
}

static dw_status special_row(sim_decoding *d, const ptx_operand *o, ptx_type type, uint32_t *row) {
    int what = 0;
    for (int i = 1; i < SPECIAL_COUNT; i++) {
        if (strcmp(specials[i].text, o->name) == 0) what = i;
    }
    if (what == 0) return sim_decode_fail(d, DW_UNSUPPORTED, "%s is neither declared nor a special register that is known", o->name);
    if (ptx_types[specials[what].type].bits != ptx_types[type].bits && !(specials[what].type == PTX_u32 && type == PTX_u16)) {
        return sim_decode_fail(d, DW_SYNTAX, "%s is .%s, where .%s is expected", o->name, ptx_types[specials[what].type].name, ptx_types[type].name);
    }
    return given_row(d, what, ptx_types[type].bits, type, row);
}

/* The address of a variable, as its own space counts. */
static dw_status variable_row(sim_decoding *d, const ptx_operand *o, ptx_type type, uint32_t *row) {
    const ptx_variable *v = o->variable;
    bool stacked = v->space == PTX_LOCAL || (v->space == PTX_PARAM && !d->function->entry);
    for (size_t i = 0; i < d->function->variable_count && d->function->entry; i++) stacked |= v->space == PTX_PARAM && d->function->variables[i] == v;
    /* The address of a shared variable carries the CTA's rank in its cluster. */
    if (v->space == PTX_SHARED) return given_row(d, ptx_types[type].bits == 64 ? GIVEN_SHARED : GIVEN_SHARED_32, (int64_t)v->address + o->value, type, row);
    if (stacked && ptx_types[type].bits != 64) return sim_decode_fail(d, DW_UNSUPPORTED, "the address of local variable %s in 32 bits", v->name);
    if (stacked) return given_row(d, GIVEN_LOCAL, (int64_t)v->address + o->value, type, row);
    return constant_row(d, v->address + (uint64_t)o->value, type, row);
}

static dw_status note_touch(sim_decoding *d, uint32_t row, bool writes) {
    sim_decoder *k = d->decoder;
    k->touched = arena_grow(k->arena, k->touched, k->touched_count, &k->touched_capacity, sizeof *k->touched);
    if (k->touched == NULL) return DW_NO_MEMORY;
    k->touched[k->touched_count++] = (sim_use){(uint32_t)(d->instruction - d->function->instructions), row, writes};
    return DW_OK;
}

dw_status sim_decode_source(sim_decoding *d, const ptx_operand *o, ptx_type type, uint32_t *row) {
    if (o->negated && (type != PTX_pred || o->kind != PTX_OPERAND_REGISTER)) return sim_decode_fail(d, DW_SYNTAX, "only a predicate can be negated");
    switch (o->kind) {
    case PTX_OPERAND_REGISTER:
        TRY(check_register(d, o, type));
        *row = d->decoder->rows[o->reg];
        return note_touch(d, *row, false);
    case PTX_OPERAND_INTEGER: return constant_row(d, integer_bits(o->value, type), type, row);
    case PTX_OPERAND_REAL: return constant_row(d, real_bits(o, type), type, row);
    case PTX_OPERAND_SPECIAL: return special_row(d, o, type, row);
    case PTX_OPERAND_VARIABLE: return variable_row(d, o, type, row);
    case PTX_OPERAND_FUNCTION:
        if (ptx_types[type].bits != 64 || o->function->entry) return sim_decode_fail(d, DW_UNSUPPORTED, "the address of %s: that of a function, not of a kernel, in 64 bits", o->name);
        return constant_row(d, sim_function_address(d->module, o->function), type, row);
    default: return sim_decode_fail(d, DW_SYNTAX, "an operand of another kind than the form asks for");
    }
}

dw_status sim_decode_target(sim_decoding *d, const ptx_operand *o, ptx_type type, uint32_t *row) {
    if (o->kind == PTX_OPERAND_SINK) {
        *row = new_row(d->decoder, type);
        return DW_OK;
    }
    if (o->kind != PTX_OPERAND_REGISTER || o->negated) return sim_decode_fail(d, DW_SYNTAX, "the result goes to no register");
    TRY(check_register(d, o, type));
    *row = d->decoder->rows[o->reg];
    return note_touch(d, *row, true);
}

/* [base + offset] of one instruction's only address. */
static dw_status decode_address(sim_decoding *d, const ptx_operand *o, uint32_t *row) {
    if (o->kind != PTX_OPERAND_ADDRESS || o->count != 1) return sim_decode_fail(d, DW_SYNTAX, "expected an address in brackets");
    const ptx_operand *base = &o->items[0];
    ptx_type held = sim_decode_register_type(d, base);
    d->op->address_wide = held == PTX_NO_TYPE || ptx_types[held].bits == 64;
    d->op->offset = o->value;
    if (held != PTX_NO_TYPE && ptx_types[held].bits != 64 && ptx_types[held].bits != 32) return sim_decode_fail(d, DW_SYNTAX, "an address is 32 or 64 bits wide");
    if (base->kind == PTX_OPERAND_VARIABLE && d->op->space == PTX_GENERIC && base->variable->space != PTX_GLOBAL && base->variable->space != PTX_CONST) {
        d->op->space = base->variable->space;
    }
    if (base->kind == PTX_OPERAND_VARIABLE && d->op->space == PTX_PARAM) {   /* of a call, or of a function: they lie on the stack */
        bool own = !d->function->entry;
        for (size_t i = 0; i < d->function->variable_count; i++) own |= d->function->variables[i] == base->variable;
        if (own) d->op->space = PTX_LOCAL;
    } else if (d->op->space == PTX_PARAM && !d->function->entry) {
        d->op->space = PTX_LOCAL;
    }
    return sim_decode_source(d, base, d->op->address_wide ? PTX_u64 : PTX_u32, row);
}

/* ---- operands by the row ---- */

static ptx_type wide_type(ptx_type type) {
    switch (type) {
    case PTX_u16: return PTX_u32;
    case PTX_s16: return PTX_s32;
    case PTX_u32: return PTX_u64;
    default: return PTX_s64;
    }
}

static ptx_type operand_type(const sim_decoding *d, const char *at, size_t length) {
    if (length == 1) return *at == 'T' ? d->type : *at == 'U' ? d->type2 : *at == 'V' ? d->type3 : wide_type(d->type);
    return ptx_type_find(at, length);
}

/* A predicate that is read negated becomes one of its own. */
static sim_flow not_predicate(sim_warp *w, const sim_op *op, uint32_t mask) {
    sim_store_mask(w, op->arg[0], ~*ROW(uint32_t, 1), mask);
    return SIM_NEXT;
}

static dw_status decode_simple_source(sim_decoding *d, const ptx_operand *o, ptx_type type, int arg) {
    uint32_t row;
    TRY(sim_decode_source(d, o, type, &row));
    if (o->negated) {
        sim_op *before = sim_decode_before(d);
        if (before == NULL) return DW_NO_MEMORY;
        before->run = not_predicate;
        before->guard = SIM_NO_ROW;
        before->arg[0] = new_row(d->decoder, PTX_pred);
        before->arg[1] = row;
        row = before->arg[0];
    }
    d->op->arg[arg] = row;
    return DW_OK;
}

static dw_status decode_operands(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    const char *at = d->form->operands;
    int given = 0, arg = 0;
    if (*at == '*') return DW_OK;
    while (*at != '\0') {
        size_t length = strcspn(at, " ");
        bool target = *at == '=', optional = at[length - 1] == '?', dual = length > 6 && strncmp(at + length - 5, "|pred", 5) == 0;
        const char *name = at + target;
        size_t name_length = length - target - optional - (dual ? 5 : 0);
        if (given >= in->count) {
            if (!optional) return sim_decode_fail(d, DW_SYNTAX, "%d operands, which are too few", in->count);
            arg++;
        } else {
            const ptx_operand *o = &in->operands[given++];
            if (o->second != NULL && !dual) return sim_decode_fail(d, DW_SYNTAX, "this form has no second result");
            if (*name == '[') {
                TRY(decode_address(d, o, &d->op->arg[arg++]));
            } else if (target) {
                TRY(sim_decode_target(d, o, operand_type(d, name, name_length), &d->op->arg[arg++]));
                if (o->second != NULL) TRY(sim_decode_target(d, o->second, PTX_pred, &d->op->arg[arg]));
                arg += dual;
            } else {
                TRY(decode_simple_source(d, o, operand_type(d, name, name_length), arg++));
            }
        }
        at += length;
        while (*at == ' ') at++;
    }
    if (given < in->count) return sim_decode_fail(d, DW_SYNTAX, "%d operands, where %d are expected", in->count, given);
    d->op->arg_count = (uint8_t)arg;
    return DW_OK;
}

dw_status sim_decode_address(sim_decoding *d, const ptx_operand *o, uint32_t *row) { return decode_address(d, o, row); }

dw_status sim_decode_place(sim_decoding *d, const ptx_operand *o, ptx_space space, sim_address *a) {
    ptx_operand base = *o;
    base.count = base.count > 1 ? 1 : base.count;
    d->op->space = (uint8_t)space;
    TRY(decode_address(d, &base, &a->row));
    a->offset = d->op->offset;
    a->wide = d->op->address_wide;
    a->space = d->op->space;
    return DW_OK;
}

static dw_status decode_instruction(sim_decoding *d) {
    sim_op matched;
    const ptx_instruction *in = d->instruction;
    const char *why = NULL;
    d->form = NULL;
    while ((d->form = sim_match(d, d->form, &matched)) != NULL) {
        d->op = add_op(d);
        if (d->op == NULL) return DW_NO_MEMORY;
        matched.instruction = d->op->instruction;
        memcpy(matched.arg, d->op->arg, sizeof matched.arg);
        matched.guard = in->guard >= 0 ? d->decoder->rows[in->guard] : SIM_NO_ROW;
        matched.guard_negated = in->guard_negated;
        *d->op = matched;
        d->why = NULL;
        size_t at = d->code->op_count;
        TRY(decode_operands(d));
        size_t failures = base_failed_allocations(d->context);
        sim_handler run = d->form->select(d);
        if (run != NULL) {
            d->op->run = run;
            return DW_OK;
        }
        if (base_failed_allocations(d->context) != failures) return DW_NO_MEMORY;
        if (d->why == NULL) return base_last_status(d->context);   /* the family said it */
        why = d->why;
        d->code->op_count = at - 1;
    }
    return sim_decode_fail(d, DW_UNSUPPORTED, "%s", why != NULL ? why : "no row of sim/ptx.def describes this instruction or form");
}

/* ---- functions ---- */

/* Offsets of variables in the frame (and of an entry's in shared memory); of formal parameters too. */
static dw_status lay_out(sim_decoder *k) {
    ptx_function *f = k->function;
    sim_code *code = k->code;
    size_t local = 0;
    for (int i = 0; i < f->param_count + f->return_count; i++) {
        ptx_variable *v = i < f->param_count ? f->params[i] : f->returns[i - f->param_count];
        if (v->reg >= 0) continue;
        size_t *at = f->entry ? &code->param_bytes : &local;
        v->address = base_align_up(*at, v->align);
        *at = v->address + v->bytes;
    }
    for (size_t i = 0; i < f->variable_count; i++) {
        ptx_variable *v = f->variables[i];
        if (v->space != PTX_LOCAL && v->space != PTX_PARAM) continue;
        v->address = base_align_up(local, v->align);
        local = v->address + v->bytes;
    }
    code->local_bytes = base_align_up(local, 16);
    code->stack_bytes = code->local_bytes;
    if (code->stack_bytes > 1 << 20 || code->param_bytes > 32764) {
        return base_fail(k->context, DW_LIMIT, "%.160s: %zu bytes of local memory and %zu of parameters; 1 MiB and 32764 bytes are the limits", f->name, code->stack_bytes, code->param_bytes);
    }
    return DW_OK;
}

/* ---- watched rows ---- */

static int by_row(const void *a, const void *b) {
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

dw_status sim_decode_watch(sim_decoding *d, uint32_t row) {
    sim_code *code = d->code;
    code->watched = arena_grow(d->decoder->arena, code->watched, code->watched_count, &d->decoder->watched_capacity, sizeof *code->watched);
    if (code->watched == NULL) return DW_NO_MEMORY;
    code->watched[code->watched_count++] = row;
    return DW_OK;
}

int sim_watched(const sim_code *code, uint32_t row) {
    const uint32_t *found = code->watched_count > 0 ? bsearch(&row, code->watched, code->watched_count, sizeof row, by_row) : NULL;
    return found != NULL ? (int)(found - code->watched) : -1;
}

/* Before each instruction that touches a watched row (but products themselves) comes an op that checks it. extra: the touches, count of them in offset. */
static dw_status insert_checks(sim_decoder *k) {
    sim_code *code = k->code;
    const ptx_function *f = k->function;
    if (code->watched_count == 0) return DW_OK;
    qsort(code->watched, code->watched_count, sizeof *code->watched, by_row);
    size_t kept = 0, at = 0, op_capacity = 0, op_count = 0;
    for (size_t i = 0; i < code->watched_count; i++) {
        if (i == 0 || code->watched[i] != code->watched[kept - 1]) code->watched[kept++] = code->watched[i];
    }
    code->watched_count = kept;
    code->watch_at = base_align_up(code->register_bytes, 64);
    code->register_bytes = code->watch_at + kept * sizeof(sim_watch);
    sim_op *ops = NULL;
    for (size_t i = 0; i < f->instruction_count; i++) {
        size_t begin = k->first_op[i], end = k->first_op[i + 1], first = at;
        size_t watched = 0;
        while (at < k->touched_count && k->touched[at].instruction == i) at++;
        uint32_t *list = NULL;
        bool product = strncmp(f->instructions[i].opcode, "wgmma.mma", 9) == 0;
        for (size_t t = first; t < at && !product; t++) watched += sim_watched(code, k->touched[t].row) >= 0;
        k->first_op[i] = op_count;
        if (watched > 0) {
            TRY_NEW(list, k->arena, watched);
            watched = 0;
            for (size_t t = first; t < at; t++) {
                int number = sim_watched(code, k->touched[t].row);
                if (number >= 0) list[watched++] = (uint32_t)number << 1 | k->touched[t].writes;
            }
            ops = arena_grow(k->arena, ops, op_count, &op_capacity, sizeof *ops);
            if (ops == NULL) return DW_NO_MEMORY;
            bool renames = strncmp(f->instructions[i].opcode, "mov.", 4) == 0;
            ops[op_count++] = (sim_op){.run = sim_touch, .small = renames, .guard = code->ops[begin].guard, .guard_negated = code->ops[begin].guard_negated, .extra = list, .offset = (int64_t)watched,
                                       .instruction = (int)i};
        }
        for (size_t o = begin; o < end; o++) {
            ops = arena_grow(k->arena, ops, op_count, &op_capacity, sizeof *ops);
            if (ops == NULL) return DW_NO_MEMORY;
            ops[op_count++] = code->ops[o];
        }
    }
    ops = arena_grow(k->arena, ops, op_count, &op_capacity, sizeof *ops);
    if (ops == NULL) return DW_NO_MEMORY;
    k->first_op[f->instruction_count] = op_count;
    ops[op_count++] = code->ops[code->op_count - 1];   /* the return at the end */
    code->ops = ops;
    code->op_count = op_count;
    sim_number_products(code);
    return DW_OK;
}

static dw_status decode_body(sim_decoder *k) {
    ptx_function *f = k->function;
    TRY_NEW(k->rows, k->arena, f->register_count);
    TRY_NEW(k->first_op, k->arena, f->instruction_count + 1);
    for (size_t i = 0; i < f->register_count; i++) k->rows[i] = new_row(k, f->registers[i].type);
    for (int i = 0; i < f->param_count + f->return_count; i++) {   /* calls find the rows of formals in registers here */
        ptx_variable *v = i < f->param_count ? f->params[i] : f->returns[i - f->param_count];
        if (v->reg >= 0) v->address = k->rows[v->reg];
    }
    sim_decoding d = {.context = k->context, .module = k->module, .function = f, .code = k->code, .decoder = k};
    for (size_t i = 0; i < f->instruction_count; i++) {
        k->first_op[i] = k->code->op_count;
        d.instruction = &f->instructions[i];
        TRY(decode_instruction(&d));
    }
    k->first_op[f->instruction_count] = k->code->op_count;
    if (k->code->register_bytes > MAX_REGISTER_BYTES) {
        return base_fail(k->context, DW_LIMIT, "%.160s: its registers take %zu bytes of a warp; %d is the limit", f->name, k->code->register_bytes, MAX_REGISTER_BYTES);
    }
    ptx_instruction end = {.opcode = "ret", .line = f->instruction_count > 0 ? f->instructions[f->instruction_count - 1].line : f->line};
    d.instruction = &end;
    sim_op *op = add_op(&d);
    if (op == NULL) return DW_NO_MEMORY;
    op->run = select_ret(&d);
    op->instruction = f->instruction_count > 0 ? (int)f->instruction_count - 1 : -1;
    k->code->rows = k->rows;
    k->code->uses = k->touched;
    k->code->use_count = k->touched_count;
    TRY(insert_checks(k));
    for (size_t i = 0; i < k->code->op_count; i++) {   /* targets were instructions; now they are ops */
        sim_op *branch = &k->code->ops[i];
        if (branch->target == SIM_ONE_TARGET) branch->offset = (int64_t)k->first_op[branch->offset];
        if (branch->target == SIM_TABLE_TARGET) {
            uint32_t *targets = (uint32_t *)(uintptr_t)branch->extra;
            for (int t = 0; t < (int)branch->offset; t++) targets[t] = (uint32_t)k->first_op[targets[t]];
        }
    }
    return DW_OK;
}

static dw_status decode_function(dw_context *context, ptx_module *module, ptx_function *f, int depth, sim_code **code) {
    if (f->code != NULL && f->code->ops != NULL && !f->code->decoding) {
        *code = f->code;
        return DW_OK;
    }
    if (f->code != NULL && f->code->decoding) {   /* it calls itself */
        *code = f->code;
        return DW_OK;
    }
    if (f->external || f->instruction_count == 0) {
        if (f->external) return base_fail(context, DW_NOT_FOUND, "%s is declared and nowhere defined", f->name);
    }
    if (depth > MAX_CALL_DEPTH) return base_fail(context, DW_LIMIT, "%.160s: calls go deeper than %d", f->name, MAX_CALL_DEPTH);
    sim_decoder k = {.context = context, .module = module, .function = f, .arena = &module->arena, .carry = SIM_NO_ROW, .depth = depth};
    TRY_NEW(k.code, k.arena, 1);
    k.code->module = module;
    k.code->function = f;
    k.code->decoding = true;
    f->code = k.code;
    dw_status status = lay_out(&k);
    if (status == DW_OK) status = decode_body(&k);
    k.code->decoding = false;
    if (status != DW_OK) {
        f->code = NULL;
        return status;
    }
    *code = k.code;
    return DW_OK;
}

dw_status sim_decode_function(sim_decoding *d, ptx_function *function, sim_code **code) {
    return decode_function(d->context, d->module, function, d->decoder->depth + 1, code);
}

uint32_t sim_decode_register_row(const sim_decoding *d, int reg) { return d->decoder->rows[reg]; }

/* Shared variables of the module and of all functions get their place: one after another, the arrays without a size behind all others. */
static void place_shared(ptx_module *module, sim_code *code) {
    size_t at = SIM_SHARED_RESERVED, align = 16;
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i <= module->function_count; i++) {
            size_t count = i == 0 ? module->variable_count : module->functions[i - 1]->variable_count;
            ptx_variable **variables = i == 0 ? module->variables : module->functions[i - 1]->variables;
            if (i > 0 && module->functions[i - 1]->entry && module->functions[i - 1] != code->function) continue;
            for (size_t v = 0; v < count; v++) {
                if (variables[v]->space != PTX_SHARED) continue;
                bool dynamic = variables[v]->bytes == 0;
                if (dynamic && variables[v]->align > align) align = variables[v]->align;
                if (pass == 0 && !dynamic) {
                    variables[v]->address = base_align_up(at, variables[v]->align);
                    at = variables[v]->address + variables[v]->bytes;
                }
                if (pass == 1 && dynamic) variables[v]->address = base_align_up(at, align);
            }
        }
    }
    code->shared_bytes = base_align_up(at, align);
}

dw_status sim_decode(dw_context *context, ptx_module *module, ptx_function *function, sim_code **code) {
    *code = NULL;
    if (function->code != NULL) {
        *code = function->code;
        return DW_OK;
    }
    if (!function->entry) return base_fail(context, DW_INVALID, "%s is no kernel", function->name);
    sim_code placed = {.function = function};
    for (size_t i = 0; i < module->function_count; i++) {   /* shared variables of functions lie elsewhere under each kernel */
        if (!module->functions[i]->entry) module->functions[i]->code = NULL;
    }
    place_shared(module, &placed);
    TRY(decode_function(context, module, function, 0, code));
    (*code)->shared_bytes = placed.shared_bytes;
    return DW_OK;
}

uint64_t sim_function_address(const ptx_module *module, const ptx_function *function) {
    size_t i = 0;
    while (i < module->function_count && module->functions[i] != function) i++;
    return SIM_CODE_WINDOW + 16 * (i + 1);
}

ptx_function *sim_function_at(const ptx_module *module, uint64_t address) {
    const uint64_t number = (address - SIM_CODE_WINDOW) / 16;
    if (address % 16 != 0 || number < 1 || number > module->function_count) return NULL;
    return module->functions[number - 1];
}
