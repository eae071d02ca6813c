/* Decodes a function once: each instruction is matched against the rows of ptx.def, its operands become rows, and its family chooses the handler
 * that its types and modifiers ask for. What no row describes fails here, with its line. */
#include "sim/isa/decoder.h"

#include <stdlib.h>

enum { MAX_CALL_DEPTH = 200, MAX_REGISTER_BYTES = 1 << 26 };

static dw_status decode_instruction(sim_decoding *d) {
    sim_op matched;
    const ptx_instruction *in = d->instruction;
    const char *why = NULL;
    d->form = NULL;
    const size_t touched = d->decoder->touched_count, watched = d->code->watched_count;
    while ((d->form = sim_match(d, d->form, &matched)) != NULL) {
        d->op = decoder_add_op(d);
        if (d->op == NULL) return DW_NO_MEMORY;
        matched.instruction = d->op->instruction;
        memcpy(matched.arg, d->op->arg, sizeof matched.arg);
        matched.guard = in->guard >= 0 ? d->decoder->rows[in->guard] : SIM_NO_ROW;
        matched.guard_negated = in->guard_negated;
        *d->op = matched;
        d->why = NULL;
        size_t at = d->code->op_count;
        TRY(decoder_read_operands(d));
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
        d->decoder->touched_count = touched;
        d->code->watched_count = watched;
    }
    return sim_decode_fail(d, DW_UNSUPPORTED, "%s", why != NULL ? why : "no row of sim/isa/ptx.def describes this instruction or form");
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

/* Before each instruction that touches a watched row (but products themselves) comes an op that checks it. extra: the touches, count of them in offset. */
static dw_status insert_checks(sim_decoder *k) {
    sim_code *code = k->code;
    const ptx_function *f = k->function;
    if (code->watched_count == 0) return DW_OK;
    size_t at = 0, op_capacity = 0, op_count = 0;
    decoder_sort_watched(code);
    code->watch_at = base_align_up(code->register_bytes, 64);
    code->register_bytes = code->watch_at + code->watched_count * sizeof(sim_watch);
    sim_op *ops = NULL;
    for (size_t i = 0; i < f->instruction_count; i++) {
        size_t begin = k->first_op[i], end = k->first_op[i + 1], first = at;
        size_t watched = 0;
        while (at < k->touched_count && k->touched[at].instruction == i) at++;
        uint32_t *list = NULL;
        bool product = strncmp(f->instructions[i].opcode, "wgmma.mma", 9) == 0;
        for (size_t t = first; t < at && !product; t++) watched += sim_watched(code, k->rows[k->touched[t].reg]) >= 0;
        k->first_op[i] = op_count;
        if (watched > 0) {
            TRY_NEW(list, k->arena, watched);
            watched = 0;
            for (size_t t = first; t < at; t++) {
                int number = sim_watched(code, k->rows[k->touched[t].reg]);
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

static dw_status decode_instructions(sim_decoder *k) {
    ptx_function *f = k->function;
    sim_decoding d = {.context = k->context, .module = k->module, .function = f, .code = k->code, .decoder = k};
    k->carry = SIM_NO_ROW;
    k->touched_count = k->constant_count = k->code->op_count = k->code->constant_bytes = k->code->given_count = k->code->watched_count = 0;
    for (size_t i = 0; i < f->instruction_count; i++) {
        k->first_op[i] = k->code->op_count;
        d.instruction = &f->instructions[i];
        TRY(decode_instruction(&d));
    }
    k->first_op[f->instruction_count] = k->code->op_count;
    return DW_OK;
}

/* Formals in registers lie in front, where calls find them, even those of a function that calls itself. The others are told apart by any numbers until they get their rows. */
static void number_registers(sim_decoder *k) {
    ptx_function *f = k->function;
    for (size_t i = 0; i < f->register_count; i++) k->rows[i] = SIM_NO_ROW;
    for (int i = 0; i < f->param_count + f->return_count; i++) {
        ptx_variable *v = i < f->param_count ? f->params[i] : f->returns[i - f->param_count];
        if (v->reg >= 0) v->address = k->rows[v->reg] = decoder_new_row(k, f->registers[v->reg].type);
    }
    k->formal_bytes = k->code->register_bytes;
    for (size_t i = 0; i < f->register_count; i++) {
        if (k->rows[i] == SIM_NO_ROW) k->rows[i] = decoder_new_row(k, PTX_pred);
    }
}

/* Twice: who shares a row is known when all uses are, and families keep rows where they like. */
static dw_status decode_body(sim_decoder *k) {
    ptx_function *f = k->function;
    TRY_NEW(k->rows, k->arena, f->register_count);
    TRY_NEW(k->first_op, k->arena, f->instruction_count + 1);
    number_registers(k);
    TRY(decode_instructions(k));
    decoder_sort_watched(k->code);
    TRY(decoder_share_rows(k));
    TRY(decode_instructions(k));
    if (k->code->register_bytes > MAX_REGISTER_BYTES) {
        return base_fail(k->context, DW_LIMIT, "%.160s: its registers take %zu bytes of a warp; %d is the limit", f->name, k->code->register_bytes, MAX_REGISTER_BYTES);
    }
    sim_decoding d = {.context = k->context, .module = k->module, .function = f, .code = k->code, .decoder = k};
    ptx_instruction end = {.opcode = "ret", .line = f->instruction_count > 0 ? f->instructions[f->instruction_count - 1].line : f->line};
    d.instruction = &end;
    sim_op *op = decoder_add_op(&d);
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
