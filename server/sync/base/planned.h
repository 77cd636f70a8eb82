/*
 * What is planned
 *
 * Bytes that an engine puts on the wire, known before it runs: TCP's payload, without its headers, of one
 * link. Exact for security "none"; what TLS adds depends on how bytes come to be cut into records.
 */
#pragma once

#include <stdint.h>

/* From the sender to the receiver, for `n_bytes` bytes of memory. */
uint64_t tcp_planned(uint64_t n_bytes);
/* From the receiver to the sender. */
uint64_t tcp_planned_back(void);
