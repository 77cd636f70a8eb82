/*
 * Choices
 *
 * The set of files that a directory stands for. A folder of a model holds the same weights in several forms:
 * sharded and whole, of another type (a variant), as another program names them, beside adapters and the
 * state of an optimizer. Only one set is the model; weightctl(1) has the rules.
 */
#pragma once

#include <stdbool.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"
#include "libclient/load/folder/directory.h"

struct choice {
	const struct directory_set *set; /* an index, a file, or all parts of a whole */
	const char *rule; /* static text: the rule that selected it; NULL: it needs no explanation */
};

/*
 * `d` is the list of `f`. -ENOENT: there is nothing to choose from; -EBADMSG: there are several
 * sets, or parts are missing; the sentence lists them.
 */
int choice_make(const struct directory *d, const struct file *f, struct choice *ret,
		struct sentence *s);

/* The sentence about what of `d` was not taken, see directory_take(). False: nothing was left out. */
bool choice_left_out(const struct choice *c, const struct directory *d, const struct file *f,
		     struct sentence *ret);
