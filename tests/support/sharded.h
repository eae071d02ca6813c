/* What tests of models that are cut over ranks share: two products with weights, as a model; are there fixtures? */
#ifndef SUPPORT_SHARDED_H
#define SUPPORT_SHARDED_H

#include "deepwell/deepwell.h"

/* Two products, x [s,64] -> gelu -> y [s,64], of which one is cut by columns and one along k, at sizes that 3 does not divide, nor 4 in blocks of 32. */
dw_status sharded_open_products(dw_context *context, const dw_model_options *options, dw_model **model);

/* Skips a test where scripts/fixtures.sh has made none. */
void sharded_need_fixtures(void);

#endif
