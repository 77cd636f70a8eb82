/*
 * Transfers
 *
 * Copies bytes between GPU memory and host memory, and hashes them by leaves on the way. As many
 * threads hash as merkle.h has, and one at a time copies, as libweightd requires. The first failed
 * read ends the transfer.
 */
#pragma once

#include "server/sync/local/task.h"

/*
 * Hashes the version of the task's buffer into `ret`, an element for each leaf. If there is a
 * staging, copies the bytes there as well.
 */
int transfer_read(struct task *e, uint8_t (*ret)[MERKLE_HASH_SIZE], struct fault *f);

/*
 * Hashes the staged leaves, and copies to the task's writer those that match its table, or all if
 * it has no table yet. For leaves that are not staged, hashes the GPU's bytes.
 * weightd_writer_verify() can then confirm the bytes on the GPU.
 */
int transfer_write(struct task *e, uint8_t (*ret)[MERKLE_HASH_SIZE], struct fault *f);
