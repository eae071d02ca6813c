/* The text of the last error, the log, and whether the caller asked to stop. */
#include "base/context.h"

#include <string.h>

static const char *const status_names[] = {
#define DW_STATUS(name, meaning) #name,
#include "deepwell/status.def"
#undef DW_STATUS
};

static const char *const status_meanings[] = {
#define DW_STATUS(name, meaning) meaning,
#include "deepwell/status.def"
#undef DW_STATUS
};

/* vsnprintf into room bytes; a text that does not fit ends in "...". */
static void print_clipped(char *at, size_t room, const char *format, va_list arguments) {
    int length = vsnprintf(at, room, format, arguments);
    if (length < 0) {
        snprintf(at, room, "(a message that could not be formatted: %s)", format);
    } else if ((size_t)length >= room && room > 4) {
        memcpy(at + room - 4, "...", 4);
    }
}

dw_status base_fail(dw_context *context, dw_status status, const char *format, ...) {
    if (context == NULL) return status;
    char message[ERROR_BYTES];   /* not in place: an argument may be the last message */
    int prefix = snprintf(message, sizeof message, "%s: ", dw_status_name(status));
    va_list arguments;
    va_start(arguments, format);
    print_clipped(message + prefix, sizeof message - (size_t)prefix, format, arguments);
    va_end(arguments);
    memcpy(context->error, message, strlen(message) + 1);
    context->status = status;
    return status;
}

dw_status base_fail_at(dw_context *context, dw_status status, const char *format, ...) {
    if (context == NULL) return status;
    char place[ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    print_clipped(place, sizeof place, format, arguments);
    va_end(arguments);
    size_t length = strlen(context->error);
    size_t room = sizeof context->error - length;
    if ((size_t)snprintf(context->error + length, room, " (%s)", place) >= room && room > 4) {
        memcpy(context->error + sizeof context->error - 4, "...", 4);
    }
    return status;
}

void base_log(dw_context *context, dw_log_level level, const char *format, ...) {
    if (context == NULL || context->log == NULL) return;
    char line[ERROR_BYTES];
    va_list arguments;
    va_start(arguments, format);
    print_clipped(line, sizeof line, format, arguments);
    va_end(arguments);
    context->log(context->log_user, level, line);
}

dw_status base_last_status(const dw_context *context) { return context->status; }

dw_status base_poll(dw_context *context) {
    if (context->cancelled == NULL || !context->cancelled(context->cancelled_user)) return DW_OK;
    return base_fail(context, DW_CANCELLED, "the caller asked to stop");
}

const char *dw_context_error(const dw_context *context) { return context->error; }

const char *dw_status_name(dw_status status) {
    return (unsigned)status < DW_STATUS_COUNT ? status_names[status] : "?";
}

const char *dw_status_meaning(dw_status status) {
    return (unsigned)status < DW_STATUS_COUNT ? status_meanings[status] : "?";
}
