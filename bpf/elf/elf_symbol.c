/*
 * Finds where in the file of a library a function begins. libbpf 1.1 refuses functions that have more than one
 * version.
 */
#include "bpf/elf/elf_symbol.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/elf/elf_file.h"
#include "ipc/base/cleanup.h"

#define VERSION_HIDDEN 0x8000 /* not the default one */

struct library {
	struct elf_file elf;
	struct elf_table symbols, names, versions;
};

static void library_deinit(struct library *l)
{
	free(l->symbols.bytes);
	free(l->names.bytes);
	free(l->versions.bytes);
	elf_file_deinit(&l->elf);
}

static int symbols_read(struct library *l)
{
	const struct elf_file *elf = &l->elf;
	const Elf64_Shdr *symbols = elf_file_section(elf, SHT_DYNSYM);
	const Elf64_Shdr *versions = elf_file_section(elf, SHT_GNU_versym);
	const Elf64_Shdr *names;
	int r;

	if (!symbols)
		return -ENOENT;
	if (symbols->sh_link >= elf->sections.n)
		return -EBADMSG;
	names = (const Elf64_Shdr *)elf->sections.bytes + symbols->sh_link;
	r = elf_file_read(elf, symbols->sh_offset, symbols->sh_size / sizeof(Elf64_Sym),
			  sizeof(Elf64_Sym), &l->symbols);
	if (r < 0)
		return r;
	r = elf_file_read(elf, names->sh_offset, names->sh_size, 1, &l->names);
	if (r < 0 || !versions)
		return r;
	r = elf_file_read(elf, versions->sh_offset, versions->sh_size / sizeof(Elf64_Half),
			  sizeof(Elf64_Half), &l->versions);
	if (r < 0)
		return r;
	return l->versions.n < l->symbols.n ? -EBADMSG : 0;
}

static bool symbol_is(const struct library *l, uint64_t i, const char *function)
{
	const Elf64_Sym *symbol = (const Elf64_Sym *)l->symbols.bytes + i;
	const Elf64_Half *versions = l->versions.bytes;
	size_t size = strlen(function) + 1;

	if (symbol->st_shndx == SHN_UNDEF || ELF64_ST_TYPE(symbol->st_info) != STT_FUNC)
		return false;
	if (versions && (versions[i] & VERSION_HIDDEN || versions[i] == VER_NDX_LOCAL))
		return false;
	return symbol->st_name < l->names.n && size <= l->names.n - symbol->st_name &&
	       memcmp((const char *)l->names.bytes + symbol->st_name, function, size) == 0;
}

static int symbol_find(const struct library *l, const char *function, uint64_t *ret_offset)
{
	for (uint64_t i = 0; i < l->symbols.n; i++)
		if (symbol_is(l, i, function))
			return elf_file_offset(&l->elf, ((Elf64_Sym *)l->symbols.bytes)[i].st_value,
					       PF_X, ret_offset);
	return -ENOENT;
}

int elf_symbol_find_all(int fd, const char *const functions[], size_t n, uint64_t ret_offsets[])
{
	cleanup(library_deinit) struct library l = {};
	int r;

	r = elf_file_init(&l.elf, fd);
	if (r < 0)
		return r;
	r = symbols_read(&l);
	if (r < 0)
		return r;
	for (size_t k = 0; k < n; k++) {
		r = symbol_find(&l, functions[k], &ret_offsets[k]);
		if (r == -ENOENT)
			ret_offsets[k] = ELF_SYMBOL_NONE;
		else if (r < 0)
			return r;
	}
	return 0;
}

int elf_symbol_find(int fd, const char *function, uint64_t *ret_offset)
{
	uint64_t offset;
	int r = elf_symbol_find_all(fd, &function, 1, &offset);

	if (r < 0)
		return r;
	if (offset == ELF_SYMBOL_NONE)
		return -ENOENT;
	*ret_offset = offset;
	return 0;
}
