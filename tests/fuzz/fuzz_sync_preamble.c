/* Parses any bytes as the preamble of a stream: an accepted one is written back unchanged. */
#include <string.h>

#include "server/sync/base/preamble.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	uint8_t in[PREAMBLE_SIZE] = {0}, out[PREAMBLE_SIZE];
	struct preamble p, untouched;

	memcpy(in, data, size < sizeof(in) ? size : sizeof(in));
	memset(&p, 0x5a, sizeof(p));
	memcpy(&untouched, &p, sizeof(p));
	if (preamble_decode(in, &p) < 0) {
		MUST(!memcmp(&p, &untouched, sizeof(p)));
		return 0;
	}
	MUST(preamble_is_name(p.from) && preamble_is_name(p.to));
	preamble_encode(&p, out);
	MUST(!memcmp(in, out, sizeof(in)));
	return 0;
}
