/*
 * Checkpoints of torch.save()
 *
 * A pickle may name any function, and its loader may have errors: it is read by torch's own weights_only loader, in a process
 * that can do nothing else (convert.py). That writes a safetensors file to memory, which the ordinary parser reads.
 */
#pragma once

#include <stdbool.h>

#include "libclient/connection/sentence.h"
#include "libclient/image/file.h"

/* True for X.bin, X.pt, X.pth and X.ckpt that begin as torch.save() begins a file. */
bool checkpoint_is(const struct file *f);

/* True for X.bin.index.json, the index of such files. */
bool checkpoint_is_index(const char *path);

/*
 * Puts the safetensors file in place of `f`, under the same path. Asks `is_stopped` every 100 ms. -EBADMSG: it cannot be
 * converted; -EOPNOTSUPP: there is no Python with torch, or the file is remote; -ECANCELED.
 */
int checkpoint_convert(struct file *f, bool (*is_stopped)(void *userdata), void *userdata,
		       struct sentence *s);
