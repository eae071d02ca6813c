/* Control: branches, calls with their arguments, ends of threads, and the functions that the simulator provides itself (PTX ISA 9.7.12). */
#include "sim/machine/call.h"
#include "sim/isa/decode.h"

#include <inttypes.h>

sim_flow sim_bra(sim_warp *w, const sim_op *op, uint32_t mask);
sim_flow sim_brx(sim_warp *w, const sim_op *op, uint32_t mask);
sim_flow sim_ret(sim_warp *w, const sim_op *op, uint32_t mask);
sim_flow sim_exit(sim_warp *w, const sim_op *op, uint32_t mask);
sim_flow sim_call_function(sim_warp *w, const sim_op *op, uint32_t mask);
sim_flow sim_call_pointer(sim_warp *w, const sim_op *op, uint32_t mask);

sim_handler select_bra(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    if (in->count != 1 || in->operands[0].kind != PTX_OPERAND_LABEL) {
        d->why = "a branch goes to a label";
        return NULL;
    }
    d->op->target = SIM_ONE_TARGET;
    d->op->offset = in->operands[0].value;
    return sim_bra;
}

sim_handler select_brx(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    if (in->count != 2 || in->operands[1].kind != PTX_OPERAND_TABLE) {
        d->why = "brx.idx takes an index and the name of a table";
        return NULL;
    }
    const ptx_table *table = &d->function->tables[in->operands[1].value];
    uint32_t *targets = sim_decode_new(d, (size_t)table->count * sizeof *targets + 4);
    if (targets == NULL || sim_decode_source(d, &in->operands[0], PTX_u32, &d->op->arg[0]) != DW_OK) return NULL;
    for (int i = 0; i < table->count; i++) {
        if (table->items[i].kind != PTX_OPERAND_LABEL) {
            d->why = "a table of branch targets holds labels";
            return NULL;
        }
        targets[i] = (uint32_t)table->items[i].value;
    }
    d->op->target = SIM_TABLE_TARGET;
    d->op->extra = targets;
    d->op->offset = table->count;
    return sim_brx;
}

sim_handler select_ret(sim_decoding *d) {
    (void)d;
    return sim_ret;
}

sim_handler select_exit(sim_decoding *d) {
    (void)d;
    return sim_exit;
}

static sim_flow do_trap(sim_warp *w, const sim_op *op, uint32_t mask) { return sim_find(w, op, __builtin_ctz(mask), "trap: the kernel ended itself"); }

sim_handler select_trap(sim_decoding *d) {
    (void)d;
    return do_trap;
}

/* ---- functions of the simulator's own ---- */

static uint8_t *argument(sim_warp *w, const sim_call *call, int index, int lane) {
    return w->local + (size_t)lane * w->local_bytes + w->now->frame->local_base + call->arguments[index].caller;
}

static uint64_t argument_u64(sim_warp *w, const sim_call *call, int index, int lane) {
    uint64_t value = 0;
    memcpy(&value, argument(w, call, index, lane), call->arguments[index].bytes < 8 ? call->arguments[index].bytes : 8);
    return value;
}

/* The string at a generic address, cut to room; "?" when it is not there. */
static void read_string(sim_warp *w, uint64_t address, char *string, size_t room) {
    sim_allocation *a = sim_memory_find(w->launch->memory, address);
    size_t length = 0;
    if (a == NULL) {
        snprintf(string, room, "?");
        return;
    }
    const char *from = (const char *)a->host + (address - a->address);
    size_t left = a->bytes - (size_t)(address - a->address);
    while (length + 1 < room && length < left && from[length] != '\0') length++;
    memcpy(string, from, length);
    string[length] = '\0';
}

static sim_flow call_assertfail(sim_warp *w, const sim_op *op, uint32_t mask) {
    const sim_call *call = op->extra;
    int lane = __builtin_ctz(mask);
    char condition[256], file[256], function[256];
    read_string(w, argument_u64(w, call, 0, lane), condition, sizeof condition);
    read_string(w, argument_u64(w, call, 1, lane), file, sizeof file);
    read_string(w, argument_u64(w, call, 3, lane), function, sizeof function);
    return sim_find(w, op, lane, "the kernel's assertion '%s' does not hold (%s:%" PRIu64 ", %s)", condition, file, argument_u64(w, call, 2, lane), function);
}

