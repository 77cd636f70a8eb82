/*
 * What a caller holds of a connection: where it leads, the sentence of its last failure, and who uses it.
 */
#include "libclient/client.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ipc/base/fd.h"
#include "libclient/device.h"
#include "libclient/leave.h"
#include "weightd.h"

#define STRING(x) #x
#define RELEASE(major, minor, patch) STRING(major) "." STRING(minor) "." STRING(patch)

#define RESTART_TIMEOUT_MS 30000

const char *weightd_release(void)
{
	return RELEASE(WEIGHTD_VERSION_MAJOR, WEIGHTD_VERSION_MINOR, WEIGHTD_VERSION_PATCH);
}

int weightd_new(struct weightd **ret)
{
	struct weightd *w = calloc(1, sizeof(*w));

	if (!w)
		return -ENOMEM;
	w->n_refs = 1;
	w->fd = -1;
	w->restart_timeout_ms = RESTART_TIMEOUT_MS;
	list_init(&w->buffers);
	list_init(&w->writers);
	*ret = w;
	return 0;
}

struct weightd *client_ref(struct weightd *w)
{
	w->n_refs++;
	return w;
}

void client_unref(struct weightd *w)
{
	if (!w || --w->n_refs > 0)
		return;
	(void)fd_close(w->fd);
	free(w->path);
	free(w);
}

void weightd_close(struct weightd *w)
{
	if (!w)
		return;
	(void)leave_look(w, true);
	w->is_closed = true;
	client_unref(w);
}

struct sentence *client_sentence(struct weightd *w)
{
	return &w->sentence;
}

const char *weightd_error(const struct weightd *w)
{
	return w->sentence.text;
}

const char *weightd_socket(const struct weightd *w)
{
	return w->path ? w->path : "";
}

void weightd_set_restart_timeout(struct weightd *w, int timeout_ms)
{
	w->restart_timeout_ms = timeout_ms;
}

int client_copy_options(struct weightd *w, const void *options, size_t min, void *ret, size_t size)
{
	const char *tail = options;
	size_t theirs;

	memcpy(&theirs, options, sizeof(theirs));
	if (theirs < min)
		return sentence_set(&w->sentence, -EINVAL,
				    "a struct of options does not say its size (set .size)");
	for (size_t i = size; i < theirs; i++)
		if (tail[i])
			return sentence_set(
				&w->sentence, -E2BIG,
				"this libweightd (%s) is too old for an option that was given",
				weightd_release());
	memcpy(ret, options, theirs < size ? theirs : size);
	return 0;
}

int client_put_target(struct weightd *w, const char *name, const char *device,
		      char name_field[WIRE_NAME_SIZE], char device_field[WIRE_DEVICE_SIZE])
{
	if (codec_put_string(name_field, WIRE_NAME_SIZE, name) < 0 || !name[0])
		return sentence_set(&w->sentence, -EINVAL, "a buffer's name has 1 to %d bytes",
				    WEIGHTD_NAME_MAX);
	if (codec_put_string(device_field, WIRE_DEVICE_SIZE, device ? device : "host") < 0)
		return sentence_set(&w->sentence, -EINVAL, "a device's name has at most %d bytes",
				    WEIGHTD_DEVICE_MAX);
	return device_translate(w, name, device_field);
}
