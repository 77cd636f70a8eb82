/*
 * Loads the program in usdt.bpf.c, and emits what weightd reports. The kernel vouches for none of it, and any user
 * may run a program of that name: each event names the weightd that reported it.
 */
#include "bpf/probe/usdt.h"

#include <bpf/bpf.h>
#include <bpf/libbpf.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bpf/base/json_null.h"
#include "bpf/base/process.h"
#include "bpf/base/ring.h"
#include "bpf/elf/usdt_note.h"
#include "bpf/event/event.h"
#include "bpf/probe/attached.h"
#include "bpf/probe/uprobe_multi.h"
#include "bpf/probe/usdt.bpf.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/list.h"
#include "ipc/base/num.h"
#include "server/base/loop.h"

#include <bpf/probe/usdt.skel.h>

#define NOTES_MAX 64 /* that are looked at */
#define PATH_SIZE 32 /* "/proc/self/fd/1048576" */

#if defined(__x86_64__)
static const char *const registers[] = {"8@%rdi", "8@%rsi", "8@%rdx", "8@%rcx", "8@%r8", "8@%r9"};
#else
static const char *const registers[] = {"8@x0", "8@x1", "8@x2", "8@x3", "8@x4", "8@x5"};
#endif

struct usdt {
	struct collector *collector;
	struct usdt_bpf *bpf;
	struct ring ring;
	struct source source;
	struct attached attached;
	uint64_t pid_namespace; /* ours */
	uint64_t n_missed; /* counted already */
	uint64_t began_ns;
};

/* The process that acted, as weightd reports it. */
struct actor {
	pid_t pid; /* 0: it is of a namespace that we do not see into */
	uid_t uid;
	char comm[COMM_SIZE]; /* "": unknown */
};

static struct actor actor_of(const struct usdt *u, const struct usdt_event *s, uint64_t word)
{
	struct actor actor = {.uid = (uid_t)(word >> 32)};

	if (s->pid_namespace == u->pid_namespace)
		actor.pid = (pid_t)(uint32_t)word;
	if (actor.pid)
		process_read_comm(actor.pid, actor.comm);
	return actor;
}

static void set_actor(json_t *event, const struct actor *actor)
{
	if (actor->pid)
		event_set_number(event, "pid", (uint64_t)actor->pid);
	event_set_number(event, "uid", actor->uid);
	(void)json_object_set_new(event, "comm", text_or_null(actor->comm));
}

static json_t *usdt_event_json(const struct usdt_event *s, const char *word)
{
	return json_pack("{ss ss sI sn sn sn sn so so s{sI sI}}", "kind", "act", "act", word, "ns",
			 (json_int_t)s->ns, "took_ns", "pid", "uid", "comm", "buffer",
			 text_or_null(s->name), "device", text_or_null(s->device), "weightd", "pid",
			 (json_int_t)s->tgid, "uid", (json_int_t)s->uid);
}

/* --- the five --- */

static void take_attach(struct usdt *u, const struct usdt_event *s, json_t *event)
{
	struct actor actor = actor_of(u, s, s->args[2]);
	struct attachment one = {
		.lease = s->args[1],
		.weightd = s->tgid,
		.weightd_uid = s->uid,
		.pid = actor.pid,
		.uid = actor.uid,
		.version = s->args[0],
		.bytes = s->args[3],
		.ns = s->ns,
	};

	memcpy(one.comm, actor.comm, sizeof(one.comm));
	memcpy(one.name, s->name, sizeof(one.name));
	memcpy(one.device, s->device, sizeof(one.device));
	attached_add(&u->attached, &one);
	set_actor(event, &actor);
	event_set_number(event, "version", s->args[0]);
	event_set_number(event, "lease", s->args[1]);
	event_set_number(event, "bytes", s->args[3]);
}

/* The process may have ended: its name is the one that it had when it attached. */
static void take_detach(struct usdt *u, const struct usdt_event *s, json_t *event)
{
	struct attachment *one = attached_find(&u->attached, s->tgid, s->args[1]);
	struct actor actor = actor_of(u, s, s->args[2]);

	if (one) {
		memcpy(actor.comm, one->comm, sizeof(actor.comm));
		attached_remove(&u->attached, one);
	}
	set_actor(event, &actor);
	event_set_number(event, "version", s->args[0]);
	event_set_number(event, "lease", s->args[1]);
	event_set_number(event, "held_ns", s->args[3]);
}

