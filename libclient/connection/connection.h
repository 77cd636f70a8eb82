/*
 * Connections: how a server is reached the first time, and once more
 */
#pragma once

#include "libclient/connection/client.h"

/* A second connection to where `w` is connected. The sentence of a failure is on `w`. */
int connection_twin(struct weightd *w, struct weightd **ret);
