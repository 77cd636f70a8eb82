/*
 * Failures by script
 *
 * FAKE_CUDA_STATE/fail, looked at in each call: lines "SYMBOL RESULT [SKIP [COUNT]]". SYMBOL is a function of
 * the driver, with or without its _v2, or "*"; RESULT is a number, or "hang": the call goes on once the line
 * is gone, or "die": SIGKILL. The first SKIP calls go well, in whatever process; then COUNT fail, all if
 * there is no COUNT. Both are counted down in the file.
 */
#pragma once

#include "tests/fake/call.h"

cu_result failure_of(const char *symbol);
