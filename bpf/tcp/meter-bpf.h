/*
 * Properties of the meter made of BPF programs
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/tcp/hook.h"
#include "bpf/tcp/meter.h"

/*
 * True if the hook is in use or, for on_send and on_receive, ready to be. False for the other meter.
 */
bool hook_is_on(const struct meter *m, const struct hook *hook);

/*
 * Returns how often no program ran at the end of a connection because it had interrupted another one. The row may
 * lack bytes of such a connection.
 */
uint64_t meter_misses(const struct meter *m);

/* Its programs; NULL of the other meter. */
const struct bpf_object *meter_object(const struct meter *m);
