/*
 * A folder of a test: for checkpoints, in memory where that is possible
 */
#pragma once

#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

static inline int remove_entry(const char *path, const struct stat *st, int type, struct FTW *place)
{
	(void)st;
	(void)type;
	(void)place;
	return remove(path);
}

static char folder[64];

static inline int folder_make(void **state)
{
	(void)state;
	(void)snprintf(folder, sizeof(folder), "%s/weightd-saving-XXXXXX",
		       access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp");
	return mkdtemp(folder) ? 0 : -1;
}

static inline int folder_remove(void **state)
{
	(void)state;
	return nftw(folder, remove_entry, 8, FTW_DEPTH | FTW_PHYS);
}