/* One conversion of a format: *at stands behind the %; what it prints of the 8 bytes at value goes to out. */
static void print_conversion(sim_warp *w, const char **at, const uint8_t *value, char *out, size_t room) {
    char spec[32] = "%";
    size_t used = 1;
    while (**at != '\0' && strchr("-+ #0123456789.", **at) != NULL && used < 24) spec[used++] = *(*at)++;
    bool wide = false;
    while (**at != '\0' && strchr("hlzjt", **at) != NULL) {
        wide |= **at != 'h';
        ++*at;
    }
    char kind = **at;
    uint64_t bits;
    double real;
    char string[512];
    memcpy(&bits, value, sizeof bits);
    memcpy(&real, value, sizeof real);
    if (kind != '\0') ++*at;
    switch (kind) {
    case 'd': case 'i':
        memcpy(spec + used, PRId64, sizeof PRId64);
        snprintf(out, room, spec, wide ? (int64_t)bits : (int64_t)(int32_t)bits);
        break;
    case 'u': memcpy(spec + used, PRIu64, sizeof PRIu64); snprintf(out, room, spec, wide ? bits : (uint64_t)(uint32_t)bits); break;
    case 'x': memcpy(spec + used, PRIx64, sizeof PRIx64); snprintf(out, room, spec, wide ? bits : (uint64_t)(uint32_t)bits); break;
    case 'X': memcpy(spec + used, PRIX64, sizeof PRIX64); snprintf(out, room, spec, wide ? bits : (uint64_t)(uint32_t)bits); break;
    case 'o': memcpy(spec + used, PRIo64, sizeof PRIo64); snprintf(out, room, spec, wide ? bits : (uint64_t)(uint32_t)bits); break;
    case 'p': snprintf(out, room, "0x%" PRIx64, bits); break;
    case 'c': snprintf(out, room, "%c", (int)(bits & 0xff)); break;
    case 's':
        read_string(w, bits, string, sizeof string);
        spec[used] = 's';
        snprintf(out, room, spec, string);
        break;
    case 'a': case 'A': case 'e': case 'E': case 'f': case 'F': case 'g': case 'G':
        spec[used] = kind;
        snprintf(out, room, spec, real);
        break;
    default: snprintf(out, room, "%%%c", kind); break;
    }
}

/* The arguments lie packed at the second pointer, each at a multiple of its size: 4 bytes of an int or less, else 8. */
static int print_one(sim_warp *w, uint64_t format_address, uint64_t values, char *out, size_t room) {
    char format[1024];
    size_t used = 0;
    int count = 0;
    sim_place place;
    read_string(w, format_address, format, sizeof format);
    for (const char *at = format; *at != '\0' && used + 1 < room;) {
        if (*at != '%') {
            out[used++] = *at++;
            continue;
        }
        at++;
        if (*at == '%') {
            out[used++] = *at++;
            continue;
        }
        size_t length = strspn(at, "-+ #0123456789.hlzjt");
        bool wide = memchr(at, 'l', length) != NULL || memchr(at, 'z', length) != NULL || memchr(at, 'j', length) != NULL || memchr(at, 't', length) != NULL;
        size_t bytes = wide || strchr("diuxXoc", at[length]) == NULL ? 8 : 4;
        uint8_t value[8] = {0};
        values = (values + bytes - 1) / bytes * bytes;
        int lane = (int)(w->now->mask != 0 ? __builtin_ctz(w->now->mask) : 0);
        if (!sim_reach(w, &w->now->frame->code->ops[w->now->pc], lane, PTX_GENERIC, values, bytes, 1, SIM_READ, &place)) break;
        memcpy(value, place.bytes, bytes);
        values += bytes;
        char piece[600];
        print_conversion(w, &at, value, piece, sizeof piece);
        size_t piece_length = strlen(piece);
        if (piece_length > room - 1 - used) piece_length = room - 1 - used;
        memcpy(out + used, piece, piece_length);
        used += piece_length;
        count++;
    }
    out[used] = '\0';
    return count;
}

