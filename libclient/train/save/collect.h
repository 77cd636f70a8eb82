/*
 * Collecting: the parts of a checkpoint that other nodes have
 *
 * The thread of rank i of each other node sends its snapshot to that of rank i of node 0, and gets the result of the save. Both
 * do so beside the steps, on connections of their own (nodes/star.h): a rank that was killed, or that does not save, ends the
 * save and no step.
 */
#pragma once

struct saving;

/*
 * Node 0: receives from all other nodes into the snapshot, once. -EOWNERDEAD: a rank was lost; -ETIMEDOUT: it did not take
 * part; -ECANCELED; all with a sentence. One node: nothing.
 */
int collect_receive(struct saving *s);
/* Node 0: sends the result of this rank, with the last sentence, to all that are there. */
void collect_end(struct saving *s, int result);

/* Other nodes: sends the snapshot, and returns the result of node 0, with its sentence. Errors as above. */
int collect_send(struct saving *s);
