/*
 * Creating a version: its form, its layout and its header, and the requests for its memory.
 *
 * A version is an image if its layout can be one and the server has such memory for the buffer; otherwise it has the
 * flat form. A layout that leaves its order to the library is packed for that. If the newest version has the same
 * tensors, its layout and the offset of its data take precedence, because readers can then swap.
 */
#include <errno.h>
#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#include "ipc/base/cleanup.h"
#include "ipc/base/fd.h"
#include "ipc/base/mapping.h"
#include "libclient/connection/call.h"
#include "libclient/connection/numa.h"
#include "libclient/files.h"
#include "libclient/image/packing.h"
#include "libclient/owner.h"
#include "libclient/target.h"
#include "libclient/version/difference.h"
#include "libclient/version/layout_builder.h"
#include "libclient/version_layout.h"
#include "libclient/writer.h"

#define PAUSE_TIMEOUT_MS 10000
/* How often a layout is chosen that does not fit the newest version any more when it is used. */
#define CHOICES_MAX 5

static_assert((int)WEIGHTD_WAIT == (int)WIRE_POLICY_WAIT &&
		      (int)WEIGHTD_EVICT == (int)WIRE_POLICY_EVICT &&
		      (int)WEIGHTD_KILL == (int)WIRE_POLICY_KILL,
	      "policies are ABI");

CLEANUP_POINTER(struct weightd_layout, weightd_layout_free);

/* A create on its way. */
struct creation {
	struct weightd *w;
	struct weightd_writer *wr;
	const struct weightd_layout *given;
	const struct writer_hooks *hooks;
	struct client_call call; /* create, and the start of create image */
	uint32_t flags; /* WIRE_CREATE_* as the caller has them */
	bool has_owner; /* the caller names the owner of the buffer */
	struct numa_wish numa;
	int layout_fd; /* of the layout to ask with */
	bool may_be_image; /* nothing is known of the server or the buffer that forbids it */
	uint64_t replaced; /* version of the flat form that an image follows in a layout of its own; 0: none */
};

static void creation_deinit(struct creation *c)
{
	c->layout_fd = fd_close(c->layout_fd);
	client_call_deinit(&c->call);
}

/* --- Layouts to ask with ------------------------------------------------------------------------ */

/* Maps a sealed copy of the layout, which is sent. */
static int seal_layout(const struct weightd_layout *layout, void **ret_image, uint64_t *ret_size,
		       int *ret_fd)
{
	cleanup(fd_closep) int fd = -1;
	cleanup(freep) void *image = NULL;
	int r = weightd_layout_image(layout, &image, ret_size);

	if (r == 0)
		r = fd_sealed_copy("weightd-layout", image, *ret_size, &fd);
	if (r == 0)
		r = mapping_new_plain(fd, *ret_size, ret_image);
	if (r == 0)
		*ret_fd = take_fd(fd);
	return r;
}

/* Takes the mapped image over. */
static int use_layout(struct creation *c, void *image, uint64_t size)
{
	c->wr->image = image;
	c->wr->image_size = size;
	return layout_open(image, size, &c->wr->layout);
}

/* Takes the descriptor over. */
static void send_layout(struct creation *c, int fd)
{
	(void)fd_close(c->layout_fd);
	c->layout_fd = fd;
}

/* Sends a copy of it: the owner of the original could lock that. */
static int send_copy(struct creation *c)
{
	int fd = -1;
	int r = fd_sealed_copy("weightd-layout", c->wr->image, c->wr->image_size, &fd);

	if (r == 0)
		send_layout(c, fd);
	return r;
}

static const struct layout *given_layout(const struct creation *c)
{
	return writer_has_adopted(c->wr) ? &c->wr->adoption.given : &c->wr->layout;
}

/* Uses the mapped image, which it takes over, instead of the given layout. */
static int adopt_layout(struct creation *c, void **image, uint64_t size)
{
	struct weightd_writer *wr = c->wr;
	struct adoption *a = &wr->adoption;
	int r;

	if (writer_has_adopted(wr)) {
		mapping_free(wr->image, wr->image_size);
	} else {
		a->image = wr->image;
		a->image_size = wr->image_size;
		a->given = wr->layout;
	}
	wr->image = NULL;
	r = use_layout(c, take_ptr(*image), size);
	return r < 0 ? r : adoption_tie(a, &wr->layout);
}

/* Returns to the given layout. */
static int unadopt_layout(struct creation *c)
{
	struct weightd_writer *wr = c->wr;
	cleanup(adoption_deinit) struct adoption a = wr->adoption;
	int r;

	if (!writer_has_adopted(wr))
		return 0;
	wr->adoption = (struct adoption){0};
	mapping_free(take_ptr(wr->image), wr->image_size);
	r = use_layout(c, take_ptr(a.image), a.image_size);
	return r < 0 ? r : send_copy(c);
}

