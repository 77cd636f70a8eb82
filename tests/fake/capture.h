/*
 * Captures of streams into graphs
 *
 * There are none here. While the file FAKE_CUDA_STATE/capture exists it is as if another thread were at one, in
 * the mode that forbids all threads what could spoil it, unless they have taken leave.
 */
#pragma once

#include <stdbool.h>

bool capture_forbids(void);
