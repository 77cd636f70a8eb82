/*
 * A save in the background
 *
 * weightd_train_save() takes the snapshot; the thread writes this rank's files into the hidden folder that rank 0 made,
 * then its word. Rank 0's thread waits for all, completes the checkpoint, and ends the save for all. A rank that dies,
 * or takes the next step without the save, ends it as well. Other nodes than 0 write no files: see save/collect.h.
 */
#pragma once

#include <pthread.h>

#include "libclient/train/nodes/star.h"
#include "libclient/train/plan/control.h"
#include "libclient/train/save/files.h"
#include "libclient/train/save/folder.h"
#include "libclient/train/trainer.h"

struct saving {
	struct weightd_train *train;
	struct wait_place place; /* of the thread */
	struct star star; /* several nodes: to the same rank of the others */
	bool has_tried, is_connected; /* the star, in this save */
	uint64_t n_lost; /* link.n_lost when the save began */
	struct weightd *w; /* the thread's: files and their sentences */
	uint64_t number; /* of the newest save, as in struct control_save */
	uint64_t n_asked; /* exchanges of the next step that this rank had asked for when the save began */
	uint32_t n_given; /* buckets of the next step that it had handed over */
	char path[FOLDER_PATH_MAX]; /* of the folder with the checkpoints */
	uint32_t keep;
	struct snapshot snapshot;
	pthread_t thread;
	bool is_running; /* it is to be joined */
	bool is_reported; /* its result was returned */
	struct control_word done; /* number of the save that the thread is done with */
	int result;
	char sentence[CONTROL_SENTENCE];
};

/* Ends a save in the head, or this rank's part in its words: with a result, and the sentence of a failure. */
void saving_publish(struct control_save *save, uint64_t number, int r);

/* The thread: writes, waits, and sets the result. */
void *saving_main(void *saving);
