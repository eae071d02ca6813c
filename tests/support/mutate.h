/* Graphs broken on purpose, one node at a time, so that a test of what a pass emits can be asked what it notices. */
#ifndef SUPPORT_MUTATE_H
#define SUPPORT_MUTATE_H

#include "ir/ir.h"

typedef enum mutation {
    MUTATION_SIGN,          /* the result with another sign */
    MUTATION_FACTOR,        /* half of it */
    MUTATION_PART,          /* of a sum the first operand alone; of a reduction the first element */
    MUTATION_SWAP,          /* operands the other way around */
    MUTATION_TURN,          /* of a product b the other way around, where its shape allows it */
    MUTATION_PLACE,         /* what is put together, taken out or padded lies elsewhere */
    MUTATION_CLASSES,       /* a loss counts all logits of a row */
    MUTATIONS
} mutation;

const char *mutation_name(mutation kind);
/* Breaks the node of this order. false: there is no such mutant of it, and the graph is of no use. */
bool mutate(ir_graph *graph, int order, mutation kind);

#endif
