/*
 * Events in the folders of sockets
 */
#pragma once

#include <stdbool.h>

/* Watches the folder of `path` too; `watch` -1 begins. Returns the watch, -1 where nothing can be watched. */
int folder_watch(int watch, const char *path);

/* True when something has happened in a folder before that many ms. With -1 only time passes. */
bool folder_wait(int watch, int timeout_ms);
