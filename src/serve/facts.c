/* The facts of a service as JSON. */
#include <inttypes.h>

#include "serve/scheduler.h"

typedef struct number { const char *name; int64_t value; } number;
typedef struct seconds { const char *name; double value; } seconds;

dw_status dw_service_print(dw_context *context, dw_service *service, dw_sink sink, void *user) {
    dw_service_facts f;
    dw_service_measure(service, &f);
    const number numbers[] = {
        {"waiting", f.waiting}, {"running", f.running}, {"submitted", f.submitted}, {"ended", f.ended}, {"cancelled", f.cancelled}, {"faults", f.faults}, {"preemptions", f.preemptions},
        {"pages", f.pages}, {"pages_used", f.pages_used}, {"pages_idle", f.pages_idle}, {"pages_free", f.pages_free}, {"pages_shared", f.pages_shared}, {"pages_released", f.pages_released},
        {"prefix_hits", f.prefix_hits}, {"prefix_tokens", f.prefix_tokens}, {"read_tokens", f.read_tokens}, {"made_tokens", f.made_tokens}, {"runs", f.runs},
        {"waited_runs", f.waited_runs}, {"vocabulary", f.vocabulary},
    };
    const seconds times[] = {{"run_s_median", f.run_s_median}, {"run_s_90", f.run_s_90}, {"run_s_99", f.run_s_99}, {"run_s_most", f.run_s_most}, {"host_s", f.host_s}, {"wait_s", f.wait_s}, {"device_s", f.device_s}};
    text text;
    text_init(&text, context);
    for (size_t i = 0; i < COUNT_OF(numbers); i++) text_printf(&text, "%s\"%s\": %" PRId64, i == 0 ? "{" : ", ", numbers[i].name, numbers[i].value);
    for (size_t i = 0; i < COUNT_OF(times); i++) {
        text_printf(&text, ", \"%s\": ", times[i].name);
        text_real(&text, times[i].value);
    }
    text_add(&text, ", \"alone\": ");
    if (f.alone != NULL) text_json_string(&text, f.alone);
    else text_add(&text, "null");
    text_add(&text, "}\n");
    const dw_status status = text_status(&text);
    if (status == DW_OK) sink(user, text_string(&text), text.length);
    text_free(&text);
    return status;
}
