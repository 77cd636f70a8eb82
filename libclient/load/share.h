/*
 * Sharing: a version that is loaded, in the memory of one that has the same bytes
 *
 * The other version is found by its layout and its digest, which anybody can forge, and its bytes are compared with those that
 * were read: its memory is sealed, so that they stay what they are.
 */
#pragma once

#include <stdint.h>

#include "libclient/writer.h"

/*
 * Publishes in the memory of a version that the caller may read, of any buffer on the host. 1: there is none, and the writer is
 * as it was.
 */
int share_publish(struct weightd_writer *wr, uint64_t *ret_version);
