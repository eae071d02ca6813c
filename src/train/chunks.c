/* In how many parts of rows logits are computed, by what they take at the sizes that were asked for, and how long rows are. What is done with the numbers is src/pass/gradient/chunk.c's. */
#include "train/train.h"

#include <string.h>

/* Logits and their gradient together that are worth parting; rows of a part, so that what it adds to the weight's gradient is little beside its products. */
enum { LEAST_MIB = 256, LEAST_ROWS = 1024, MOST_PARTS = 64 };
/* Of a vocabulary of so many words the weight is copied once for a step, so that on a GPU a row of logits begins at a multiple of 16 bytes, in every format that products read. */
enum { LEAST_COLUMNS = 1024, MULTIPLE = 16 };

bool train_is_on_cpu(const dw_trainer_options *options) { return options->device == NULL || strncmp(options->device, "cpu", 3) == 0; }

dw_status train_choose_chunks(const ir_graph *graph, const dw_trainer_options *options, train_chunks *chosen) {
    int64_t *symbols;
    arena scratch;
    *chosen = (train_chunks){.count = 1, .multiple = 1};
    arena_init(&scratch, graph->context);
    symbols = arena_new(&scratch, (size_t)dim_symbol_count(graph->dims) + 1, sizeof *symbols);
    dw_status status = symbols != NULL ? DW_OK : DW_NO_MEMORY;
    if (status == DW_OK) plan_typical_dims(graph, symbols);
    if (status == DW_OK) status = plan_read_dims(graph->context, graph, options->dims, symbols);
    for (const ir_node *node = graph->first; status == DW_OK && node != NULL; node = node->next) {
        dw_tensor logits;
        if (node->op != OP_cross_entropy) continue;
        status = op_tensor_bind(graph->context, &ir_in(node, 0)->type, symbols, NULL, &logits);
        if (status != DW_OK) break;
        const int64_t cols = logits.dims[logits.rank - 1], rows = cols > 0 ? op_tensor_count(&logits) / cols : 0;
        const double bytes = 2.0 * (double)rows * (double)cols * dw_format_bits(logits.format) / 8;
        if (bytes <= chosen->bytes) continue;
        *chosen = (train_chunks){.rows = rows, .cols = cols, .bytes = bytes, .count = 1, .multiple = cols >= LEAST_COLUMNS && !train_is_on_cpu(options) ? MULTIPLE : 1};
        if (bytes > LEAST_MIB * 0x1p20 && rows / LEAST_ROWS > 1) chosen->count = rows / LEAST_ROWS < MOST_PARTS ? (int)(rows / LEAST_ROWS) : MOST_PARTS;
    }
    arena_free(&scratch);
    if (options->chunks > 0) chosen->count = options->chunks;
    return status;
}
