/*
 * A client's rows: made for its requests, and freed with all that is counted in them
 */
#pragma once

#include "bpf/request.h"

/* The row of the label that the request gives, which may be new. 0, or negative errno and why. */
int client_row_take(struct request *q, struct row **ret);
/* Adds what the row has as of the last mark to the totals of its peer. */
void client_row_free(struct client *c, struct row *row);
