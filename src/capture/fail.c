/* Why a call of an operator cannot be read, with its node and module. */
#include "capture/program.h"

dw_status capture_fail(capture_call *call, dw_status status, const char *format, ...) {
    char what[1024];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what, sizeof what, format, arguments);
    va_end(arguments);
    const ir_origin *origin = &call->graph->origin;
    return base_fail(call->capture->context, status, "%s: %s: %s (node '%s'%s%s)", call->capture->source, call->target, what, call->name,
                     origin->module != NULL ? " in " : "", origin->module != NULL ? origin->module : "");
}
