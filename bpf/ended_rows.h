/*
 * Rows with an ended span: the last of them, of all clients, for clients that ask later
 */
#pragma once

#include "bpf/request.h"

#define ENDED_ROWS_MAX 2048 /* rows */

/* The rows, the oldest first. */
int ended_rows_op(struct request *q);
