/*
 * Any bytes as the file of a program. The addresses in its notes lie within the file.
 */
#include <sys/mman.h>
#include <unistd.h>

#include "bpf/elf/usdt_note.h"
#include "tests/fuzz/fuzz.h"

#define N 4

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	int fd = memfd_create("program", MFD_CLOEXEC);
	struct usdt_note notes[N];
	int n;

	MUST(fd >= 0);
	MUST(write(fd, data, size) == (ssize_t)size);
	n = usdt_note_find(fd, "p", notes, N);
	for (int i = 0; i < n && i < N; i++)
		MUST(notes[i].offset < size && notes[i].counter < size);
	close(fd);
	return 0;
}
