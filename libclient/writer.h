#pragma once

#include <stdint.h>

struct weightd_writer;

/* The digest that was published: 16 bytes, owned by the writer. */
const uint8_t *writer_digest(const struct weightd_writer *wr);
