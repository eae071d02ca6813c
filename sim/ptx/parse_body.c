/* Parses the bodies of functions: statements, operands, scopes, and the meaning of names (PTX ISA 4.3, 6.1 to 6.4). */
#include "parse_internal.h"

#include <stdlib.h>
#include <string.h>

/* ---- names ---- */

static bool encloses(const parser *p, int outer, int inner) {
    while (inner > outer) inner = p->parents[inner];   /* a scope's number is above its parent's */
    return inner == outer;
}

parse_name *parse_find(parser *p, const char *name, int scope, int *reg) {
    for (parse_name *n = map_find(&p->names, name); n != NULL; n = n->older) {
        if (n->range == 0 && encloses(p, n->scope, scope)) {
            *reg = n->reg;
            return n;
        }
    }
    size_t length = strlen(name), digits = 0;
    while (digits < length && name[length - 1 - digits] >= '0' && name[length - 1 - digits] <= '9') digits++;
    /* %r10 is number 10 of %r<..>, or number 0 of %r1<..>: the longest number whose range exists. */
    for (; digits > 0; digits--) {
        char stem[256];
        size_t stem_length = length - digits;
        if (stem_length >= sizeof stem || digits > 7 || (digits > 1 && name[stem_length] == '0')) continue;
        memcpy(stem, name, stem_length);
        stem[stem_length] = '\0';
        for (parse_name *n = map_find(&p->names, stem); n != NULL; n = n->older) {
            int number = atoi(name + stem_length);
            if (number < n->range && encloses(p, n->scope, scope)) {
                *reg = n->reg + number;
                return n;
            }
        }
    }
    return NULL;
}

/* ---- operands ---- */

/* ".y" behind the name of a vector register. */
static dw_status parse_member(parser *p, const parse_name *vector, ptx_operand *o) {
    const char *members = "xyzw", *colours = "rgba", letter = p->token.kind == PTX_WORD && !p->token.spaced && p->token.length == 2 ? p->token.text[1] : '?';
    const char *at = strchr(members, letter), *colour = strchr(colours, letter);
    int index = at != NULL ? (int)(at - members) : colour != NULL ? (int)(colour - colours) : 4;
    if (index >= vector->vector) return parse_fail(p, "%s is a vector register of %d: name one of its members, as %s.x", o->name, vector->vector, o->name);
    o->reg = vector->reg + index;
    return parse_next(p);
}

/* What a name means where it stands; labels and functions may come later, so an unknown name is left to parse_resolve. */
static dw_status name_operand(parser *p, ptx_operand *o) {
    int reg = -1;
    TRY(parse_take_name(p, &o->name));
    o->scope = p->scope;
    if (strcmp(o->name, "_") == 0) {
        o->kind = PTX_OPERAND_SINK;
        return DW_OK;
    }
    parse_name *found = parse_find(p, o->name, p->scope, &reg);
    if (found != NULL && reg >= 0) {
        o->kind = PTX_OPERAND_REGISTER;
        o->reg = reg;
        if (found->vector > 1) return parse_member(p, found, o);
        if (p->token.kind != PTX_WORD || p->token.spaced) return DW_OK;
        o->select = arena_printf(p->arena, "%.*s", (int)p->token.length, p->token.text);
        return o->select != NULL ? parse_next(p) : DW_NO_MEMORY;
    }
    if (found != NULL && found->variable != NULL) {
        o->kind = PTX_OPERAND_VARIABLE;
        o->variable = found->variable;
        return DW_OK;
    }
    if (o->name[0] == '%' || strcmp(o->name, "WARP_SZ") == 0) {
        o->kind = PTX_OPERAND_SPECIAL;
        while (p->token.kind == PTX_WORD && !p->token.spaced) {
            o->name = arena_printf(p->arena, "%s%.*s", o->name, (int)p->token.length, p->token.text);
            if (o->name == NULL) return DW_NO_MEMORY;
            TRY(parse_next(p));
        }
        return DW_OK;
    }
    o->kind = PTX_OPERAND_LABEL;
    return DW_OK;
}

