/* Patterns over names, as policies and lists of parameters have them. */
#include "pass/pass.h"

/* Goes back to the last '*' only: linear in practice, never exponential. */
bool pass_matches(const char *pattern, size_t length, const char *name) {
    const char *const end = pattern + length;
    const char *star = NULL, *resume = NULL;
    while (*name != '\0') {
        if (pattern < end && *pattern == '*') {
            star = ++pattern;
            resume = name;
        } else if (pattern < end && (*pattern == '?' || *pattern == *name)) {
            pattern++;
            name++;
        } else if (star != NULL) {
            pattern = star;
            name = ++resume;
        } else {
            return false;
        }
    }
    while (pattern < end && *pattern == '*') pattern++;
    return pattern == end;
}
