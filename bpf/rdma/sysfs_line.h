/*
 * The line that a small file of the kernel has
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/*
 * Without its line feed, of characters that can be shown in ASCII. False where there is none, it is too long for
 * `size` bytes, or the file is none of its kind: nothing is waited for.
 */
bool sysfs_line_read(int dir_fd, const char *path, char *ret, size_t size);