static dw_status items_until(parser *p, ptx_operand *o, const char *end) {
    size_t count = (size_t)o->count, capacity = 0;
    ptx_operand *items = NULL;
    bool more = !parse_is(p, end);
    while (more) {
        if (count >= PARSE_MAX_OPERANDS) return parse_fail(p, "more than %d operands in a list", PARSE_MAX_OPERANDS);
        items = arena_grow(p->arena, items, count, &capacity, sizeof *items);
        if (items == NULL) return DW_NO_MEMORY;
        items[count] = (ptx_operand){0};
        TRY(parse_operand(p, &items[count]));
        count++;
        TRY(parse_accept(p, ",", &more));
    }
    o->items = items;
    o->count = (int)count;
    return parse_expect(p, end);
}

/* base, base+4, base+-4; after it, of tensor instructions, {coordinates} and more. */
static dw_status address_operand(parser *p, ptx_operand *o) {
    o->kind = PTX_OPERAND_ADDRESS;
    TRY(items_until(p, o, "]"));
    if (o->count == 0) return parse_fail(p, "an address with nothing in it");
    ptx_operand *base = &o->items[0];
    if (base->kind != PTX_OPERAND_INTEGER) {
        o->value = base->value;
        base->value = 0;
    }
    return DW_OK;
}

static dw_status plain_operand(parser *p, ptx_operand *o) {
    bool accepted;
    TRY(parse_accept(p, "{", &accepted));
    if (accepted) {
        o->kind = PTX_OPERAND_VECTOR;
        return items_until(p, o, "}");
    }
    TRY(parse_accept(p, "[", &accepted));
    if (accepted) return address_operand(p, o);
    if (parse_is(p, "(")) {   /* a list of a call; never an expression here */
        TRY(parse_next(p));
        o->kind = PTX_OPERAND_LIST;
        return items_until(p, o, ")");
    }
    if (p->token.kind == PTX_REAL) {
        o->kind = PTX_OPERAND_REAL;
        o->value = (int64_t)p->token.bits;
        o->real_bits = p->token.real_bits;
        return parse_next(p);
    }
    if (parse_is(p, "-")) {   /* of a real */
        ptx_lexer ahead = p->lexer;
        ptx_token token;
        TRY(ptx_lex(&ahead, &token));
        if (token.kind == PTX_REAL) {
            TRY(parse_next(p));
            o->kind = PTX_OPERAND_REAL;
            o->real_bits = p->token.real_bits;
            o->value = (int64_t)(p->token.bits ^ 1ull << (o->real_bits - 1));
            return parse_next(p);
        }
        if (token.kind == PTX_NAME && p->depth == 1) {
            TRY(parse_next(p));
            TRY(name_operand(p, o));
            o->minus = true;
            return o->kind == PTX_OPERAND_REGISTER ? DW_OK : parse_fail(p, "only a register can be negated, and %s is none", o->name);
        }
    }
    if (parse_starts_integer(p) && !parse_is(p, "!")) {
        o->kind = PTX_OPERAND_INTEGER;
        return parse_integer(p, &o->value);
    }
    if (p->token.kind != PTX_NAME) return parse_fail(p, "expected an operand");
    TRY(name_operand(p, o));
    TRY(parse_accept(p, "+", &accepted));
    if (accepted || parse_is(p, "-")) TRY(parse_integer(p, &o->value));
    return DW_OK;
}

dw_status parse_operand(parser *p, ptx_operand *o) {
    bool accepted;
    if (++p->depth > PARSE_MAX_DEPTH) return parse_fail(p, "more than %d levels of brackets", PARSE_MAX_DEPTH);
    TRY(parse_accept(p, "!", &accepted));
    TRY(plain_operand(p, o));
    o->negated = accepted;
    TRY(parse_accept(p, "|", &accepted));
    if (accepted) {
        TRY_NEW(o->second, p->arena, 1);
        TRY(parse_operand(p, o->second));
    }
    p->depth--;
    return DW_OK;
}

dw_status parse_operands(parser *p, ptx_operand **operands, int *count) {
    ptx_operand list = {0};
    TRY(items_until(p, &list, ";"));
    *operands = list.items;
    *count = list.count;
    return DW_OK;
}

