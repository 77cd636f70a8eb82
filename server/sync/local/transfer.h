/*
 * Transfers
 *
 * Bytes between memory of a GPU and the host's, by leaves that are hashed on their way: as many threads as merkle.h
 * has hash, and one at a time copies, which is how libweightd wants it. Reads go on only as long as all go well.
 */
#pragma once

#include "server/sync/local/task.h"

/*
 * Hashes the version of the task's buffer, into `ret`, an element for each leaf; what is read goes to the staging
 * as well, where there is one.
 */
int transfer_read(struct task *e, uint8_t (*ret)[MERKLE_HASH_SIZE], struct fault *f);

/*
 * Hashes what is staged likewise, and copies to the task's writer those leaves that its table has, or all where none
 * is known yet; of what is not, what the GPU has. Whether that is there, and stays, weightd_writer_verify() can tell then.
 */
int transfer_write(struct task *e, uint8_t (*ret)[MERKLE_HASH_SIZE], struct fault *f);
