/*
 * Every offset and size is checked against the size of the file before it is read.
 */
#include "bpf/elf/elf_file.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/num.h"

#define TABLE_SIZE_MAX (4 * MIB) /* read at once: libraries have a tenth of it */

void elf_file_deinit(struct elf_file *elf)
{
	free(elf->sections.bytes);
	free(elf->segments.bytes);
}

static int read_all(int fd, void *buffer, size_t size, uint64_t offset)
{
	for (size_t done = 0; done < size;) {
		ssize_t n = pread(fd, (char *)buffer + done, size - done, (off_t)(offset + done));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return -errno;
		if (n == 0)
			return -EBADMSG;
		done += (size_t)n;
	}
	return 0;
}

int elf_file_read(const struct elf_file *elf, uint64_t offset, uint64_t n, size_t entry_size,
		  struct elf_table *ret)
{
	uint64_t size;
	int r;

	if (__builtin_mul_overflow(n, entry_size, &size) || size > TABLE_SIZE_MAX ||
	    offset > elf->size || size > elf->size - offset)
		return -EBADMSG;
	ret->bytes = malloc(size + 1);
	if (!ret->bytes)
		return -ENOMEM;
	r = read_all(elf->fd, ret->bytes, size, offset);
	if (r < 0)
		return r;
	ret->n = n;
	return 0;
}

static int head_read(struct elf_file *elf)
{
	Elf64_Ehdr *head = &elf->head;
	int r;

	if (elf->size < sizeof(*head))
		return -ENOEXEC;
	r = read_all(elf->fd, head, sizeof(*head), 0);
	if (r < 0)
		return r;
	if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
	    head->e_ident[EI_DATA] != ELFDATA2LSB)
		return -ENOEXEC;
	if (head->e_shentsize != sizeof(Elf64_Shdr) || head->e_phentsize != sizeof(Elf64_Phdr))
		return -EBADMSG;
	r = elf_file_read(elf, head->e_shoff, head->e_shnum, sizeof(Elf64_Shdr), &elf->sections);
	if (r < 0)
		return r;
	return elf_file_read(elf, head->e_phoff, head->e_phnum, sizeof(Elf64_Phdr), &elf->segments);
}

const Elf64_Shdr *elf_file_section(const struct elf_file *elf, uint32_t type)
{
	const Elf64_Shdr *sections = elf->sections.bytes;

	for (uint64_t i = 0; i < elf->sections.n; i++)
		if (sections[i].sh_type == type)
			return &sections[i];
	return NULL;
}

int elf_file_offset(const struct elf_file *elf, uint64_t address, uint32_t flags, uint64_t *ret)
{
	const Elf64_Phdr *segments = elf->segments.bytes;

	for (uint64_t i = 0; i < elf->segments.n; i++) {
		const Elf64_Phdr *s = &segments[i];
		uint64_t offset;

		if (s->p_type != PT_LOAD || (s->p_flags & flags) != flags || address < s->p_vaddr ||
		    address - s->p_vaddr >= s->p_filesz)
			continue;
		if (__builtin_add_overflow(s->p_offset, address - s->p_vaddr, &offset) ||
		    offset >= elf->size)
			return -EBADMSG;
		*ret = offset;
		return 0;
	}
	return -EBADMSG;
}

int elf_file_init(struct elf_file *elf, int fd)
{
	struct stat st;

	*elf = (struct elf_file){.fd = fd};
	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOEXEC;
	elf->size = (uint64_t)st.st_size;
	return head_read(elf);
}
