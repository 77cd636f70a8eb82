#include "libclient/weightctl/output/ports.h"

#include <inttypes.h>
#include <string.h>

#include "libclient/weightctl/output/cli_error.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json_field.h"
#include "libclient/weightctl/output/size.h"

#define KEY_MAX 128 /* a name of a device, and a number */

void ports_deinit(struct ports *p)
{
	json_decref(p->now);
	json_decref(p->before);
	*p = (struct ports){};
}

static void key_of(const json_t *port, char ret[KEY_MAX])
{
	const char *device = json_field_text(port, "device");

	(void)snprintf(ret, KEY_MAX, "%" PRIu64 " %s", json_field_number(port, "port", 0),
		       device ? device : "");
}

static json_t *made(json_t *o)
{
	if (!o)
		cli_out_of_memory();
	return o;
}

void ports_look(struct ports *p, json_t *rows)
{
	cleanup(json_decrefp) json_t *others = made(json_array());
	char key[KEY_MAX];
	json_t *row;
	size_t i;

	json_decref(p->before);
	p->before = made(json_object());
	json_array_foreach(p->now, i, row)
	{
		key_of(row, key);
		if (json_object_set_nocheck(p->before, key, row) < 0) /* cut, it may be no UTF-8 */
			cli_out_of_memory();
	}
	json_decref(p->now);
	p->now = made(json_array());
	json_array_foreach(rows, i, row)
	{
		if (json_array_append(json_field_is_kind(row, "port") ? p->now : others, row) < 0)
			cli_out_of_memory();
	}
	if (json_array_clear(rows) < 0 || json_array_extend(rows, others) < 0)
		cli_out_of_memory();
}

uint64_t ports_rate(const json_t *before, const json_t *now, const char *key)
{
	uint64_t bytes = json_field_number(now, key, UINT64_MAX),
		 ns = json_field_number(now, "ns", 0);
	uint64_t old_bytes = json_field_number(before, key, UINT64_MAX);
	uint64_t old_ns = json_field_number(before, "ns", 0);

	if (bytes == UINT64_MAX || old_bytes > bytes || old_ns >= ns)
		return UINT64_MAX;
	return size_per_second(bytes - old_bytes, ns - old_ns);
}

static uint64_t rate_of(const struct ports *p, const json_t *port, const char *key)
{
	char name[KEY_MAX];

	key_of(port, name);
	return ports_rate(json_object_get(p->before, name), port, key);
}

static void print_rate(FILE *f, uint64_t rate, const char *word)
{
	char buf[SIZE_TEXT_MAX];

	(void)fprintf(f, "%s %s", rate == UINT64_MAX ? "-" : size_rate(buf, rate, 1000000000), word);
}

static void print_one(const struct ports *p, const json_t *port, FILE *f)
{
	const char *device = json_field_text(port, "device"), *rate = json_field_text(port, "rate");

	escape_text(f, device ? device : "-");
	(void)fprintf(f, "/%" PRIu64 ": ", json_field_number(port, "port", 0));
	print_rate(f, rate_of(p, port, "xmit_bytes"), "out, ");
	print_rate(f, rate_of(p, port, "recv_bytes"), "in, of ");
	escape_text(f, rate ? rate : "-");
	(void)fputc('\n', f);
}

void ports_print(const struct ports *p, FILE *f)
{
	bool is_first = true;
	const json_t *port;
	size_t i;

	json_array_foreach(p->now, i, port)
	{
		const char *state = json_field_text(port, "state");

		if (!state || strcmp(state, "active") != 0)
			continue;
		if (is_first)
			(void)fputc('\n', f);
		is_first = false;
		print_one(p, port, f);
	}
}

static void put_rate(struct json *j, const char *key, uint64_t rate)
{
	if (rate == UINT64_MAX)
		json_put_null(j, key);
	else
		json_put_number(j, key, rate);
}

void ports_json(const struct ports *p, struct json *j)
{
	const json_t *port;
	size_t i;

	json_open(j, "ports", '[');
	json_array_foreach(p->now, i, port)
	{
		const char *device = json_field_text(port, "device"),
			   *state = json_field_text(port, "state");

		json_open(j, NULL, '{');
		json_put_string(j, "device", device ? device : "");
		json_put_number(j, "port", json_field_number(port, "port", 0));
		json_put_string(j, "state", state);
		put_rate(j, "out", rate_of(p, port, "xmit_bytes"));
		put_rate(j, "in", rate_of(p, port, "recv_bytes"));
		json_close(j, '}');
	}
	json_close(j, ']');
}
