/*
 * Another plug-in of NCCL's profiler, of versions up to NEWEST: it writes each of its calls as a line into the file
 * $NEXT_LOG, and ends the process if an argument is not one that it returned before.
 *
 * Its mask is $NEXT_MASK. $NEXT_FAILS: it cannot be initialized.
 */
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MARK 0x6e657874

struct object {
	uint32_t mark;
	int number;
	char kind;
};

/* As far as it looks into one. */
struct descr {
	union {
		uint64_t type;
		uint8_t type_v4;
	};
	void *parent;
	int rank;
	uint64_t body[11];
};

typedef void (*log_fn)(int level, unsigned long flags, const char *file, int line,
		       const char *format, ...);

static int n_objects;
static int version;

static void note(const char *format, ...) __attribute__((format(printf, 1, 2)));
static void note(const char *format, ...)
{
	const char *path = getenv("NEXT_LOG");
	int fd = path ? open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
	va_list args;

	if (fd < 0)
		return;
	va_start(args, format);
	(void)vdprintf(fd, format, args);
	va_end(args);
	(void)close(fd);
}

static struct object *object_new(char kind)
{
	struct object *o = malloc(sizeof(*o));

	if (!o)
		abort();
	*o = (struct object){MARK, __atomic_add_fetch(&n_objects, 1, __ATOMIC_RELAXED), kind};
	return o;
}

/* Objects are never freed: one that is none of them is not this plug-in's. */
static int check(const void *p, char kind)
{
	const struct object *o = p;

	if (!p)
		return 0;
	if (o->mark != MARK || o->kind != kind)
		abort();
	return o->number;
}

static int init(int v, void **context, uint64_t hash, int *mask, const char *name, int n_ranks,
		int rank, log_fn log)
{
	const char *asked = getenv("NEXT_MASK");

	if (getenv("NEXT_FAILS"))
		return 3;
	if (!log)
		abort();
	version = v;
	*context = object_new('c');
	*mask = asked ? atoi(asked) : 0;
	note("init v%d %s %llx %d/%d -> %d\n", v, name ? name : "-", (unsigned long long)hash, rank,
	     n_ranks, check(*context, 'c'));
	return 0;
}

static int start(void *context, void **handle, struct descr *d)
{
	uint64_t type = version == 4 ? d->type_v4 : d->type;
	char more[160] = "";

	*handle = object_new('e');
	if (type == 2)
		(void)snprintf(more, sizeof(more), " %.100s %llu",
			       (const char *)(uintptr_t)d->body[1], (unsigned long long)d->body[4]);
	if (type == 2 && version > 4)
		(void)snprintf(more + strlen(more), sizeof(more) - strlen(more), " group %d",
			       check((const void *)(uintptr_t)d->body[10], 'e'));
	note("start %llu in %d under %d%s -> %d\n", (unsigned long long)type, check(context, 'c'),
	     check(d->parent, 'e'), more, check(*handle, 'e'));
	return 0;
}

static int stop(void *handle)
{
	note("stop %d\n", check(handle, 'e'));
	return 0;
}

static int state(void *handle, int s, uint64_t *args)
{
	note("state %d of %d: %lld\n", s, check(handle, 'e'), args ? (long long)*args : -1);
	return 0;
}

static int finalize(void *context)
{
	note("finalize %d\n", check(context, 'c'));
	return 0;
}

static int init_v4(void **context, int *mask, const char *name, uint64_t hash, int n_nodes,
		   int n_ranks, int rank, log_fn log)
{
	(void)n_nodes;
	return init(4, context, hash, mask, name, n_ranks, rank, log);
}

struct table_v4 {
	const char *name;
	int (*init)(void **context, int *mask, const char *name, uint64_t hash, int n_nodes,
		    int n_ranks, int rank, log_fn log);
	int (*start)(void *context, void **handle, struct descr *d);
	int (*stop)(void *handle);
	int (*state)(void *handle, int s, uint64_t *args);
	int (*finalize)(void *context);
};

extern const struct table_v4 ncclProfiler_v4;
const struct table_v4 ncclProfiler_v4 = {"next", init_v4, start, stop, state, finalize};

#if NEWEST > 4
static int init_newest(void **context, uint64_t hash, int *mask, const char *name, int n_nodes,
		       int n_ranks, int rank, log_fn log)
{
	(void)n_nodes;
	return init(NEWEST, context, hash, mask, name, n_ranks, rank, log);
}

struct table {
	const char *name;
	int (*init)(void **context, uint64_t hash, int *mask, const char *name, int n_nodes,
		    int n_ranks, int rank, log_fn log);
	int (*start)(void *context, void **handle, struct descr *d);
	int (*stop)(void *handle);
	int (*state)(void *handle, int s, uint64_t *args);
	int (*finalize)(void *context);
};

#define TABLE_OF(version) ncclProfiler_v##version
#define TABLE(version) TABLE_OF(version)
extern const struct table TABLE(NEWEST);
const struct table TABLE(NEWEST) = {"next", init_newest, start, stop, state, finalize};
#endif
