/*
 * Descriptors of memory that one process hands another, emitted as events
 *
 * Without the rights, or where the kernel lets no program see its functions, there are none, and all else works.
 */
#pragma once

#include "bpf/base/question.h"

extern const struct question_kind question_fd_passing;
