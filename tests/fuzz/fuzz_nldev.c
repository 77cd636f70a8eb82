/*
 * Any bytes as a packet of the kernel about RDMA devices. Parsed rows can be written as JSON.
 */
#include <jansson.h>

#include "bpf/rdma/nldev.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	json_t *rows = json_array();
	const json_t *row;
	char *text;
	size_t i;

	MUST(nldev_parse(data, size, rows) <= 1);
	json_array_foreach(rows, i, row)
	{
		MUST(json_string_value(json_object_get(row, "kind")));
		text = json_dumps(row, JSON_COMPACT);
		MUST(text);
		free(text);
	}
	json_decref(rows);
	return 0;
}
