/* Reads files of tests/conform: one call a line, '#' before comments. A line that begins with '@' is one for each op of a class of op/pointwise.def, so a new op has lines
 * without being named:
 *     @real1-log-sqrt f32[3,1050] special=0       every op of one real operand, but log and sqrt
 * The classes are real1, real2, integer1, integer2, truth1 and truth2. */
#ifndef SUPPORT_LINES_H
#define SUPPORT_LINES_H

#include "base/base.h"

/* The call in a line, without what surrounds it; number counts from 1. What is not DW_OK ends the reading. */
typedef dw_status (*line_reader)(void *argument, int number, const char *line);

dw_status lines_read(const char *bytes, size_t length, line_reader read, void *argument);
/* NOT_FOUND: there is no such file. */
dw_status lines_read_file(const char *path, line_reader read, void *argument);

#endif
