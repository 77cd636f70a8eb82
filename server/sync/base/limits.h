/*
 * Limits of the messages between agents, and between the processes of weightd-sync.
 */
#pragma once

#include <stdint.h>

#define NODE_MAX 63 /* bytes of a node's name */
#define GROUP_MAX 63 /* bytes of a group's name */
#define DATA_OFFSET_MAX ((uint64_t)128 << 20) /* bytes in front of the data: weightd's own limit */
#define FILES_MAX ((uint64_t)80 << 20) /* bytes of the files of a version, likewise */
#define SYNC_ID_SIZE 17 /* 16 hexadecimal digits and a NUL */
#define WHY_SIZE 512 /* a sentence for people */
#define TIME_NOW UINT64_MAX /* as a time */
