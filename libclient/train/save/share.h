/*
 * Sharing: what rank i of node 0 reads of a checkpoint for the ranks i of the other nodes
 *
 * Parameters, which are the same on all nodes but where they are sharded, the states that each node updates, and the buffers
 * and states of ranks. All of it is sent again to all if a rank is lost before all have it.
 */
#pragma once

struct weightd_train;
struct loading;

/*
 * Node 0: sends what this rank has loaded, and more that it reads; or its error `r`, with the last sentence. Returns the error,
 * -EOWNERDEAD if a rank was lost and the options ask for that; errors of waits.
 */
int share_send(struct loading *l, int r);
/* Other nodes: receives it, and sets t->loaded. Errors of node 0, and as above. */
int share_receive(struct weightd_train *t);
