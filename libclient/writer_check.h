/*
 * Checks of writers before their use
 */
#pragma once

#include "libclient/writer.h"

/* 0, and it can be filled. -EALREADY, -ECHILD, -ESTALE, with a sentence. */
int writer_check_open(const struct weightd_writer *wr);

/* Sets the sentence of a writer whose bytes are lost. -ESTALE. */
int writer_say_lost(const struct weightd_writer *wr);
