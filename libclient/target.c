#include "libclient/target.h"

#include <errno.h>

#include "ipc/codec.h"
#include "libclient/device.h"
#include "weightd.h"

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
