/*
 * Connections: the first one to a server, reconnects, and second ones to the same server
 */
#pragma once

#include "libclient/connection/client.h"

/* A second connection to where `w` is connected. The sentence of a failure is on `w`. */
int connection_twin(struct weightd *w, struct weightd **ret);
