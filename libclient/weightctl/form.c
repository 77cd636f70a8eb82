/*
 * The server does not tell why a version has the flat form: its buffer shows that, or else it can only be the layout.
 */
#include "libclient/weightctl/form.h"

/* The header of this many tensors has less than 100 MB, however long and strange their names are. */
#define FEW_TENSORS 16000

const char *version_form(const struct weightd_version_info *version)
{
	return version->image ? "image" : "flat";
}

const char *version_form_why(const struct weightd_buffer_info *buffer,
			     const struct weightd_version_info *version)
{
	if (version->image)
		return "";
	if (buffer->memory != WEIGHTD_MEMORY_HOST)
		return "GPU memory";
	if (buffer->exclusive)
		return "exclusive buffer";
	if (buffer->reusable)
		return "reusable buffer";
	return version->n_tensors < FEW_TENSORS ? "aligned layout"
						: "aligned layout or large header";
}
