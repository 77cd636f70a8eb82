#pragma once

#include <stdint.h>

struct weightd;
struct weightd_create_options;
struct weightd_layout;
struct weightd_writer;

/*
 * As weightd_create(), asking `tick` every now and then while the server provides the memory; < 0 gives
 * up and closes the connection.
 */
int writer_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		  const struct weightd_create_options *options, int (*tick)(void *userdata),
		  void *userdata, struct weightd_writer **ret);

/* The digest that was published: 16 bytes, owned by the writer. */
const uint8_t *writer_digest(const struct weightd_writer *wr);
