/* What is known of a graph without running it: values as formulas over their indices, and attention masks read from such formulas. An analysis
 * reads a graph and never rewrites it; value_emit alone adds nodes, which its caller asked for. */
#ifndef ANALYSIS_ANALYSIS_H
#define ANALYSIS_ANALYSIS_H

#include "analysis/mask.h"
#include "analysis/value.h"

#endif
