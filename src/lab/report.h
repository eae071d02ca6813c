/* What the files of the report share. report.c measures runs, report_facts.c holds each step of one against its bound, report_text.c puts the facts in words, report_rates.c measures what
 * bounds are made of. */
#ifndef LAB_REPORT_H
#define LAB_REPORT_H

#include <jansson.h>

#include "lab/lab.h"

/* The times of one run of a plan. steps[i]: of step load_count + i. */
typedef struct report_times {
    bool measured;                /* false: the device has no times, and the rest is zeros */
    double wall, host;            /* by the host's clock, from the inputs to the outputs; and what of it the steps do not take */
    device_times device;          /* of the CPU: whole and apart are the sum of the steps */
} report_times;

/* A run to report on. */
typedef struct report_run {
    const plan *plan;
    const int64_t *symbols;
    void *const *inputs;          /* in the memory of the host, by the graph's inputs */
    const chip_caps *chip;        /* with the rates that bounds are made of */
} report_run;

/* Adds a run to facts, an object that may have others: steps are put behind those that are there, times and bounds are added up. */
dw_status report_add_run(json_t *facts, const report_run *run, const report_times *times);
/* When all of them are there: gathers equal steps, and marks those that lose. */
dw_status report_finish_run(dw_context *context, json_t *facts);

/* Rates of the machine that a CPU's chip has none measured of: reading memory and cache, products. */
dw_status report_measure_cpu(dw_context *context, const char *device, chip_caps *chip);
/* Seconds from the start of one launch of next to nothing to that of the one behind it, which waits for it. */
dw_status report_measure_launch(dw_context *context, const char *device, double *seconds);

void report_print(text *out, const json_t *facts, const dw_report_words *words);

#endif
