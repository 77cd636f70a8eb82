/*
 * The two questions about the meter: the hooks of its programs, and what it can count
 */
#pragma once

#include "bpf/base/question.h"

extern const struct question_kind question_hooks, question_meter;