static dw_status resolve_operand(parser *p, const ptx_instruction *in, ptx_operand *o) {
    for (int i = 0; i < o->count; i++) TRY(resolve_operand(p, in, &o->items[i]));
    if (o->second != NULL) TRY(resolve_operand(p, in, o->second));
    if (o->kind != PTX_OPERAND_LABEL) return DW_OK;
    int reg;
    for (size_t i = 0; i < p->function->table_count; i++) {
        if (strcmp(p->function->tables[i].name, o->name) == 0 && encloses(p, p->function->tables[i].scope, o->scope)) {
            o->kind = PTX_OPERAND_TABLE;
            o->value = (int64_t)i;
            return DW_OK;
        }
    }
    parse_name *found = parse_find(p, o->name, o->scope, &reg);
    if (found != NULL && found->label >= 0) {
        o->value = found->label;
        return DW_OK;
    }
    ptx_symbol *symbol = map_find(&p->module->names, o->name);
    if (symbol != NULL && symbol->function != NULL) {
        o->kind = PTX_OPERAND_FUNCTION;
        o->function = symbol->function;
        symbol->function->address_taken |= strncmp(in->opcode, "call", 4) != 0;
        return DW_OK;
    }
    if (symbol != NULL) {
        o->kind = PTX_OPERAND_VARIABLE;
        o->variable = symbol->variable;
        return DW_OK;
    }
    return base_fail(p->context, DW_SYNTAX, "%s:%d: %s is neither declared nor a label of this scope (in %s)", p->lexer.source, in->line, o->name, in->opcode);
}

dw_status parse_resolve(parser *p) {
    ptx_function *f = p->function;
    for (size_t i = 0; i < f->table_count; i++) {
        ptx_instruction in = {.opcode = ".branchtargets", .line = f->line};
        for (int k = 0; k < f->tables[i].count; k++) TRY(resolve_operand(p, &in, &f->tables[i].items[k]));
    }
    for (size_t i = 0; i < f->instruction_count; i++) {
        ptx_instruction *in = &f->instructions[i];
        for (int k = 0; k < in->count; k++) TRY(resolve_operand(p, in, &in->operands[k]));
    }
    return DW_OK;
}

/* ---- statements ---- */

static dw_status parse_loc(parser *p) {
    int64_t file, line, column;
    TRY(parse_next(p));
    TRY(parse_integer(p, &file));
    TRY(parse_integer(p, &line));
    TRY(parse_integer(p, &column));
    if (line > 0 && line <= INT32_MAX && file > 0 && file <= 65535) {   /* line 0: the compiler made it up */
        p->file = (int)file;
        p->source_line = (int)line;
    }
    bool more;
    TRY(parse_accept(p, ",", &more));
    while (more) {   /* function_name LABEL[+n], inlined_at file line column */
        bool at;
        TRY(parse_accept(p, "inlined_at", &at));
        if (at) {
            for (int i = 0; i < 3; i++) TRY(parse_integer(p, &column));
        } else {
            ptx_operand ignored = {0};
            TRY(parse_expect(p, "function_name"));
            TRY(parse_operand(p, &ignored));
        }
        TRY(parse_accept(p, ",", &more));
    }
    return DW_OK;
}

static dw_status skip_statement(parser *p) {
    while (!parse_is(p, ";") && p->token.kind != PTX_END) TRY(parse_next(p));
    return parse_expect(p, ";");
}

/* A name and the modifiers behind it, which may stand apart: "lop3 .b32" is lop3.b32. */
static dw_status parse_opcode(parser *p, const char **opcode) {
    char text[256];
    size_t length = 0;
    do {
        if (p->token.length >= sizeof text - length) return parse_fail(p, "an instruction of %zu characters", length + p->token.length);
        memcpy(text + length, p->token.text, p->token.length);
        length += p->token.length;
        TRY(parse_next(p));
    } while (p->token.kind == PTX_WORD);
    *opcode = arena_text_n(p->arena, text, length);
    return *opcode != NULL ? DW_OK : DW_NO_MEMORY;
}

