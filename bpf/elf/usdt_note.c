/*
 * The notes that <sys/sdt.h> makes: owner "stapsdt", three addresses, three texts. The addresses are those at link
 * time. A tool that moves a program afterwards (prelink) moves one section with it; each note has the old address of
 * that section.
 */
#include "bpf/elf/usdt_note.h"

#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "bpf/elf/elf_file.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

#define OWNER "stapsdt"
#define TYPE 3
#define BASE ".stapsdt.base"
#define ALL_SIZE_MAX (4 * MIB) /* libc has 16 KiB of them */

struct search {
	struct elf_file elf;
	const char *provider;
	uint64_t base; /* address of that section; 0: there is none */
	struct usdt_note *notes;
	unsigned n, n_max;
};

static void search_deinit(struct search *s)
{
	elf_file_deinit(&s->elf);
}

static void table_deinit(struct elf_table *t)
{
	free(t->bytes);
}

static int base_find(struct search *s)
{
	const Elf64_Shdr *sections = s->elf.sections.bytes, *names;
	cleanup(table_deinit) struct elf_table text = {};
	uint16_t index = s->elf.head.e_shstrndx;
	int r;

	if (index >= s->elf.sections.n)
		return s->elf.sections.n ? -EBADMSG : 0;
	names = &sections[index];
	r = elf_file_read(&s->elf, names->sh_offset, names->sh_size, 1, &text);
	if (r < 0)
		return r;
	for (uint64_t i = 0; i < s->elf.sections.n; i++) {
		uint64_t at = sections[i].sh_name;

		if (at < text.n && text.n - at >= sizeof(BASE) &&
		    !memcmp((const char *)text.bytes + at, BASE, sizeof(BASE)))
			s->base = sections[i].sh_addr;
	}
	return 0;
}

/* The text at *at, behind which it moves. NULL: it does not end. */
static const char *take_text(const char **at, const char *end)
{
	const char *text = *at, *nul = memchr(text, 0, (size_t)(end - text));

	if (nul)
		*at = nul + 1;
	return nul ? text : NULL;
}

static bool copy_text(char *to, size_t size, const char *text)
{
	if (strlen(text) >= size)
		return false;
	(void)strcpy(to, text);
	return true;
}

static int take_note(struct search *s, const char *data, const char *end)
{
	struct {
		uint64_t location, base, counter;
	} addresses;
	const char *provider, *name, *arguments;
	struct usdt_note note = {};
	uint64_t moved;
	int r;

	if ((size_t)(end - data) < sizeof(addresses))
		return -EBADMSG;
	memcpy(&addresses, data, sizeof(addresses));
	data += sizeof(addresses);
	provider = take_text(&data, end);
	name = provider ? take_text(&data, end) : NULL;
	arguments = name ? take_text(&data, end) : NULL;
	if (!arguments)
		return -EBADMSG;
	if (strcmp(provider, s->provider) != 0 || !copy_text(note.name, sizeof(note.name), name) ||
	    !copy_text(note.arguments, sizeof(note.arguments), arguments))
		return 0;
	moved = s->base ? s->base - addresses.base : 0; /* modulo 2^64: it may have moved down */
	r = elf_file_offset(&s->elf, addresses.location + moved, PF_X, &note.offset);
	if (r == 0 && addresses.counter)
		r = elf_file_offset(&s->elf, addresses.counter + moved, PF_W, &note.counter);
	if (r < 0)
		return r;
	if (s->n == INT_MAX)
		return -EBADMSG;
	if (s->n < s->n_max)
		s->notes[s->n] = note;
	s->n++;
	return 0;
}

/* Each has a head, a name and data, with sizes rounded up to four bytes. */
static int take_section(struct search *s, const char *bytes, uint64_t size)
{
	Elf64_Nhdr head;
	int r;

	for (uint64_t at = 0; at < size;) {
		uint64_t name, data, left;

		if (size - at < sizeof(head))
			return -EBADMSG;
		memcpy(&head, bytes + at, sizeof(head));
		at += sizeof(head);
		name = ((uint64_t)head.n_namesz + 3) & ~(uint64_t)3;
		data = ((uint64_t)head.n_descsz + 3) & ~(uint64_t)3;
		left = size - at;
		if (name > left || head.n_descsz > left - name)
			return -EBADMSG;
		if (head.n_type == TYPE && head.n_namesz == sizeof(OWNER) &&
		    !memcmp(bytes + at, OWNER, sizeof(OWNER))) {
			r = take_note(s, bytes + at + name, bytes + at + name + head.n_descsz);
			if (r < 0)
				return r;
		}
		at += data > left - name ? left : name + data;
	}
	return 0;
}

int usdt_note_find(int fd, const char *provider, struct usdt_note notes[], unsigned n)
{
	cleanup(search_deinit) struct search s = {.provider = provider, .notes = notes, .n_max = n};
	const Elf64_Shdr *sections;
	uint64_t left = ALL_SIZE_MAX;
	int r;

	r = elf_file_init(&s.elf, fd);
	if (r == 0)
		r = base_find(&s);
	sections = s.elf.sections.bytes;
	for (uint64_t i = 0; r == 0 && i < s.elf.sections.n; i++) {
		cleanup(table_deinit) struct elf_table bytes = {};

		if (sections[i].sh_type != SHT_NOTE)
			continue;
		/*
		 * Many sections may have the same bytes, which must not cost time again and again.
		 */
		if (sections[i].sh_size > left)
			return -EBADMSG;
		left -= sections[i].sh_size;
		r = elf_file_read(&s.elf, sections[i].sh_offset, sections[i].sh_size, 1, &bytes);
		if (r == 0)
			r = take_section(&s, bytes.bytes, bytes.n);
	}
	return r < 0 ? r : (int)s.n;
}
