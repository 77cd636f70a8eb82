/*
 * Where in the file of a library a function begins. libbpf 1.1 takes no function that has more than one
 * version. The file is anybody's: it is read and never mapped, as one that is cut meanwhile would kill
 * who looks at its mapping, and nothing that it says is believed before it was compared with its size.
 */
#include "bpf/elf.h"

#include <elf.h>
#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

#define TABLE_SIZE_MAX (4 * MIB) /* of what is read at once: libraries have a tenth of it */
#define VERSION_HIDDEN 0x8000 /* not the default one */

struct table {
	void *bytes;
	uint64_t n; /* entries */
};

struct image {
	int fd;
	uint64_t size;
	Elf64_Ehdr head;
	struct table sections, segments;
	struct table symbols, names, versions;
};

static void image_deinit(struct image *image)
{
	free(image->sections.bytes);
	free(image->segments.bytes);
	free(image->symbols.bytes);
	free(image->names.bytes);
	free(image->versions.bytes);
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

static int table_read(struct image *image, uint64_t offset, uint64_t n, size_t entry_size,
		      struct table *ret)
{
	uint64_t size;
	int r;

	if (__builtin_mul_overflow(n, entry_size, &size) || size > TABLE_SIZE_MAX ||
	    offset > image->size || size > image->size - offset)
		return -EBADMSG;
	ret->bytes = malloc(size + 1);
	if (!ret->bytes)
		return -ENOMEM;
	r = read_all(image->fd, ret->bytes, size, offset);
	if (r < 0)
		return r;
	ret->n = n;
	return 0;
}

static int head_read(struct image *image)
{
	Elf64_Ehdr *head = &image->head;
	int r;

	if (image->size < sizeof(*head))
		return -ENOEXEC;
	r = read_all(image->fd, head, sizeof(*head), 0);
	if (r < 0)
		return r;
	if (memcmp(head->e_ident, ELFMAG, SELFMAG) != 0 || head->e_ident[EI_CLASS] != ELFCLASS64 ||
	    head->e_ident[EI_DATA] != ELFDATA2LSB)
		return -ENOEXEC;
	if (head->e_shentsize != sizeof(Elf64_Shdr) || head->e_phentsize != sizeof(Elf64_Phdr))
		return -EBADMSG;
	r = table_read(image, head->e_shoff, head->e_shnum, sizeof(Elf64_Shdr), &image->sections);
	if (r < 0)
		return r;
	return table_read(image, head->e_phoff, head->e_phnum, sizeof(Elf64_Phdr), &image->segments);
}

static const Elf64_Shdr *section_find(const struct image *image, uint32_t type)
{
	const Elf64_Shdr *sections = image->sections.bytes;

	for (uint64_t i = 0; i < image->sections.n; i++)
		if (sections[i].sh_type == type)
			return &sections[i];
	return NULL;
}

static int symbols_read(struct image *image)
{
	const Elf64_Shdr *symbols = section_find(image, SHT_DYNSYM);
	const Elf64_Shdr *versions = section_find(image, SHT_GNU_versym);
	const Elf64_Shdr *names;
	int r;

	if (!symbols)
		return -ENOENT;
	if (symbols->sh_link >= image->sections.n)
		return -EBADMSG;
	names = (const Elf64_Shdr *)image->sections.bytes + symbols->sh_link;
	r = table_read(image, symbols->sh_offset, symbols->sh_size / sizeof(Elf64_Sym),
		       sizeof(Elf64_Sym), &image->symbols);
	if (r < 0)
		return r;
	r = table_read(image, names->sh_offset, names->sh_size, 1, &image->names);
	if (r < 0 || !versions)
		return r;
	r = table_read(image, versions->sh_offset, versions->sh_size / sizeof(Elf64_Half),
		       sizeof(Elf64_Half), &image->versions);
	if (r < 0)
		return r;
	return image->versions.n < image->symbols.n ? -EBADMSG : 0;
}

static bool symbol_is(const struct image *image, uint64_t i, const char *function)
{
	const Elf64_Sym *symbol = (const Elf64_Sym *)image->symbols.bytes + i;
	const Elf64_Half *versions = image->versions.bytes;
	size_t size = strlen(function) + 1;

	if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
		return false;
	if (versions && (versions[i] & VERSION_HIDDEN || versions[i] == VER_NDX_LOCAL))
		return false;
	return symbol->st_name < image->names.n && size <= image->names.n - symbol->st_name &&
	       memcmp((const char *)image->names.bytes + symbol->st_name, function, size) == 0;
}

static int offset_of(const struct image *image, uint64_t address, uint64_t *ret)
{
	const Elf64_Phdr *segments = image->segments.bytes;

	for (uint64_t i = 0; i < image->segments.n; i++) {
		const Elf64_Phdr *s = &segments[i];
		uint64_t offset;

		if (s->p_type != PT_LOAD || !(s->p_flags & PF_X) || address < s->p_vaddr ||
		    address - s->p_vaddr >= s->p_filesz)
			continue;
		if (__builtin_add_overflow(s->p_offset, address - s->p_vaddr, &offset) ||
		    offset >= image->size)
			return -EBADMSG;
		*ret = offset;
		return 0;
	}
	return -EBADMSG;
}

static int find(const struct image *image, const char *function, uint64_t *ret_offset)
{
	for (uint64_t i = 0; i < image->symbols.n; i++)
		if (symbol_is(image, i, function))
			return offset_of(image, ((Elf64_Sym *)image->symbols.bytes)[i].st_value,
					 ret_offset);
	return -ENOENT;
}

int elf_find_all(int fd, const char *const functions[], size_t n, uint64_t ret_offsets[])
{
	cleanup(image_deinit) struct image image = {.fd = fd};
	struct stat st;
	int r;

	if (fstat(fd, &st) < 0)
		return -errno;
	if (!S_ISREG(st.st_mode))
		return -ENOEXEC;
	image.size = (uint64_t)st.st_size;
	r = head_read(&image);
	if (r < 0)
		return r;
	r = symbols_read(&image);
	if (r < 0)
		return r;
	for (size_t k = 0; k < n; k++) {
		r = find(&image, functions[k], &ret_offsets[k]);
		if (r == -ENOENT)
			ret_offsets[k] = ELF_NONE;
		else if (r < 0)
			return r;
	}
	return 0;
}

int elf_find(int fd, const char *function, uint64_t *ret_offset)
{
	uint64_t offset;
	int r = elf_find_all(fd, &function, 1, &offset);

	if (r < 0)
		return r;
	if (offset == ELF_NONE)
		return -ENOENT;
	*ret_offset = offset;
	return 0;
}