/* --- Forms to ask for --------------------------------------------------------------------------- */

static void ask_flat(struct creation *c)
{
	free(take_ptr(c->wr->header));
	c->wr->header_size = 0;
	c->call.op = c->has_owner ? WIRE_CREATE_OWNED : WIRE_CREATE;
	c->call.request.create_image.data_offset = 0;
}

/* Takes the header over. */
static void ask_image(struct creation *c, void *header, uint64_t size)
{
	free(c->wr->header);
	c->wr->header = header;
	c->wr->header_size = size;
	c->call.op = c->has_owner ? WIRE_CREATE_IMAGE_OWNED : WIRE_CREATE_IMAGE;
	c->call.request.create_image.data_offset = size;
}

static bool asks_image(const struct client_call *call)
{
	return call->op == WIRE_CREATE_IMAGE || call->op == WIRE_CREATE_IMAGE_OWNED;
}

/* True for a layout or a header that no file can have. */
static bool is_unfit(int r)
{
	return r == -EOPNOTSUPP || r == -E2BIG;
}

static bool is_of_file(const struct creation *c, const struct layout *l)
{
	uint8_t hash[HASH_SIZE];

	return c->hooks->verbatim && weightd_layout_hash(c->hooks->verbatim->layout, hash) == 0 &&
	       !memcmp(hash, l->header->hash, HASH_SIZE);
}

/* Asks for an image with the layout that is used, its data at `data_offset` where that is possible. */
static int ask_image_at(struct creation *c, uint64_t data_offset)
{
	void *header;
	uint64_t size;
	int r;

	if (is_of_file(c, &c->wr->layout))
		r = verbatim_header(c->hooks->verbatim, data_offset, &header, &size);
	else
		r = image_header_build(&c->wr->layout, c->hooks->metadata, data_offset, &header,
				       &size);
	if (r == 0)
		ask_image(c, header, size);
	return r;
}

/* The layout of an image that follows no other: a file's, the given one packed, or the given one as it is. */
static int lay_out_image(struct creation *c)
{
	cleanup(weightd_layout_freep) struct weightd_layout *packed = NULL;
	const struct weightd_layout *layout = NULL;
	void *image = NULL;
	uint64_t size;
	int fd, r = 0;

	if (c->hooks->verbatim && c->hooks->verbatim->layout != c->given) {
		layout = c->hooks->verbatim->layout;
	} else if (layout_builder_is_loose(c->given)) {
		r = packing_make(given_layout(c), &packed);
		layout = packed;
	}
	if (r < 0 || !layout)
		return r < 0 ? r : unadopt_layout(c);
	r = seal_layout(layout, &image, &size, &fd);
	if (r < 0)
		return r;
	send_layout(c, fd);
	return adopt_layout(c, &image, size);
}

/* An image that follows no other, if that is possible; -EMEDIUMTYPE. */
static int propose_image(struct creation *c)
{
	int r = c->may_be_image ? lay_out_image(c) : -EMEDIUMTYPE;

	if (r == 0)
		r = ask_image_at(c, 0);
	return is_unfit(r) ? -EMEDIUMTYPE : r;
}

/* A version that follows no other. */
static int propose_own(struct creation *c)
{
	int r = propose_image(c);

	if (r != -EMEDIUMTYPE)
		return r;
	ask_flat(c);
	return unadopt_layout(c);
}

/* The layout of the newest version, and the offset of its data. */
static int propose_newest(struct creation *c, struct version_layout *newest)
{
	int r = 0;

	if (!memcmp(given_layout(c)->header->hash, newest->layout.header->hash, HASH_SIZE))
		r = unadopt_layout(c);
	else
		r = adopt_layout(c, &newest->image, newest->size);
	if (r == 0 && writer_has_adopted(c->wr))
		r = send_copy(c);
	if (r < 0)
		return r;
	r = c->may_be_image && newest->data_offset ? ask_image_at(c, newest->data_offset)
						   : -EOPNOTSUPP;
	if (!is_unfit(r))
		return r;
	ask_flat(c);
	return 0;
}

/* --- The newest version ------------------------------------------------------------------------- */

