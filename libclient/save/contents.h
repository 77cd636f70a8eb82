/*
 * Folders and all that is in them
 */
#pragma once

#include <stdbool.h>

/* Removes a folder, without following links or leaving its file system. Returns 0 or the first -errno. */
int contents_remove(int parent_fd, const char *name);

/* 1: it has no entries; 0: it has; -errno. */
int contents_is_empty(int fd);

/* True if the folder or one just below it has a file with weights. */
bool contents_has_weights(int fd);

/* Waits until all folders in it, and itself, are on the disk. */
int contents_sync(int fd);
