/* Parses PTX modules (PTX ISA 4, 5.4, 11): the directives of a module, functions with their performance directives, and the text of other sections,
 * which is skipped. Bodies, operands and variables have files of their own. */
#include "parse_internal.h"

#include <string.h>

/* ---- directives of a module ---- */

static dw_status parse_version(parser *p) {
    if (p->token.kind != PTX_REAL) return parse_fail(p, "expected a version such as 9.0");
    char number[16] = {0};
    memcpy(number, p->token.text, p->token.length < sizeof number - 1 ? p->token.length : sizeof number - 1);
    if (sscanf(number, "%3d.%3d", &p->module->version_major, &p->module->version_minor) != 2) return parse_fail(p, "expected a version such as 9.0");
    return parse_next(p);
}

static dw_status parse_target(parser *p) {
    do {
        const char *name = NULL;
        TRY(parse_take_name(p, &name));
        if (strncmp(name, "sm_", 3) == 0 && p->module->target == NULL) {
            p->module->target = name;
            (void)sscanf(name, "sm_%4d%c", &p->module->arch, &p->module->arch_suffix);
        }
        bool more;
        TRY(parse_accept(p, ",", &more));
        if (!more) break;
    } while (true);
    if (p->module->target == NULL) return parse_fail(p, ".target names no sm_NN");
    return DW_OK;
}

static dw_status parse_file(parser *p) {
    int64_t number;
    TRY(parse_integer(p, &number));
    if (number < 0 || number > 65535) return parse_fail(p, "the number of a .file is 0 to 65535, not %lld", (long long)number);
    if (p->token.kind != PTX_STRING) return parse_fail(p, "expected the name of a file");
    while (p->module->file_count <= (size_t)number) {
        size_t room = p->module->file_count == 0 ? 16 : p->module->file_count * 2;
        const char **files;
        TRY_NEW(files, p->arena, room);
        if (p->module->file_count > 0) memcpy(files, p->module->files, p->module->file_count * sizeof *files);
        p->module->files = files;
        p->module->file_count = room;
    }
    p->module->files[number] = arena_text_n(p->arena, p->token.text, p->token.length);
    if (p->module->files[number] == NULL) return DW_NO_MEMORY;
    TRY(parse_next(p));
    bool more;
    TRY(parse_accept(p, ",", &more));
    while (more) {   /* time stamp, size */
        int64_t ignored;
        TRY(parse_integer(p, &ignored));
        TRY(parse_accept(p, ",", &more));
    }
    return DW_OK;
}

/* .section .debug_str { .. }: braces do not nest in one. */
static dw_status skip_section(parser *p) {
    while (!parse_is(p, "{") && p->token.kind != PTX_END) TRY(parse_next(p));
    while (!parse_is(p, "}") && p->token.kind != PTX_END) TRY(parse_next(p));
    return parse_expect(p, "}");
}

/* ---- functions ---- */

static dw_status parse_three(parser *p, int values[3]) {
    values[0] = values[1] = values[2] = 1;
    for (int i = 0; i < 3; i++) {
        int64_t value;
        TRY(parse_integer(p, &value));
        if (value < 1 || value > INT32_MAX) return parse_fail(p, "a count of threads or blocks is 1 to 2147483647, not %lld", (long long)value);
        values[i] = (int)value;
        bool more;
        TRY(parse_accept(p, ",", &more));
        if (!more) break;
    }
    return DW_OK;
}

static dw_status parse_one(parser *p, int *value) {
    int64_t wide;
    TRY(parse_integer(p, &wide));
    if (wide < 0 || wide > INT32_MAX) return parse_fail(p, "a count is 0 to 2147483647, not %lld", (long long)wide);
    *value = (int)wide;
    return DW_OK;
}