static int refuse_layout(const struct creation *c, const struct version_layout *newest,
			 const struct difference *d)
{
	const struct wire_create *create = &c->call.request.create;
	bool in_place = newest->flags & WIRE_BUFFER_EXCLUSIVE;
	char text[SENTENCE_MAX], version[32];
	/* The sentence around it takes less than 160 bytes beside the names. */
	size_t room = sizeof(text) - 160 - strlen(create->name) - strlen(create->device);

	(void)snprintf(version, sizeof(version), "version %" PRIu64, newest->version);
	difference_describe(d, given_layout(c), &newest->layout, "the new layout", version, text,
			    room);
	return sentence_set(&c->w->sentence, -EPROTOTYPE,
			    "the layout differs from that of '%s@%" PRIu64 "' on %s%s (%s); %s",
			    create->name, newest->version, create->device,
			    in_place ? ", which is written in place" : "", text,
			    in_place ? "remove the buffer first"
				     : "ask for a new layout (weightctl load --new-layout), or "
				       "remove the buffer first");
}

/*
 * An image can follow a version of the flat form, which an earlier weightd may have published. Its layout is another
 * one then, and readers attach anew. It does not replace that version: one with other tensors, published meanwhile,
 * would be freed instead without a question.
 */
static int propose_after(struct creation *c, struct version_layout *newest)
{
	bool is_image = !newest->data_offset && !(c->flags & WIRE_CREATE_REPLACE);
	int r = is_image ? propose_image(c) : -EMEDIUMTYPE;

	if (r == -EMEDIUMTYPE)
		return propose_newest(c, newest);
	if (r == 0) {
		c->call.request.create.flags |= WIRE_CREATE_NEW_LAYOUT;
		c->replaced = newest->version;
	}
	return r;
}

/* -EPROTOTYPE: the newest version has other tensors; the sentence has the differences. */
static int follow_newest(struct creation *c, struct version_layout *newest)
{
	const struct wire_create *create = &c->call.request.create;
	struct difference d;
	int r = difference_find(given_layout(c), &newest->layout, &d);

	if (r > 0)
		return refuse_layout(c, newest, &d);
	if (newest->flags)
		c->may_be_image = false; /* exclusive or reusable */
	if (r == 0)
		r = propose_after(c, newest);
	if (r < 0)
		return sentence_set(&c->w->sentence, r,
				    "the layout of '%s@%" PRIu64 "' on %s cannot be used: %s",
				    create->name, newest->version, create->device, strerror(-r));
	return 0;
}

static int follow_none(struct creation *c)
{
	int r = propose_own(c);

	return r < 0 ? sentence_set(&c->w->sentence, r, "the layout of '%s' cannot be made: %s",
				    c->call.request.create.name, strerror(-r))
		     : 0;
}

static int look_at_newest(struct creation *c, struct version_layout *ret)
{
	const struct wire_create *create = &c->call.request.create;

	return version_layout_init(ret, c->w, create->name, create->device, 0);
}

/* True for the results of a look at a newest version that is not there, or has no layout to see. */
static bool is_none(int r)
{
	return r == -ENOENT || r == -ENODATA || r == -EACCES;
}

/*
 * A new layout that turns out to be that of the newest version: where the library writes the header, the data begin where
 * they did, so that readers can swap.
 */
static int keep_offset(struct creation *c)
{
	cleanup(version_layout_deinit) struct version_layout newest = {0};
	int r;

	if (!asks_image(&c->call) || c->hooks->verbatim)
		return 0;
	r = look_at_newest(c, &newest);
	if (r < 0)
		return is_none(r) ? 0 : r;
	if (!newest.data_offset ||
	    memcmp(c->wr->layout.header->hash, newest.layout.header->hash, HASH_SIZE) != 0)
		return 0;
	r = ask_image_at(c, newest.data_offset);
	return is_unfit(r) ? 0 : r;
}

/* Decides what to ask for next. */
static int choose(struct creation *c)
{
	cleanup(version_layout_deinit) struct version_layout newest = {0};
	bool is_new = c->flags & WIRE_CREATE_NEW_LAYOUT;
	int r;

	c->call.request.create.flags = c->flags;
	c->replaced = 0;
	r = is_new ? -ENODATA : look_at_newest(c, &newest);
	if (r == 0)
		r = follow_newest(c, &newest);
	else if (is_none(r))
		r = follow_none(c); /* the server has a sentence for -EACCES */
	if (r == 0 && is_new)
		r = keep_offset(c);
	if (r == 0 && c->hooks->adopt && writer_has_adopted(c->wr))
		r = c->hooks->adopt(c->hooks->userdata, c->wr);
	return r;
}