static void take_publish(struct usdt *u, const struct usdt_event *s, json_t *event)
{
	struct actor actor = actor_of(u, s, s->args[1]);

	set_actor(event, &actor);
	event_set_number(event, "version", s->args[0]);
	event_set_number(event, "bytes", s->args[2]);
	event_set_number(event, "took_ns", s->args[3]);
}

static void take_flip(struct usdt *u, const struct usdt_event *s, json_t *event)
{
	(void)u;
	(void)json_object_set_new(event, "before",
				  s->args[0] ? json_integer((json_int_t)s->args[0]) : json_null());
	event_set_number(event, "version", s->args[1]);
}

static void take_quiesce(struct usdt *u, const struct usdt_event *s, json_t *event)
{
	static const char *const phases[] = {"asked", "goes-on", "gave-up"};
	struct actor actor = actor_of(u, s, s->args[1]);

	set_actor(event, &actor);
	(void)json_object_set_new(event, "phase",
				  s->args[0] < ARRAY_LEN(phases) ? json_string(phases[s->args[0]])
								 : json_null());
	event_set_number(event, "readers", s->args[2]);
	if (s->args[0] > 0)
		event_set_number(event, "took_ns", s->args[3]);
}

static const struct {
	const char *name; /* the probe's, and the word */
	unsigned n_args;
	void (*take)(struct usdt *u, const struct usdt_event *s, json_t *event);
} probes[N_USDT_EVENTS] = {
	[USDT_ATTACH] = {"attach", 6, take_attach},    [USDT_DETACH] = {"detach", 6, take_detach},
	[USDT_PUBLISH] = {"publish", 6, take_publish}, [USDT_FLIP] = {"flip", 4, take_flip},
	[USDT_QUIESCE] = {"quiesce", 6, take_quiesce},
};

static void usdt_event_take(void *context, const void *data, size_t size)
{
	const struct usdt_event *s = data;
	struct usdt *u = context;
	json_t *event;

	if (size < sizeof(*s) || s->kind >= N_USDT_EVENTS)
		return;
	event = usdt_event_json(s, probes[s->kind].name);
	probes[s->kind].take(u, s, event);
	event_emit(u->collector, event);
}

void usdt_count_missed(struct usdt *u)
{
	uint64_t n = u->bpf->bss->missed;

	if (n != u->n_missed) {
		event_count_lost(u->collector, n - u->n_missed, EVENTS_OF_WEIGHTD);
		u->attached.n_lost += n - u->n_missed;
	}
	u->n_missed = n;
}

static void on_usdt_events(struct source *s, uint32_t events)
{
	struct usdt *u = container_of(s, struct usdt, source);

	(void)events;
	ring_take(&u->ring);
	usdt_count_missed(u);
}

/* --- programs --- */

static bool arguments_are(const char *arguments, unsigned n)
{
	for (unsigned i = 0; i < n; i++) {
		size_t size = strlen(registers[i]);

		if (strncmp(arguments, registers[i], size) != 0)
			return false;
		arguments += size;
		if (*arguments != (i + 1 < n ? ' ' : 0))
			return false;
		arguments++;
	}
	return true;
}

static bool kind_of(const struct usdt_note *note, uint64_t *ret)
{
	for (uint64_t i = 0; i < N_USDT_EVENTS; i++)
		if (!strcmp(note->name, probes[i].name) &&
		    arguments_are(note->arguments, probes[i].n_args)) {
			*ret = i;
			return true;
		}
	return false;
}