static dw_status parse_performance(parser *p, ptx_function *f, bool *known) {
    *known = true;
    if (parse_is(p, ".maxntid")) { TRY(parse_next(p)); return parse_three(p, f->max_threads); }
    if (parse_is(p, ".reqntid")) { TRY(parse_next(p)); return parse_three(p, f->required_threads); }
    if (parse_is(p, ".reqnctapercluster")) { TRY(parse_next(p)); return parse_three(p, f->cluster); }
    if (parse_is(p, ".minnctapersm") || parse_is(p, ".maxnctapersm")) { TRY(parse_next(p)); return parse_one(p, &f->min_blocks); }
    if (parse_is(p, ".maxnreg")) { TRY(parse_next(p)); return parse_one(p, &f->max_registers); }
    if (parse_is(p, ".maxclusterrank")) { TRY(parse_next(p)); return parse_one(p, &f->max_cluster); }
    if (parse_is(p, ".explicitcluster")) { f->explicit_cluster = true; return parse_next(p); }
    if (parse_is(p, ".noreturn")) { f->no_return = true; return parse_next(p); }
    if (parse_is(p, ".pragma")) {
        TRY(parse_next(p));
        while (!parse_is(p, ";") && p->token.kind != PTX_END) TRY(parse_next(p));
        return parse_expect(p, ";");
    }
    if (parse_is(p, ".abi_preserve") || parse_is(p, ".abi_preserve_control")) {
        int ignored;
        TRY(parse_next(p));
        return parse_one(p, &ignored);
    }
    *known = false;
    return DW_OK;
}

/* A declaration and a definition of one name are one function. */
static dw_status add_function(parser *p, const char *name, ptx_function **function) {
    ptx_symbol *symbol = map_find(&p->module->names, name);
    if (symbol != NULL && symbol->function != NULL) {
        if (symbol->function->instruction_count > 0) return parse_fail(p, "function %s is defined twice", name);
        *function = symbol->function;
        return DW_OK;
    }
    if (symbol != NULL) return parse_fail(p, "%s is a variable already", name);
    TRY_NEW(*function, p->arena, 1);
    TRY_NEW(symbol, p->arena, 1);
    symbol->function = *function;
    TRY(map_set(&p->module->names, name, symbol));
    p->module->functions = arena_grow(p->arena, p->module->functions, p->module->function_count, &p->module->function_capacity, sizeof *p->module->functions);
    if (p->module->functions == NULL) return DW_NO_MEMORY;
    p->module->functions[p->module->function_count++] = *function;
    (*function)->name = name;
    return DW_OK;
}

static dw_status parse_function(parser *p, bool entry, bool external, bool visible) {
    ptx_variable **returns = NULL;
    int return_count = 0;
    ptx_function scratch = {0}, *f = NULL;
    const char *name = NULL;
    int line = p->token.line;
    arena_free(&p->scratch);
    map_init(&p->names, &p->scratch);
    p->scope_count = 0;
    p->scope = -1;
    p->function = &scratch;   /* gathers what the parameter lists declare, until the name is known */
    p->file = p->source_line = 0;
    size_t *capacity = &p->scope_capacity;
    p->parents = arena_grow(p->arena, p->parents, p->scope_count, capacity, sizeof *p->parents);
    if (p->parents == NULL) return DW_NO_MEMORY;
    p->parents[p->scope_count++] = -1;
    p->scope = 0;
    if (parse_is(p, "(")) TRY(parse_parameters(p, &returns, &return_count));
    TRY(parse_take_name(p, &name));
    TRY(add_function(p, name, &f));
    if (parse_is(p, "(")) TRY(parse_parameters(p, &scratch.params, &scratch.param_count));
    f->entry = entry;
    f->external = external;
    f->visible |= visible;
    f->line = line;
    f->returns = returns;
    f->return_count = return_count;
    f->params = scratch.params;
    f->param_count = scratch.param_count;
    f->registers = scratch.registers;
    f->register_count = scratch.register_count;
    f->register_capacity = scratch.register_capacity;
    p->function = f;
    for (bool known = true; known;) TRY(parse_performance(p, f, &known));
    if (parse_is(p, "{")) {
        f->external = false;
        TRY(parse_body(p));
        TRY(parse_resolve(p));
    } else {
        bool ended;
        TRY(parse_accept(p, ";", &ended));
    }
    p->function = NULL;
    return DW_OK;
}