/* 1: another writer has published since the choice, and the version that it was made for is not the newest. */
static int is_outdated(struct creation *c)
{
	cleanup(version_layout_deinit) struct version_layout newest = {0};
	int r;

	if (!c->replaced)
		return 0;
	r = look_at_newest(c, &newest);
	/* The server may have freed it for this version. */
	if (r == -ENOENT || r == -ENODATA)
		return 0;
	return r < 0 ? r : newest.version != c->replaced;
}

/* --- Requests ----------------------------------------------------------------------------------- */

/* Identifies a create that is sent again after a restart. */
static uint64_t new_cookie(void)
{
	uint64_t cookie = 0;

	while (!cookie)
		if (getrandom(&cookie, sizeof(cookie), 0) != sizeof(cookie))
			cookie = 0; /* interrupted by a signal */
	return cookie;
}

/* A restart may have been that of another release. */
static int create_again(struct weightd *w, struct client_call *call)
{
	bool has_owner = call->op == WIRE_CREATE_OWNED || call->op == WIRE_CREATE_IMAGE_OWNED;
	int r;

	if (!w->provides)
		call->request.create.flags &= ~WIRE_CREATE_EARLY;
	r = numa_ask(w, &container_of(call, struct creation, call)->numa);
	if (r < 0)
		return w->fd < 0 ? 0 : r; /* lost again, as the request will find */
	if (!asks_image(call) || w->has_images)
		return has_owner ? owner_again(w, call) : 0;
	return sentence_set(&w->sentence, -ECONNABORTED,
			    "weightd was restarted as an earlier release, whose versions are no "
			    "files; create '%s' again",
			    call->request.create.name);
}

/* Ends a version that was created for nothing. */
static void give_up(struct creation *c)
{
	client_end(c->w, WIRE_ABORT, c->call.reply.create.writer);
	client_call_deinit(&c->call);
}

static int ask_once(struct creation *c)
{
	int r;

	c->call.request.create.cookie = new_cookie();
	if (c->hooks->is_early && c->w->provides)
		c->call.request.create.flags |= WIRE_CREATE_EARLY;
	r = c->w->fd < 0 ? 0 : numa_ask(c->w, &c->numa);
	if (r < 0 && c->w->fd >= 0)
		return r;
	r = client_call_run(c->w, &c->call);
	if (r < 0)
		return r;
	r = is_outdated(c);
	if (r != 0)
		give_up(c);
	return r > 0 ? -EPROTOTYPE : r;
}

/* True if there is something else to ask for. */
static bool is_retried(struct creation *c, int r)
{
	if (r == -EMEDIUMTYPE && asks_image(&c->call)) {
		c->may_be_image = false;
		return true;
	}
	/* An older server has a sentence, and no layouts to look at. */
	return r == -EPROTOTYPE && c->w->sends_layouts && !(c->flags & WIRE_CREATE_NEW_LAYOUT);
}

/* True if the newest version determines what to ask for, and not the server's refusal. */
static bool looks_first(const struct creation *c)
{
	return c->may_be_image && (c->hooks->verbatim || layout_builder_is_loose(c->given) ||
				   c->wr->layout.header->alignment == LAYOUT_ALIGNMENT_MIN);
}

/*
 * Another layout than the newest version's, before the server was asked at all. It has reasons that go first, as that the
 * buffer belongs to another user, and accepts the layout if there is another newest version by now.
 */
static int ask_in_vain(struct creation *c)
{
	struct sentence said = c->w->sentence;
	int r;

	ask_flat(c);
	r = unadopt_layout(c);
	if (r == 0)
		r = ask_once(c);
	if (r == -EPROTOTYPE)
		c->w->sentence = said;
	return r;
}

static int ask_for_slot(struct creation *c)
{
	int r = 0;

	for (unsigned i = 0; i < CHOICES_MAX; i++) {
		if (i > 0 || looks_first(c))
			r = choose(c);
		if (r == -EPROTOTYPE && i == 0)
			return ask_in_vain(c);
		if (r < 0)
			return r;
		r = ask_once(c);
		if (!is_retried(c, r))
			break;
	}
	return r;
}

static uint32_t create_flags(const struct weightd_create_options *o)
{
	return (o->new_layout ? WIRE_CREATE_NEW_LAYOUT : 0) |
	       (o->exclusive ? WIRE_CREATE_EXCLUSIVE : 0) |
	       (o->reusable ? WIRE_CREATE_REUSABLE : 0) | (o->replace ? WIRE_CREATE_REPLACE : 0) |
	       (o->handle == WEIGHTD_HANDLE_IPC ? WIRE_CREATE_IPC : 0);
}

