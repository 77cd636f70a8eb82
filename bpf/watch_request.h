/*
 * The request to watch a process or a control group
 */
#pragma once

#include "bpf/request.h"

int watch_request_op(struct request *q);