static dw_status parse_directive(parser *p) {
    bool external = false, visible = false, accepted;
    for (bool linking = true; linking;) {
        linking = false;
        TRY(parse_accept(p, ".extern", &accepted));
        external |= accepted;
        linking |= accepted;
        TRY(parse_accept(p, ".visible", &accepted));
        visible |= accepted;
        linking |= accepted;
        TRY(parse_accept(p, ".weak", &accepted));
        visible |= accepted;
        linking |= accepted;
        TRY(parse_accept(p, ".common", &accepted));
        linking |= accepted;
    }
    if (parse_is(p, ".version")) { TRY(parse_next(p)); return parse_version(p); }
    if (parse_is(p, ".target")) { TRY(parse_next(p)); return parse_target(p); }
    if (parse_is(p, ".file")) { TRY(parse_next(p)); return parse_file(p); }
    if (parse_is(p, ".section")) return skip_section(p);
    if (parse_is(p, ".entry")) { TRY(parse_next(p)); return parse_function(p, true, external, visible); }
    if (parse_is(p, ".func")) { TRY(parse_next(p)); return parse_function(p, false, external, visible); }
    if (parse_is(p, ".address_size")) {
        int64_t bits;
        TRY(parse_next(p));
        TRY(parse_integer(p, &bits));
        return bits == 64 ? DW_OK : parse_fail(p, ".address_size is 64 here, not %lld", (long long)bits);
    }
    if (parse_is(p, ".pragma") || parse_is(p, ".alias")) {
        while (!parse_is(p, ";") && p->token.kind != PTX_END) TRY(parse_next(p));
        return parse_expect(p, ";");
    }
    ptx_space space = parse_space_of(&p->token);
    if (space == PTX_GLOBAL || space == PTX_CONST || space == PTX_SHARED) {
        TRY(parse_next(p));
        return parse_variables(p, space, external, visible);
    }
    TRY(parse_accept(p, ";", &accepted));
    return accepted ? DW_OK : parse_fail(p, "expected a directive of a module");
}

/* ---- public ---- */

dw_status ptx_parse(dw_context *context, const char *source, const char *text, size_t length, ptx_module **module) {
    void *memory;
    *module = NULL;
    TRY(base_alloc(context, sizeof(ptx_module), 16, &memory));
    ptx_module *m = memory;
    *m = (ptx_module){.context = context};
    arena_init(&m->arena, context);
    map_init(&m->names, &m->arena);
    parser p = {.context = context, .module = m, .arena = &m->arena};
    arena_init(&p.scratch, context);
    m->source = arena_text(&m->arena, source);
    dw_status status = m->source == NULL ? DW_NO_MEMORY : DW_OK;
    p.lexer = (ptx_lexer){.context = context, .source = m->source, .at = text, .end = text + length, .line = 1};
    if (status == DW_OK) status = parse_next(&p);
    while (status == DW_OK && p.token.kind != PTX_END) status = parse_directive(&p);
    if (status == DW_OK && m->target == NULL) status = base_fail(context, DW_SYNTAX, "%s: no .target: this is no PTX module", source);
    arena_free(&p.scratch);
    if (status != DW_OK) {
        ptx_destroy(m);
        return status;
    }
    *module = m;
    return DW_OK;
}

void ptx_destroy(ptx_module *module) {
    if (module == NULL) return;
    dw_context *context = module->context;
    arena_free(&module->arena);
    base_release(context, module, sizeof *module, 16);
}

ptx_function *ptx_find_function(const ptx_module *module, const char *name) {
    ptx_symbol *symbol = map_find(&module->names, name);
    return symbol != NULL ? symbol->function : NULL;
}

ptx_variable *ptx_find_variable(const ptx_module *module, const char *name) {
    ptx_symbol *symbol = map_find(&module->names, name);
    return symbol != NULL ? symbol->variable : NULL;
}
