/* Plans as text: the files of tests/plan/cases, each a line "chip NAME", a graph, and the plan that it must become. No chip has to be here. --update writes expectations. */
#include "support/support.h"

#include <string.h>

#include "plan/plan.h"
#include "support/cases.h"

static dw_status plan_case(dw_context *context, const char *name, const char *input, size_t length, text *output) {
    char chip_name[64] = "chip cpu-portable";
    chip_caps chip;
    ir_graph *graph;
    plan *made;
    case_take_line(&input, &length, "chip ", chip_name, sizeof chip_name);
    TRY(chip_find(context, chip_name + strlen("chip "), 0, &chip));
    TRY(ir_parse(context, name, input, length, NULL, &graph));
    TRY(plan_compile(graph, &(plan_options){.chip = &chip, .precision = "as exported"}, &made));
    dw_status status = plan_print(made, output);
    plan_destroy(made);
    return status;
}

int main(int argc, char **argv) { return cases_main(argc, argv, "tests/plan/cases", plan_case); }
