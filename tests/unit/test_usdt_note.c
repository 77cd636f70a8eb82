/*
 * The probes of weightd, which this program has as well, are found at their place, and damaged files are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/elf/usdt_note.h"
#include "server/buffers/probe.h"

#define N 5
#define MOVED 0x10
#define BASE ".stapsdt.base"

static int self_open(void)
{
	int fd = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);

	assert_true(fd >= 0);
	return fd;
}

static const struct usdt_note *note_named(const struct usdt_note notes[], const char *name)
{
	for (unsigned i = 0; i < N; i++)
		if (!strcmp(notes[i].name, name))
			return &notes[i];
	fail_msg("there is no probe '%s'", name);
	return NULL;
}

static void find_all(int fd, struct usdt_note notes[N])
{
	int n = usdt_note_find(fd, "weightd", notes, N);

	if (n == 0) {
		print_message("skipped: it was built without <sys/sdt.h>\n");
		skip();
	}
	assert_int_equal(n, N);
}

/* Offset of something of this program in its file. */
static uint64_t offset_of(const volatile void *address)
{
	uintptr_t at = (uintptr_t)address, from, to;
	uint64_t offset, ret = 0;
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "re");

	assert_non_null(maps);
	while (fgets(line, sizeof(line), maps))
		if (sscanf(line, "%lx-%lx %*s %lx", &from, &to, &offset) == 3 && from <= at &&
		    at < to)
			ret = offset + (at - from);
	fclose(maps);
	return ret;
}

static void test_probes_and_their_semaphores_are_found(void **state)
{
	struct usdt_note notes[N], one;
	int fd = self_open();

	(void)state;
	find_all(fd, notes);
	assert_int_equal(note_named(notes, "attach")->counter, offset_of(&weightd_attach_semaphore));
	assert_int_equal(note_named(notes, "detach")->counter, offset_of(&weightd_detach_semaphore));
	assert_int_equal(note_named(notes, "publish")->counter,
			 offset_of(&weightd_publish_semaphore));
	assert_int_equal(note_named(notes, "flip")->counter, offset_of(&weightd_flip_semaphore));
	assert_int_equal(note_named(notes, "quiesce")->counter,
			 offset_of(&weightd_quiesce_semaphore));
	assert_int_equal(usdt_note_find(fd, "weightd", &one, 1), N);
	assert_string_equal(one.name, notes[0].name);
	assert_int_equal(usdt_note_find(fd, "weight", &one, 1), 0);
	close(fd);
}

static void test_what_is_probed_does_nothing(void **state)
{
	struct usdt_note notes[N];
	int fd = self_open();

	(void)state;
	find_all(fd, notes);
	for (unsigned i = 0; i < N; i++) {
#if defined __x86_64__
		static const uint8_t nop[] = {0x90};
		static const char first[] = "8@%rdi 8@%rsi 8@%rdx 8@%rcx";
#else
		static const uint8_t nop[] = {0x1f, 0x20, 0x03, 0xd5};
		static const char first[] = "8@x0 8@x1 8@x2 8@x3";
#endif
		uint8_t code[sizeof(nop)];

		assert_int_equal(pread(fd, code, sizeof(code), (off_t)notes[i].offset),
				 sizeof(code));
		assert_memory_equal(code, nop, sizeof(nop));
		assert_memory_equal(notes[i].arguments, first, sizeof(first) - 1);
	}
	close(fd);
}

