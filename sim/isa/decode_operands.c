/* Operands of an instruction as rows: registers, constants, given values, addresses. Which instruction it is, decode.c and match.c decide. */
#include "decoder.h"
#include "sim/machine/special.h"

#include <stdlib.h>

static const struct { const char *text; ptx_type type; } specials[] = {
    {"", PTX_NO_TYPE},
#define SIM_SPECIAL(name, text, type) {text, PTX_##type},
#include "sim/machine/special.def"
#undef SIM_SPECIAL
};

enum { MAX_CONSTANT_BYTES = 1 << 26 };

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

sim_op *decoder_add_op(sim_decoding *d) {
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
    if (decoder_add_op(d) == NULL) return NULL;
    d->op = &d->code->ops[d->code->op_count - 1];
    *d->op = copy;
    sim_op *before = d->op - 1;
    *before = (sim_op){.guard = copy.guard, .guard_negated = copy.guard_negated, .instruction = copy.instruction};
    for (int i = 0; i < SIM_MAX_ARGS; i++) before->arg[i] = SIM_NO_ROW;
    return before;
}

uint32_t decoder_new_row(sim_decoder *k, ptx_type type) {
    size_t bytes = type == PTX_pred ? 4 : (size_t)(ptx_types[type].bits < 16 ? 16 : ptx_types[type].bits) / 8 * LANES;
    size_t align = bytes < 64 ? bytes : 64;
    size_t at = base_align_up(k->code->register_bytes, align);
    k->code->register_bytes = at + bytes;
    return (uint32_t)at;
}

uint32_t sim_decode_carry(sim_decoding *d) {
    if (d->decoder->carry == SIM_NO_ROW) d->decoder->carry = decoder_new_row(d->decoder, PTX_pred);
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
    *row = decoder_new_row(d->decoder, type);
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

static dw_status note_touch(sim_decoding *d, int reg, bool writes) {
    sim_decoder *k = d->decoder;
    k->touched = arena_grow(k->arena, k->touched, k->touched_count, &k->touched_capacity, sizeof *k->touched);
    if (k->touched == NULL) return DW_NO_MEMORY;
    k->touched[k->touched_count++] = (sim_use){(uint32_t)(d->instruction - d->function->instructions), (uint32_t)reg, writes};
    return DW_OK;
}

dw_status sim_decode_source(sim_decoding *d, const ptx_operand *o, ptx_type type, uint32_t *row) {
    if (o->negated && (type != PTX_pred || o->kind != PTX_OPERAND_REGISTER)) return sim_decode_fail(d, DW_SYNTAX, "only a predicate can be negated");
    switch (o->kind) {
    case PTX_OPERAND_REGISTER:
        TRY(check_register(d, o, type));
        *row = d->decoder->rows[o->reg];
        return note_touch(d, o->reg, false);
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
        *row = decoder_new_row(d->decoder, type);
        return DW_OK;
    }
    if (o->kind != PTX_OPERAND_REGISTER || o->negated) return sim_decode_fail(d, DW_SYNTAX, "the result goes to no register");
    TRY(check_register(d, o, type));
    *row = d->decoder->rows[o->reg];
    return note_touch(d, o->reg, true);
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
        before->arg[0] = decoder_new_row(d->decoder, PTX_pred);
        before->arg[1] = row;
        row = before->arg[0];
    }
    d->op->arg[arg] = row;
    return DW_OK;
}

dw_status decoder_read_operands(sim_decoding *d) {
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

void decoder_sort_watched(sim_code *code) {
    size_t kept = 0;
    if (code->watched_count == 0) return;
    qsort(code->watched, code->watched_count, sizeof *code->watched, by_row);
    for (size_t i = 0; i < code->watched_count; i++) {
        if (i == 0 || code->watched[i] != code->watched[kept - 1]) code->watched[kept++] = code->watched[i];
    }
    code->watched_count = kept;
}

int sim_watched(const sim_code *code, uint32_t row) {
    const uint32_t *found = code->watched_count > 0 ? bsearch(&row, code->watched, code->watched_count, sizeof row, by_row) : NULL;
    return found != NULL ? (int)(found - code->watched) : -1;
}

/* ---- instructions that do nothing here ---- */

static sim_flow do_nothing(sim_warp *w, const sim_op *op, uint32_t mask) {
    (void)w;
    (void)op;
    (void)mask;
    return SIM_NEXT;
}

sim_handler select_nothing(sim_decoding *d) {
    (void)d;
    return do_nothing;
}
