/*
 * Text from a file or from another user, escaped for a terminal
 */
#pragma once

#include <stdio.h>

/*
 * Writes `s` with everything that could move a cursor, change a mode or reorder a line as \xNN, byte by
 * byte: control characters, invisible and bidirectional format characters, broken UTF-8, and in a
 * locale that is not UTF-8 all that is not ASCII.
 */
void escape_text(FILE *f, const char *s);
/* The same for a name on its own: backslashes too, and escape_mark(), so that no two names look alike. */
void escape_name(FILE *f, const char *s);
/* Stands for the rest of a name that was cut: one column, and in no text that escape_name() wrote. */
const char *escape_mark(void);

/*
 * Writes `s` as a JSON string with its quotes. A reader of the JSON gets exactly `s` back, broken UTF-8
 * aside, which becomes U+FFFD; what escape_text() would hide is written as \uNNNN.
 */
void escape_json(FILE *f, const char *s);
