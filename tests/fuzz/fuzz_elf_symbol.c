/*
 * Any bytes as the file of a library. A function that is found lies within the file.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "bpf/elf/elf_symbol.h"
#include "tests/fuzz/fuzz.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("library", MFD_CLOEXEC);
	uint64_t offset;

	MUST(fd >= 0);
	MUST(write(fd, data, size) == (ssize_t)size);
	if (elf_symbol_find(fd, "f", &offset) == 0)
		MUST(offset < size);
	close(fd);
	return 0;
}
