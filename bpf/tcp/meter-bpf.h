/*
 * Properties of the meter that is made of BPF programs
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "bpf/tcp/hook.h"
#include "bpf/tcp/meter.h"

/* Whether it is in use, or as on_send and on_receive ready to be. Of the other meter none is. */
bool hook_is_on(const struct meter *m, const struct hook *hook);

/*
 * How often no program ran at the end of a connection, because that had interrupted another one: whether all that it carried
 * is in its row nobody knows then.
 */
uint64_t meter_misses(const struct meter *m);

/* Its programs; NULL of the other meter. */
const struct bpf_object *meter_object(const struct meter *m);
