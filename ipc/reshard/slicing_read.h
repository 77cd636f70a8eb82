/*
 * Texts of slicings, which people write:
 *
 *	# the first rule with a matching pattern (ipc/base/pattern.h) applies
 *	*.adapter.weight whole
 *	*.qkv.weight 0 heads kv_heads kv_heads
 *	*.dense.weight 1 heads
 *	heads = 32
 *	kv_heads = 8
 *	use = llama
 *
 * `use` adds ready rules behind those of the text.
 */
#pragma once

#include <stddef.h>

#include "ipc/reshard/slicing.h"

/* From anybody. -EBADMSG with a sentence and the number of the line, 0 for none; -ENOMEM. */
int slicing_read(const char *text, size_t size, struct slicing *ret, unsigned *ret_line,
		 char why[SLICING_WHY_SIZE]);
