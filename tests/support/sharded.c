#include "support/sharded.h"

#include <stdio.h>
#include <string.h>

#include "engine/engine.h"
#include "support/support.h"

static const char PRODUCTS[] =
    "graph products\n"
    "  symbol s 1..64\n"
    "  input x f32[s,64]\n"
    "  param up f32[320,64]\n"
    "  param down f32[64,320]\n"
    "  %1 = matmul x, up {bt=true,post=\"gelu\"} at \"mlp.up\"\n"
    "  %2 = matmul %1, down {bt=true} at \"mlp.down\"\n"
    "  output y %2\n";

static dw_status fill_products(ir_weights *weights) {
    ir_weight *up, *down;
    const int64_t dims[2][2] = {{320, 64}, {64, 320}};
    TRY(ir_weights_new(weights, "up", DW_FORMAT_f32, 2, dims[0], &up));
    TRY(ir_weights_new(weights, "down", DW_FORMAT_f32, 2, dims[1], &down));
    for (int64_t i = 0; i < 320 * 64; i++) {
        ((float *)up->tensor.data)[i] = num_random_normal(1, (uint64_t)i) * (i % 64 < 16 ? 4.0f : 1.0f);
        ((float *)down->tensor.data)[i] = num_random_normal(2, (uint64_t)i) * (i / 320 % 3 == 0 ? 0.1f : 1.0f);
    }
    return DW_OK;
}

dw_status sharded_open_products(dw_context *context, const dw_model_options *options, dw_model **model) {
    ir_weights *weights;
    ir_graph *graph;
    TRY(ir_weights_create(context, &weights));
    dw_status status = fill_products(weights);
    if (status == DW_OK) status = ir_parse(context, "products", PRODUCTS, strlen(PRODUCTS), weights, &graph);
    if (status != DW_OK) {
        ir_weights_destroy(weights);
        return status;
    }
    graph->own_weights = weights;
    return dw_model_create(context, graph, options, model);
}

static bool has_fixtures(void) {
    FILE *file = fopen(TEST_FIXTURES_DIR "/manifest.json", "rb");
    if (file != NULL) fclose(file);
    return file != NULL;
}

void sharded_need_fixtures(void) {
    if (has_fixtures()) return;
    printf("skipped: there are no fixtures; scripts/fixtures.sh makes them\n");
    skip();
}
