/*
 * How devices are called. A server is asked only when something has a name that can be shortened, or a number
 * that needs a name: it may have to start a program that looks for GPUs.
 */
#include "libclient/weightctl/device.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int device_list(struct cli *cli, bool now, const struct weightd_list **ret)
{
	int r;

	if (!cli->devices) {
		r = weightd_list_devices(cli->w, now, &cli->devices);
		if (r < 0)
			return r;
	}
	*ret = cli->devices;
	return 0;
}

static bool is_gpu(const struct weightd_device_info *info)
{
	return !strncmp(info->device, "cuda:", 5);
}

/* The number behind "cuda:", 0 of "cuda"; -1: it is none. */
static long number_of(const char *device)
{
	char *end;
	long n;

	if (!strcmp(device, "cuda"))
		return 0;
	if (strncmp(device, "cuda:", 5) != 0 || !isdigit((unsigned char)device[5]))
		return -1;
	n = strtol(device + 5, &end, 10);
	return *end || n > UINT16_MAX ? -1 : n;
}

/* How many GPUs, or parts of one, have the number; and the last of them. */
static size_t device_count_matching(const struct weightd_list *list, long number,
				    const struct weightd_device_info **ret)
{
	const struct weightd_device_info *info;
	size_t n = 0;

	for (size_t i = 0; (info = weightd_list_device(list, i)); i++) {
		if (!is_gpu(info) || info->index != number)
			continue;
		*ret = info;
		n++;
	}
	return n;
}

static const struct weightd_device_info *device_find(const struct weightd_list *list,
						     const char *device)
{
	const struct weightd_device_info *info;

	for (size_t i = 0; (info = weightd_list_device(list, i)); i++)
		if (!strcmp(info->device, device))
			return info;
	return NULL;
}

/* Room for the short names that are in use at once, which are those of one line. */
#define N_SHORT 4

const char *device_short(struct cli *cli, const char *device)
{
	static char shorts[N_SHORT][WEIGHTD_DEVICE_MAX + 1];
	static size_t next;
	const struct weightd_device_info *info;
	const struct weightd_list *list;
	char *ret = shorts[next++ % N_SHORT];

	if (strncmp(device, "cuda:", 5) != 0 || cli->without_devices)
		return device;
	if (device_list(cli, false, &list) < 0) {
		cli->without_devices = true; /* not asked again for each line */
		return device;
	}
	info = device_find(list, device);
	if (!info || device_count_matching(list, info->index, &info) != 1)
		return device;
	(void)snprintf(ret, sizeof(shorts[0]), "cuda:%u", (unsigned)info->index);
	return ret;
}

/* The list has "cuda" with the reason why there are no GPUs. */
static int not_there(const struct weightd_list *list, long number)
{
	const struct weightd_device_info *none = device_find(list, "cuda");

	if (none)
		return cli_error("there is no cuda:%ld: %s", number, none->why);
	return cli_error("there is no cuda:%ld; 'weightctl devices' lists those there are", number);
}

/* Letters of a UUID count in either case; the server writes small ones. */
static void make_letters_small(char *device)
{
	if (strncmp(device, "cuda:GPU-", 9) && strncmp(device, "cuda:MIG-", 9))
		return;
	for (char *c = device + 9; *c; c++)
		*c = (char)tolower((unsigned char)*c);
}

/* The server's name of a device, whose letters are small. */
static int device_resolve_one(struct cli *cli, const char *device, const char **ret)
{
	const struct weightd_device_info *info = NULL;
	const struct weightd_list *list;
	long number = number_of(device);
	size_t n;
	int r;

	*ret = device;
	if (number < 0)
		return 0;
	r = device_list(cli, false, &list);
	if (r < 0)
		return cli_fail(cli, r);
	n = device_count_matching(list, number, &info);
	if (n == 0)
		return not_there(list, number);
	if (n > 1)
		return cli_error("%s is in parts, each of which is a device; name one by its UUID, "
				 "which 'weightctl devices' lists",
				 device);
	*ret = info->device;
	return 0;
}

int device_name_of(struct cli *cli, char *device, const char **ret)
{
	make_letters_small(device);
	return device_resolve_one(cli, device, ret);
}

int device_resolve(struct cli *cli)
{
	static char text[WEIGHTD_DEVICE_MAX + 1];

	if (!cli->device || strlen(cli->device) >= sizeof(text))
		return 0; /* the library refuses a longer one */
	return device_name_of(cli, strcpy(text, cli->device), &cli->device);
}

bool device_is_list(const char *device)
{
	return device && (strchr(device, ',') || !strcmp(device, DEVICE_ALL));
}

/* The GPUs of the server that can be used. */
static int device_resolve_all(struct cli *cli, const char **names, size_t *ret_n)
{
	const struct weightd_device_info *info;
	const struct weightd_list *list;
	size_t n = 0;
	int r = device_list(cli, false, &list);

	if (r < 0)
		return cli_fail(cli, r);
	for (size_t i = 0; (info = weightd_list_device(list, i)); i++)
		if (is_gpu(info) && !info->why[0] && n < DEVICES_MAX)
			names[n++] = info->device;
	if (n == 0)
		return not_there(list, 0);
	*ret_n = n;
	return 0;
}

static bool device_is_among(const char *device, const char **names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!strcmp(names[i], device))
			return true;
	return false;
}

int device_resolve_list(struct cli *cli, char *devices, const char **ret_names, size_t *ret_n)
{
	size_t n = 0;

	if (!strcmp(devices, DEVICE_ALL))
		return device_resolve_all(cli, ret_names, ret_n);
	while (devices) {
		char *device = strsep(&devices, ",");

		if (n == DEVICES_MAX)
			return cli_error("--device names at most %d devices", DEVICES_MAX);
		if (device_name_of(cli, device, &ret_names[n]))
			return EXIT_FAILED;
		if (device_is_among(ret_names[n], ret_names, n))
			return cli_error("--device names %s twice", device);
		n++;
	}
	*ret_n = n;
	return 0;
}
