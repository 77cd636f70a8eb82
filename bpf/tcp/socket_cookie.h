/*
 * The kernel's number of a TCP socket
 */
#pragma once

#include <stdint.h>

/* 0, or negative errno; -ENOTSOCK: the descriptor is no TCP socket. */
int socket_cookie(int fd, uint64_t *ret);