static sim_flow call_vprintf(sim_warp *w, const sim_op *op, uint32_t mask) {
    const sim_call *call = op->extra;
    char line[4096];
    uint32_t whole = w->now->mask;
    for (int lane = 0; lane < LANES; lane++) {
        if ((mask >> lane & 1) == 0) continue;
        w->now->mask = 1u << lane;   /* a pointer into local memory is the lane's own */
        int count = print_one(w, argument_u64(w, call, 0, lane), argument_u64(w, call, 1, lane), line, sizeof line);
        if (w->cta->cluster->stopped) return SIM_STOP;
        if (w->launch->print != NULL) w->launch->print(w->launch->print_user, line);
        if (call->result_count > 0) {
            size_t at = w->now->frame->local_base + call->results[0].caller;
            memcpy(w->local + (size_t)lane * w->local_bytes + at, &count, 4);
            memset(w->local_shadow + (size_t)lane * w->local_bytes + at, SHADOW_WRITTEN, 4);
        }
    }
    w->now->mask = whole;
    return SIM_NEXT;
}

static const struct { const char *name; sim_handler run; int arguments; } builtins[] = {
    {"vprintf", call_vprintf, 2},
    {"__assertfail", call_assertfail, 5},
};

/* ---- calls ---- */

/* How one argument goes: a .param variable of the caller against a formal, or registers. */
static dw_status decode_pass(sim_decoding *d, const ptx_operand *o, const ptx_variable *formal, bool result, sim_pass *p) {
    *p = (sim_pass){0};
    if (o->kind == PTX_OPERAND_VARIABLE && o->variable->space == PTX_PARAM) {
        p->caller = o->variable->address;
        p->bytes = o->variable->bytes;
        if (formal == NULL) return DW_OK;
        if (formal->reg >= 0 || formal->bytes != o->variable->bytes) {
            return sim_decode_fail(d, DW_SYNTAX, "argument %s has %zu bytes, and the parameter %s another form or size", o->name, p->bytes, formal->name);
        }
        p->callee = formal->address;
        return DW_OK;
    }
    if (formal == NULL || formal->reg < 0) return sim_decode_fail(d, DW_SYNTAX, "argument %s is no .param variable, as the function's parameter is", o->name);
    TRY(result ? sim_decode_target(d, o, formal->type, &p->caller_row) : sim_decode_source(d, o, formal->type, &p->caller_row));
    if (formal->type == PTX_pred) return sim_decode_fail(d, DW_UNSUPPORTED, "predicates as arguments");
    p->row_bits = ptx_types[formal->type].bits < 16 ? 16 : ptx_types[formal->type].bits;
    return DW_OK;
}

static dw_status decode_list(sim_decoding *d, const ptx_operand *list, const ptx_function *f, bool results, sim_pass **passes, int *count) {
    int formal_count = results ? f->return_count : f->param_count;
    ptx_variable *const *formals = results ? f->returns : f->params;
    *count = list != NULL ? list->count : 0;
    if (*count != formal_count) return sim_decode_fail(d, DW_SYNTAX, "%s has %d %s, not %d", f->name, formal_count, results ? "results" : "parameters", *count);
    *passes = sim_decode_new(d, sizeof **passes * (size_t)(*count + 1));
    if (*passes == NULL) return DW_NO_MEMORY;
    for (int i = 0; i < *count; i++) TRY(decode_pass(d, &list->items[i], formals[i], results, &(*passes)[i]));
    return DW_OK;
}

/* Rows of formals in registers are known once the callee is decoded. */
static void fill_rows(sim_pass *passes, int count, ptx_variable *const *formals) {
    for (int i = 0; i < count; i++) {
        if (passes[i].bytes == 0) passes[i].callee_row = (uint32_t)formals[i]->address;
    }
}