static int check_options(struct weightd *w, const struct weightd_create_options *o)
{
	if ((unsigned)o->policy > WEIGHTD_KILL)
		return sentence_set(&w->sentence, -EINVAL, "there is no policy %d", (int)o->policy);
	if ((unsigned)o->handle > WEIGHTD_HANDLE_IPC)
		return sentence_set(&w->sentence, -EINVAL, "there is no handle %d", (int)o->handle);
	return 0;
}

static int fill_request(struct creation *c, const char *name, const struct weightd_create_options *o)
{
	struct wire_create *create = &c->call.request.create;
	int r = check_options(c->w, o);

	if (r == 0)
		r = owner_check_server(c->w, o->owner);
	if (r == 0)
		r = client_put_target(c->w, name, o->device, create->name, create->device);
	if (r < 0)
		return r;
	r = numa_find_wish(o->numa, create->device, &c->numa, &c->w->sentence);
	if (r < 0)
		return r;
	create->mode = o->mode;
	create->keep = o->keep;
	create->timeout_ms = o->pause_timeout_ms ? o->pause_timeout_ms : PAUSE_TIMEOUT_MS;
	create->policy = (uint32_t)o->policy;
	create->flags = c->flags = create_flags(o);
	c->has_owner = o->owner;
	c->call.request.create_owned.owner = o->owner ? *o->owner : 0;
	c->may_be_image = c->w->has_images && !o->exclusive && !o->reusable &&
			  !strcmp(create->device, "host");
	return 0;
}

/* The caller's header may come from another machine. */
static int check_given_header(struct creation *c, const char *name,
			      const struct weightd_create_options *o)
{
	struct sentence *s = &c->w->sentence;
	int r;

	if (!o->header)
		return 0;
	if (!o->header_size || o->header_size > WIRE_DATA_OFFSET_MAX)
		return sentence_set(s, -EINVAL, "a header of %" PRIu64 " bytes is no header of '%s'",
				    o->header_size, name);
	r = verbatim_check(o->header, o->header_size, &c->wr->layout, s);
	return r < 0 ? sentence_set(s, r == -EILSEQ ? -EINVAL : r,
				    "'%s' cannot be made with this header, because it %s", name,
				    s->text)
		     : 0;
}

static int creation_run(struct creation *c, const char *name, const struct weightd_create_options *o)
{
	void *image = NULL;
	uint64_t size;
	int fd, r = fill_request(c, name, o);

	if (r < 0)
		return r;
	r = seal_layout(c->given, &image, &size, &fd);
	if (r == 0) {
		send_layout(c, fd);
		r = use_layout(c, image, size);
	}
	if (r < 0)
		return sentence_set(&c->w->sentence, r, "the layout of '%s' cannot be made: %s",
				    name, r == -EINVAL ? "it has no tensors" : strerror(-r));
	ask_flat(c);
	r = check_given_header(c, name, o);
	if (r == 0 && o->replace)
		files_keep(c->wr, c->call.request.create.name, c->call.request.create.device);
	if (r == 0)
		r = ask_for_slot(c);
	if (r == 0)
		r = writer_begin(c->wr, &c->call);
	return r;
}

int writer_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		  const struct weightd_create_options *options, const struct writer_hooks *hooks,
		  struct weightd_writer **ret)
{
	cleanup(client_writer_freep) struct weightd_writer *wr = client_writer_new(w);
	cleanup(creation_deinit) struct creation c = {
		.w = w,
		.wr = wr,
		.given = layout,
		.hooks = hooks,
		.layout_fd = -1,
		/* Providing the memory takes as long as it takes. */
		.call = {.timeout_ms = -1,
			 .tick = hooks->tick,
			 .userdata = hooks->userdata,
			 .again = create_again},
	};
	struct weightd_create_options o = {0};
	struct writer_hooks own = *hooks;
	struct image_verbatim verbatim;
	int r = 0;

	client_call_init_fds(&c.call);
	c.call.fds = &c.layout_fd;
	if (!wr)
		return sentence_set(&w->sentence, -ENOMEM, "out of memory");
	if (options)
		r = client_copy_options(w, options, offsetof(struct weightd_create_options, mode),
					&o, sizeof(o));
	if (r == 0 && o.header) {
		verbatim = (struct image_verbatim){layout, o.header, o.header_size};
		own.verbatim = &verbatim;
		c.hooks = &own;
	}
	if (r == 0)
		r = creation_run(&c, name, &o);
	if (r == 0)
		*ret = take_ptr(wr);
	return r;
}

int weightd_create(struct weightd *w, const char *name, const struct weightd_layout *layout,
		   const struct weightd_create_options *options, struct weightd_writer **ret)
{
	return writer_create(w, name, layout, options, &(struct writer_hooks){0}, ret);
}