int usdt_attach(struct usdt *u, int fd, int *ret_link_fd, char ret_why[WHY_SIZE])
{
	uint64_t offsets[NOTES_MAX], counters[NOTES_MAX], kinds[NOTES_MAX];
	struct usdt_note notes[NOTES_MAX];
	char path[PATH_SIZE];
	struct uprobe_multi multi = {
		.path = path, .offsets = offsets, .counters = counters, .cookies = kinds};
	int n = usdt_note_find(fd, "weightd", notes, NOTES_MAX), r;

	for (int i = 0; i < n && i < NOTES_MAX; i++) {
		if (!kind_of(&notes[i], &kinds[multi.n]))
			continue;
		offsets[multi.n] = notes[i].offset;
		counters[multi.n++] = notes[i].counter;
	}
	if (multi.n == 0) {
		(void)snprintf(ret_why, WHY_SIZE, "%s",
			       n < 0    ? "it is damaged"
			       : n == 0 ? "it has no probes: it is older than these, or was built "
					  "without <sys/sdt.h>"
					: "this weightd-trace does not support its probes");
		return n < 0 ? n : -ENOENT;
	}
	(void)snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	r = uprobe_multi_attach(bpf_program__fd(u->bpf->progs.on_probe), &multi, ret_link_fd);
	if (r < 0)
		(void)snprintf(ret_why, WHY_SIZE, "the kernel refuses it: %s", strerror(-r));
	return r < 0 ? r : (int)multi.n;
}

/* --- its life --- */

static int usdt_load(struct usdt *u)
{
	struct stat st;
	int r;

	if (stat("/proc/self/ns/pid", &st) < 0)
		return -errno;
	u->pid_namespace = st.st_ino;
	u->bpf = usdt_bpf__open();
	if (!u->bpf)
		return -errno;
	(void)bpf_program__set_expected_attach_type(u->bpf->progs.on_probe,
						    UPROBE_MULTI_ATTACH_TYPE);
	r = bpf_map__set_max_entries(u->bpf->maps.events, u->collector->ring_size);
	if (r == 0)
		r = usdt_bpf__load(u->bpf);
	if (r < 0)
		return r;
	r = ring_open(&u->ring, u->bpf->maps.events, usdt_event_take, u);
	if (r < 0)
		return r;
	return loop_add(u->collector->loop, &u->source, ring_fd(&u->ring), EPOLLIN, on_usdt_events);
}

int usdt_open(struct collector *c, struct usdt **ret)
{
	struct usdt *u = calloc(1, sizeof(*u));
	int r;

	if (!u)
		return -ENOMEM;
	u->collector = c;
	u->began_ns = num_now_ns();
	attached_init(&u->attached);
	r = usdt_load(u);
	if (r < 0) {
		usdt_close(u);
		return r;
	}
	*ret = u;
	return 0;
}

void usdt_close(struct usdt *u)
{
	if (!u)
		return;
	loop_remove(&u->source); /* the loop may go on without it */
	ring_close(&u->ring);
	usdt_bpf__destroy(u->bpf);
	attached_deinit(&u->attached);
	free(u);
}

const struct bpf_object *usdt_object(const struct usdt *u)
{
	return u->bpf->obj;
}

/* --- attachments --- */

static void add_attachment(void *context, const struct attachment *one)
{
	struct answer *a = context;

	a->add(a, json_pack("{ss sI so sI so so so sI sI sI s{sI sI}}", "kind", "attached", "ns",
			    (json_int_t)one->ns, "pid", pid_or_null(one->pid), "uid",
			    (json_int_t)one->uid, "comm", text_or_null(one->comm), "buffer",
			    text_or_null(one->name), "device", text_or_null(one->device), "version",
			    (json_int_t)one->version, "lease", (json_int_t)one->lease, "bytes",
			    (json_int_t)one->bytes, "weightd", "pid", (json_int_t)one->weightd,
			    "uid", (json_int_t)one->weightd_uid));
}

void usdt_answer(struct usdt *u, struct answer *a)
{
	ring_take_all(&u->ring);
	usdt_count_missed(u);
	attached_each(&u->attached, add_attachment, a);
	if (u->attached.n_lost)
		a->add(a, json_pack("{ss sI ss sI sI}", "kind", "gap", "lost",
				    (json_int_t)u->attached.n_lost, "source", "attached", "from_ns",
				    (json_int_t)u->began_ns, "to_ns", (json_int_t)num_now_ns()));
}
