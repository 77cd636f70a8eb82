#include "ipc/device.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define UUID_TEXT_SIZE 36 /* 8-4-4-4-12 */
#define ORDINAL_DIGITS_MAX 4

static int hex_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

static bool is_dash(size_t at)
{
	return at == 8 || at == 13 || at == 18 || at == 23;
}

static int parse_uuid(const char *s, uint8_t ret[WIRE_UUID_SIZE])
{
	uint8_t uuid[WIRE_UUID_SIZE] = {0};
	size_t n = 0;

	if (strlen(s) != UUID_TEXT_SIZE)
		return -EINVAL;
	for (size_t i = 0; i < UUID_TEXT_SIZE; i++) {
		int v = hex_value(s[i]);

		if (is_dash(i) ? s[i] != '-' : v < 0)
			return -EINVAL;
		if (is_dash(i))
			continue;
		uuid[n / 2] = (uint8_t)(uuid[n / 2] << 4 | v);
		n++;
	}
	memcpy(ret, uuid, sizeof(uuid));
	return 0;
}

static int parse_ordinal(const char *s)
{
	int n = 0;

	if (!*s || strlen(s) > ORDINAL_DIGITS_MAX)
		return -EINVAL;
	for (; *s; s++) {
		if (*s < '0' || *s > '9')
			return -EINVAL;
		n = n * 10 + (*s - '0');
	}
	return n;
}

int device_parse(const char *spelling, struct device *ret)
{
	struct device d = {.ordinal = -1};
	const char *rest = spelling + 5;

	if (!strcmp(spelling, "host")) {
		*ret = d;
		return 0;
	}
	d.is_cuda = true;
	if (!strcmp(spelling, "cuda")) {
		d.ordinal = 0;
	} else if (strncmp(spelling, "cuda:", 5) != 0) {
		return -EINVAL;
	} else if (!strncmp(rest, "GPU-", 4) || !strncmp(rest, "MIG-", 4)) {
		d.is_mig = *rest == 'M';
		if (parse_uuid(rest + 4, d.uuid) < 0)
			return -EINVAL;
	} else {
		d.ordinal = parse_ordinal(rest);
		if (d.ordinal < 0)
			return -EINVAL;
	}
	*ret = d;
	return 0;
}

void device_format(const uint8_t uuid[WIRE_UUID_SIZE], bool is_mig, char ret[WIRE_DEVICE_SIZE])
{
	char text[UUID_TEXT_SIZE + 1];
	size_t n = 0;

	for (size_t i = 0; i < UUID_TEXT_SIZE; i++)
		if (is_dash(i))
			text[i] = '-';
		else {
			uint8_t byte = uuid[n / 2];

			text[i] = "0123456789abcdef"[n % 2 ? byte & 15 : byte >> 4];
			n++;
		}
	text[UUID_TEXT_SIZE] = '\0';
	memset(ret, 0, WIRE_DEVICE_SIZE);
	(void)snprintf(ret, WIRE_DEVICE_SIZE, "cuda:%s-%s", is_mig ? "MIG" : "GPU", text);
}

bool device_is_canonical(const char *device)
{
	char canonical[WIRE_DEVICE_SIZE];
	struct device d;

	if (device_parse(device, &d) < 0)
		return false;
	if (!d.is_cuda)
		return true;
	device_format(d.uuid, d.is_mig, canonical);
	return d.ordinal < 0 && !strcmp(device, canonical);
}
