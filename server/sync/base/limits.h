/*
 * Limits of what the parts of weightd-sync, and agents, say to each other.
 */
#pragma once

#include <stdint.h>

#define NODE_MAX 63 /* bytes of a node's name */
#define GROUP_MAX 63 /* and of a group's */
#define SYNC_ID_SIZE 17 /* 16 hexadecimal digits and a NUL */
#define WHY_SIZE 512 /* of a sentence for people */
#define TIME_NOW UINT64_MAX /* in the place of a time */
