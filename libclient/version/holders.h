/*
 * Holders: processes that map or open a memfd writable
 */
#pragma once

#include <stddef.h>

/*
 * Names the processes that map the file behind `fd` writable, as far as the caller may look: "pid 7
 * (trainer), pid 9 (python3)". An empty string when none was found.
 */
void holders_of(int fd, char *buf, size_t size);
