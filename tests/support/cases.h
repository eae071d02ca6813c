/* Runs text cases: files of a folder, each an input, a line "----", and the text that the input must turn into. */
#ifndef SUPPORT_CASES_H
#define SUPPORT_CASES_H

#include "base/base.h"

/* Turns the input of the case named name ("folder/file", without ".txt") into output. When it fails, the output is "error: " and the context's message. */
typedef dw_status (*case_run)(dw_context *context, const char *name, const char *input, size_t length, text *output);

/* The main of a program of text cases: runs every .txt file of folder (in the source tree) and of the folders in it, sorted by name.
 * Arguments: --update writes what came out as what is expected (look at the diff before it is committed); any other argument is a part of
 * the names to run. Returns the exit status: 1 when a case differs, leaks memory, or none was found. */
int cases_main(int argc, char **argv, const char *folder, case_run run);

/* The first line of *input, without its end, moved past; false when it does not begin with prefix. */
bool case_take_line(const char **input, size_t *length, const char *prefix, char *line, size_t room);

#endif
