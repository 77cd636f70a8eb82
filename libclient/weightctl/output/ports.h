/*
 * Ports of RDMA devices, sampled repeatedly: the bytes since the previous sample
 */
#pragma once

#include <jansson.h>
#include <stdio.h>

#include "libclient/weightctl/output/json.h"

/* All zero is none. */
struct ports {
	json_t *now; /* an array with weightd-trace's row of each; NULL: none yet */
	json_t *before; /* likewise, of the look before it, an object by their names */
};

/*
 * Bytes that a port sent ("xmit_bytes") or received ("recv_bytes") a second, between two samples; UINT64_MAX:
 * unknown. A counter that was reset has no rate until the next sample.
 */
uint64_t ports_rate(const json_t *before, const json_t *now, const char *key);

/* Takes those out of the rows, which have more in them. */
void ports_look(struct ports *p, json_t *rows);
void ports_deinit(struct ports *p);

/* A line for each that is active, an empty one before the first. */
void ports_print(const struct ports *p, FILE *f);
/* All of them as the list "ports" of the object that is open. */
void ports_json(const struct ports *p, struct json *j);
