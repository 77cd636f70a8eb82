/*
 * Functions are found at their place in the file, and damaged files are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dlfcn.h>
#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/elf/elf_symbol.h"

#define CODE_SIZE 32

static int library_open(const char *function, const char *version, void **ret_address)
{
	void *library = dlopen("libc.so.6", RTLD_NOW);
	Dl_info info;

	assert_non_null(library);
	*ret_address = version ? dlvsym(library, function, version) : dlsym(library, function);
	assert_non_null(*ret_address);
	assert_int_not_equal(dladdr(*ret_address, &info), 0);
	return open(info.dli_fname, O_RDONLY | O_CLOEXEC);
}

static void test_default_version_is_found(void **state)
{
	uint8_t code[CODE_SIZE];
	uint64_t offset;
	void *address;
	int fd;

	(void)state;
#ifdef __x86_64__
	fd = library_open("realpath", "GLIBC_2.3", &address); /* realpath@GLIBC_2.2.5 is another */
#else
	fd = library_open("realpath", NULL, &address);
#endif
	assert_true(fd >= 0);
	assert_int_equal(elf_symbol_find(fd, "realpath", &offset), 0);
	assert_int_equal(pread(fd, code, sizeof(code), (off_t)offset), sizeof(code));
	assert_memory_equal(code, address, sizeof(code));
	assert_int_equal(elf_symbol_find(fd, "realpat", &offset), -ENOENT);
	assert_int_equal(elf_symbol_find(fd, "realpath_", &offset), -ENOENT);
	close(fd);
}

static int copy_of(int fd, size_t size)
{
	int copy = memfd_create("library", MFD_CLOEXEC);
	void *bytes = malloc(size);

	assert_true(copy >= 0);
	assert_non_null(bytes);
	assert_int_equal(pread(fd, bytes, size, 0), size);
	assert_int_equal(write(copy, bytes, size), size);
	free(bytes);
	return copy;
}

static void test_cut_file_is_refused(void **state)
{
	static const size_t sizes[] = {0, 1, 63, 64, 100, 4096, 100000};
	void *address;
	uint64_t offset = 7;
	int fd = library_open("realpath", NULL, &address);

	(void)state;
	assert_true(fd >= 0);
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		int copy = copy_of(fd, sizes[i] ? sizes[i] : 1);
		int r;

		assert_int_equal(ftruncate(copy, (off_t)sizes[i]), 0);
		r = elf_symbol_find(copy, "realpath", &offset);
		assert_int_equal(r, sizes[i] < sizeof(Elf64_Ehdr) ? -ENOEXEC : -EBADMSG);
		assert_int_equal(offset, 7);
		close(copy);
	}
	close(fd);
}

/* Each byte of its head and of its sections' heads, one after the other: any answer, but no crash. */
static void test_damaged_file_harms_nobody(void **state)
{
	void *address;
	uint64_t offset;
	struct stat st;
	Elf64_Ehdr head;
	int fd = library_open("realpath", NULL, &address), copy;
	uint64_t end;

	(void)state;
	assert_true(fd >= 0);
	assert_int_equal(fstat(fd, &st), 0);
	assert_int_equal(pread(fd, &head, sizeof(head), 0), sizeof(head));
	copy = copy_of(fd, (size_t)st.st_size);
	end = head.e_shoff + 8 * sizeof(Elf64_Shdr);
	for (uint64_t at = 0; at < end; at = at + 1 == sizeof(head) ? head.e_shoff : at + 1) {
		uint8_t good, bad;

		assert_int_equal(pread(copy, &good, 1, (off_t)at), 1);
		bad = (uint8_t)~good;
		assert_int_equal(pwrite(copy, &bad, 1, (off_t)at), 1);
		(void)elf_symbol_find(copy, "realpath", &offset);
		assert_int_equal(pwrite(copy, &good, 1, (off_t)at), 1);
	}
	assert_int_equal(elf_symbol_find(copy, "realpath", &offset), 0);
	close(copy);
	close(fd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_default_version_is_found),
		cmocka_unit_test(test_cut_file_is_refused),
		cmocka_unit_test(test_damaged_file_harms_nobody),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
