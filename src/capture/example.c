/* What the example of an export had along symbolic axes of inputs, which torch.export writes beside each size as a hint. It decides nothing but for what sizes plans are made where
 * nobody says (src/plan/dims.c), so a hint that is no size is passed over. */
#include "capture/program.h"

enum { MOST = 1 << 30 };    /* no example has more along an axis; a file may say so */

/* 0: there is none. */
static int64_t read_hint(const json_t *size) {
    const json_t *hint = json_object_get(json_object_get(json_object_get(size, "as_expr"), "hint"), "as_int");
    const int64_t known = json_is_integer(hint) ? json_integer_value(hint) : 0;
    return known > 0 && known <= MOST ? known : 0;
}

/* Of an axis that is a symbol, or a multiple of one: torch writes 8*s for a size that was asked to be a multiple. The first axis that says a symbol's size counts. */
static void add_axis(dim axis, int64_t hint, int64_t *sizes) {
    int symbol;
    int64_t factor;
    dim product;
    if (hint == 0 || dim_term_count(axis) != 1) return;
    dim_term(axis, 0, &factor, &product);
    if (dim_is_symbol(product, &symbol) && factor > 0 && hint % factor == 0 && sizes[symbol] == 0) sizes[symbol] = hint / factor;
}

dw_status capture_note_example(capture *capture, const json_t *tensor_values) {
    ir_graph *graph = capture->graph;
    const int symbols = dim_symbol_count(graph->dims);
    int64_t *sizes;
    TRY_NEW(sizes, &capture->arena, symbols + 1);
    for (size_t i = 0; i < graph->input_count; i++) {
        const op_type *type = &graph->inputs[i]->type;
        const json_t *known = json_object_get(json_object_get(tensor_values, graph->inputs[i]->name), "sizes");
        for (int axis = 0; axis < type->rank; axis++) add_axis(type->dims[axis], read_hint(json_array_get(known, (size_t)axis)), sizes);
    }
    text words;
    text_init(&words, capture->context);
    for (int i = 0; i < symbols; i++)
        if (sizes[i] > 0) text_printf(&words, "%s%s=%lld", words.length > 0 ? "," : "", dim_symbol_name(graph->dims, i), (long long)sizes[i]);
    dw_status status = text_status(&words);
    if (status == DW_OK && words.length > 0) status = ir_set_note(graph, IR_NOTE_EXAMPLE, text_string(&words));
    text_free(&words);
    return status;
}
