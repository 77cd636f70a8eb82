#pragma once

#include <stdint.h>

struct weightd_layout;

/* The image of a layout, complete with its hash; the caller frees it. -EINVAL when it is empty. */
int layout_build(const struct weightd_layout *l, void **ret_image, uint64_t *ret_size);
