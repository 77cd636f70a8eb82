/*
 * Forms of versions, as texts
 */
#pragma once

#include "weightd.h"

/* "image": the version is a file; "flat": its bytes are followed by their digests. */
const char *version_form(const struct weightd_version_info *version);

/* Returns the reason for the flat form of a version of that buffer, in a few words; "" for an image. */
const char *version_form_why(const struct weightd_buffer_info *buffer,
			     const struct weightd_version_info *version);