static int copy_of(int fd)
{
	int copy = memfd_create("program", MFD_CLOEXEC);
	struct stat st;
	void *bytes;

	assert_true(copy >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	bytes = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
	assert_true(bytes != MAP_FAILED);
	assert_int_equal(write(copy, bytes, (size_t)st.st_size), st.st_size);
	assert_int_equal(munmap(bytes, (size_t)st.st_size), 0);
	return copy;
}

/* The section of that name: its head, and where that lies. */
static Elf64_Shdr section_named(int fd, const char *name, off_t *ret_at)
{
	Elf64_Shdr names, section;
	char text[32] = {0};
	Elf64_Ehdr head;
	off_t at;

	assert_int_equal(pread(fd, &head, sizeof(head), 0), sizeof(head));
	at = (off_t)(head.e_shoff + head.e_shstrndx * sizeof(names));
	assert_int_equal(pread(fd, &names, sizeof(names), at), sizeof(names));
	for (unsigned i = 0; i < head.e_shnum; i++) {
		at = (off_t)(head.e_shoff + i * sizeof(section));
		assert_int_equal(pread(fd, &section, sizeof(section), at), sizeof(section));
		assert_true(pread(fd, text, sizeof(text) - 1,
				  (off_t)(names.sh_offset + section.sh_name)) > 0);
		if (!strcmp(text, name)) {
			*ret_at = at;
			return section;
		}
	}
	fail_msg("there is no section '%s'", name);
	return section;
}

static void test_a_program_that_was_moved_is_followed(void **state)
{
	struct usdt_note before[N], after[N];
	int fd = self_open(), copy;
	Elf64_Shdr section;
	off_t at;

	(void)state;
	find_all(fd, before);
	copy = copy_of(fd);
	section = section_named(copy, BASE, &at);
	section.sh_addr -= MOVED;
	assert_int_equal(pwrite(copy, &section, sizeof(section), at), sizeof(section));
	assert_int_equal(usdt_note_find(copy, "weightd", after, N), N);
	for (unsigned i = 0; i < N; i++) {
		assert_int_equal(after[i].offset, before[i].offset - MOVED);
		assert_int_equal(after[i].counter, before[i].counter - MOVED);
	}
	close(copy);
	close(fd);
}

static void test_cut_file_is_refused(void **state)
{
	struct usdt_note notes[N] = {{.offset = 7}};
	int fd = self_open(), copy = copy_of(fd);
	off_t sizes[] = {0, 1, 63, 64, 100, 4096, 40000, 0};
	size_t n = sizeof(sizes) / sizeof(sizes[0]);
	struct stat st;

	(void)state;
	assert_int_equal(fstat(fd, &st), 0);
	sizes[n - 1] = st.st_size - 1; /* the heads of sections are the last there is */
	for (size_t i = n; i-- > 0;) {
		int r;

		assert_int_equal(ftruncate(copy, sizes[i]), 0);
		r = usdt_note_find(copy, "weightd", notes, N);
		assert_int_equal(r, sizes[i] < (off_t)sizeof(Elf64_Ehdr) ? -ENOEXEC : -EBADMSG);
		assert_int_equal(notes[0].offset, 7);
	}
	close(copy);
	close(fd);
}

/* Each byte of it, one after the other: any answer, but no crash, and what is found lies in the file. */
static void damage(int copy, uint64_t from, uint64_t size, uint64_t file_size)
{
	for (uint64_t at = from; at < from + size; at++) {
		struct usdt_note notes[N];
		uint8_t good, bad;
		int n;

		assert_int_equal(pread(copy, &good, 1, (off_t)at), 1);
		bad = (uint8_t)~good;
		assert_int_equal(pwrite(copy, &bad, 1, (off_t)at), 1);
		n = usdt_note_find(copy, "weightd", notes, N);
		for (int i = 0; i < n && i < N; i++)
			assert_true(notes[i].offset < file_size && notes[i].counter < file_size);
		assert_int_equal(pwrite(copy, &good, 1, (off_t)at), 1);
	}
}

static void test_damaged_file_harms_nobody(void **state)
{
	int fd = self_open(), copy;
	struct usdt_note notes[N];
	Elf64_Shdr section;
	struct stat st;
	Elf64_Ehdr head;
	off_t at;

	(void)state;
	find_all(fd, notes);
	assert_int_equal(fstat(fd, &st), 0);
	copy = copy_of(fd);
	assert_int_equal(pread(copy, &head, sizeof(head), 0), sizeof(head));
	section = section_named(copy, ".note.stapsdt", &at);
	damage(copy, 0, sizeof(head), (uint64_t)st.st_size);
	damage(copy, head.e_phoff, head.e_phnum * sizeof(Elf64_Phdr), (uint64_t)st.st_size);
	damage(copy, head.e_shoff, head.e_shnum * sizeof(Elf64_Shdr), (uint64_t)st.st_size);
	damage(copy, section.sh_offset, section.sh_size, (uint64_t)st.st_size);
	assert_int_equal(usdt_note_find(copy, "weightd", notes, N), N);
	close(copy);
	close(fd);
}

/* As many sections of notes as there can be, all of the same bytes. */
static void test_a_file_that_repeats_itself_keeps_nobody_busy(void **state)
{
	static const Elf64_Shdr notes = {.sh_type = SHT_NOTE,
					 .sh_offset = sizeof(Elf64_Ehdr),
					 .sh_size = (1 << 20) - sizeof(Elf64_Ehdr)};
	Elf64_Ehdr head = {.e_ident = {ELFMAG0, ELFMAG1, ELFMAG2, ELFMAG3, ELFCLASS64, ELFDATA2LSB},
			   .e_shoff = 1 << 20,
			   .e_shnum = UINT16_MAX,
			   .e_shentsize = sizeof(Elf64_Shdr),
			   .e_phentsize = sizeof(Elf64_Phdr)};
	int fd = memfd_create("program", MFD_CLOEXEC);
	Elf64_Shdr *sections = calloc(UINT16_MAX, sizeof(*sections));
	struct usdt_note note;

	(void)state;
	assert_non_null(sections);
	assert_int_equal(ftruncate(fd, 1 << 20), 0);
	for (unsigned i = 0; i < UINT16_MAX; i++)
		sections[i] = notes;
	assert_int_equal(pwrite(fd, &head, sizeof(head), 0), sizeof(head));
	assert_int_equal(pwrite(fd, sections, UINT16_MAX * sizeof(*sections), 1 << 20),
			 UINT16_MAX * sizeof(*sections));
	assert_int_equal(usdt_note_find(fd, "weightd", &note, 1), -EBADMSG);
	free(sections);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_probes_and_their_semaphores_are_found),
		cmocka_unit_test(test_what_is_probed_does_nothing),
		cmocka_unit_test(test_a_program_that_was_moved_is_followed),
		cmocka_unit_test(test_cut_file_is_refused),
		cmocka_unit_test(test_damaged_file_harms_nobody),
		cmocka_unit_test(test_a_file_that_repeats_itself_keeps_nobody_busy),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