/* Decodes the callee, and what its formals are then. */
static bool complete_call(sim_decoding *d, ptx_function *f, sim_call *call) {
    const size_t index = (size_t)(d->op - d->code->ops);
    if (sim_decode_function(d, f, &call->callee) != DW_OK) return false;
    d->op = &d->code->ops[index];
    /* Formals were laid out by decoding the callee. */
    for (int i = 0; i < call->argument_count; i++) {
        if (call->arguments[i].bytes > 0) call->arguments[i].callee = f->params[i]->address;
    }
    for (int i = 0; i < call->result_count; i++) {
        if (call->results[i].bytes > 0) call->results[i].callee = f->returns[i]->address;
    }
    fill_rows(call->arguments, call->argument_count, f->params);
    fill_rows(call->results, call->result_count, f->returns);
    size_t stack = d->code->local_bytes + (call->callee->decoding ? 65536 : call->callee->stack_bytes);   /* recursion: room for some */
    if (stack > d->code->stack_bytes) d->code->stack_bytes = stack;
    d->code->talks |= call->callee->talks;
    d->code->cancels |= call->callee->cancels;
    d->code->mbarriers |= call->callee->mbarriers;
    d->code->tensor_fences |= call->callee->tensor_fences;
    return true;
}

/* ---- calls through pointers ---- */

/* Do the operands have the sizes of the formals, all of them .param variables? */
static bool fits_list(const ptx_operand *list, ptx_variable *const *formals, int count) {
    if ((list != NULL ? list->count : 0) != count) return false;
    for (int i = 0; i < count; i++) {
        const ptx_operand *o = &list->items[i];
        if (o->kind != PTX_OPERAND_VARIABLE || o->variable->space != PTX_PARAM || formals[i]->reg >= 0 || o->variable->bytes != formals[i]->bytes) return false;
    }
    return true;
}

/* call (results), %pointer, (arguments), prototype */
static sim_handler select_call_pointer(sim_decoding *d, const ptx_operand *pointer, const ptx_operand *results, const ptx_operand *arguments) {
    sim_targets *targets = sim_decode_new(d, sizeof *targets);
    if (targets == NULL) return NULL;
    *targets = (sim_targets){.calls = sim_decode_new(d, sizeof *targets->calls * (d->module->function_count + 1))};
    if (targets->calls == NULL || sim_decode_source(d, pointer, PTX_u64, &d->op->arg[0]) != DW_OK) return NULL;
    for (size_t i = 0; i < d->module->function_count; i++) {
        ptx_function *f = d->module->functions[i];
        if (f->entry || f->external || !f->address_taken || !fits_list(results, f->returns, f->return_count) || !fits_list(arguments, f->params, f->param_count)) continue;
        sim_call *call = &targets->calls[targets->count++];
        *call = (sim_call){.name = f->name};
        if (decode_list(d, results, f, true, &call->results, &call->result_count) != DW_OK || decode_list(d, arguments, f, false, &call->arguments, &call->argument_count) != DW_OK ||
            !complete_call(d, f, call)) {
            return NULL;
        }
    }
    d->op->extra = targets;
    return sim_call_pointer;
}

sim_handler select_call(sim_decoding *d) {
    const ptx_instruction *in = d->instruction;
    const ptx_operand *results = NULL, *arguments = NULL;
    int at = 0;
    if (at < in->count && in->operands[at].kind == PTX_OPERAND_LIST) results = &in->operands[at++];
    if (at >= in->count || (in->operands[at].kind != PTX_OPERAND_FUNCTION && in->operands[at].kind != PTX_OPERAND_REGISTER)) {
        d->why = "a call is of a function, or through a register";
        return NULL;
    }
    const ptx_operand *target = &in->operands[at++];
    if (at < in->count && in->operands[at].kind == PTX_OPERAND_LIST) arguments = &in->operands[at++];
    if (target->kind == PTX_OPERAND_REGISTER) return select_call_pointer(d, target, results, arguments);
    ptx_function *f = target->function;
    sim_call *call = sim_decode_new(d, sizeof *call);
    if (call == NULL) return NULL;
    *call = (sim_call){.name = f->name};
    if (decode_list(d, results, f, true, &call->results, &call->result_count) != DW_OK ||
        decode_list(d, arguments, f, false, &call->arguments, &call->argument_count) != DW_OK) {
        return NULL;
    }
    d->op->extra = call;
    for (size_t i = 0; i < COUNT_OF(builtins) && f->instruction_count == 0; i++) {
        if (strcmp(builtins[i].name, f->name) == 0 && builtins[i].arguments == f->param_count) return builtins[i].run;
    }
    if (f->entry) {
        d->why = "a kernel cannot be called";
        return NULL;
    }
    return complete_call(d, f, call) ? sim_call_function : NULL;
}
