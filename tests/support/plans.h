/* Plans of graphs in text form, for tests that look at what a plan became at given sizes. What fails fails the test, with the context's words. */
#ifndef TESTS_SUPPORT_PLANS_H
#define TESTS_SUPPORT_PLANS_H

#include "plan/plan.h"

void plans_ok(dw_context *context, dw_status status);
chip_caps plans_chip(dw_context *context, const char *name);
/* The caller destroys it. kernels: those that must be taken, NULL: none. */
plan *plans_compile(dw_context *context, const char *words, const chip_caps *chip, const char *kernels);

/* Does the value lie in the workspace, in memory of its own? */
bool plans_has_place(const plan_value *v);
/* Values that are alive together lie apart. seed: what a failure names. */
void plans_assert_apart(const plan_binding *binding, uint64_t seed);
/* Launches of a run, without those at load. */
int plans_launches(dw_context *context, const plan *plan, const plan_binding *binding);

#endif