static dw_status parse_instruction(parser *p) {
    ptx_function *f = p->function;
    ptx_instruction in = {.guard = -1, .line = p->token.line, .file = p->file, .source_line = p->source_line};
    bool guarded;
    TRY(parse_accept(p, "@", &guarded));
    if (guarded) {
        const char *name;
        TRY(parse_accept(p, "!", &in.guard_negated));
        TRY(parse_take_name(p, &name));
        if (parse_find(p, name, p->scope, &in.guard) == NULL || in.guard < 0 || f->registers[in.guard].type != PTX_pred) {
            return parse_fail(p, "%s is no predicate", name);
        }
    }
    if (p->token.kind != PTX_NAME) return parse_fail(p, "expected an instruction");
    in.line = p->token.line;
    TRY(parse_opcode(p, &in.opcode));
    TRY(parse_operands(p, &in.operands, &in.count));
    for (int i = 0; i < in.count; i++) {
        if (in.operands[i].minus && (i == 0 || strncmp(in.opcode, "vmad.", 5) != 0)) return parse_fail(p, "-%s: only sources of vmad can be negated", in.operands[i].name);
    }
    f->instructions = arena_grow(p->arena, f->instructions, f->instruction_count, &f->instruction_capacity, sizeof *f->instructions);
    if (f->instructions == NULL) return DW_NO_MEMORY;
    f->instructions[f->instruction_count++] = in;
    return DW_OK;
}

/* What follows "name:": a table of labels, or nothing. */
static dw_status parse_label(parser *p) {
    const char *name;
    parse_name *made;
    ptx_function *f = p->function;
    TRY(parse_take_name(p, &name));
    TRY(parse_expect(p, ":"));
    const bool branches = parse_is(p, ".branchtargets");
    if (branches || parse_is(p, ".callprototype") || parse_is(p, ".calltargets")) {
        TRY(parse_next(p));
        ptx_table table = {.name = name, .scope = p->scope};
        TRY(branches ? parse_operands(p, &table.items, &table.count) : skip_statement(p));   /* what is called must fit the arguments, which say enough */
        f->tables = arena_grow(p->arena, f->tables, f->table_count, &f->table_capacity, sizeof *f->tables);
        if (f->tables == NULL) return DW_NO_MEMORY;
        f->tables[f->table_count++] = table;
        return DW_OK;
    }
    TRY(parse_declare(p, name, &made));
    made->label = (int64_t)f->instruction_count;
    return DW_OK;
}

static bool is_label(parser *p) {
    if (p->token.kind != PTX_NAME) return false;
    ptx_lexer ahead = p->lexer;
    while (ahead.at < ahead.end && (*ahead.at == ' ' || *ahead.at == '\t')) ahead.at++;
    return ahead.at < ahead.end && *ahead.at == ':';
}

dw_status parse_body(parser *p) {
    int depth = 0;
    do {
        if (p->token.kind == PTX_END) return parse_fail(p, "expected '}'");
        if (parse_is(p, "{")) {
            if (++depth > PARSE_MAX_DEPTH) return parse_fail(p, "more than %d scopes in each other", PARSE_MAX_DEPTH);
            if (depth > 1) {
                p->parents = arena_grow(p->arena, p->parents, p->scope_count, &p->scope_capacity, sizeof *p->parents);
                if (p->parents == NULL) return DW_NO_MEMORY;
                p->parents[p->scope_count] = p->scope;
                p->scope = (int)p->scope_count++;
            }
            TRY(parse_next(p));
        } else if (parse_is(p, "}")) {
            depth--;
            if (depth > 0) p->scope = p->parents[p->scope];
            TRY(parse_next(p));
        } else if (parse_is(p, ".loc")) {
            TRY(parse_loc(p));
        } else if (parse_is(p, ".pragma")) {
            TRY(skip_statement(p));
        } else if (p->token.kind == PTX_WORD) {
            ptx_space space = parse_space_of(&p->token);
            bool external;
            TRY(parse_accept(p, ".extern", &external));
            if (external) space = parse_space_of(&p->token);
            if (space == PTX_GENERIC) return parse_fail(p, "expected a statement");
            TRY(parse_next(p));
            TRY(parse_variables(p, space, external, false));
        } else if (is_label(p)) {
            TRY(parse_label(p));
        } else if (parse_is(p, ";")) {
            TRY(parse_next(p));
        } else {
            TRY(parse_instruction(p));
        }
    } while (depth > 0);
    return DW_OK;
}
