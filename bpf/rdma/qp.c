/*
 * Hashed with a secret key: a user that chooses numbers cannot put all of them into one bucket.
 */
#include "bpf/rdma/qp.h"

#include <arpa/inet.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#define XXH_INLINE_ALL
#include <xxhash.h>

struct qp_user {
	struct list link; /* qps::users */
	uid_t uid;
	struct list there, over; /* struct qp, the oldest first */
	unsigned n; /* entries of both lists */
};

void qps_init(struct qps *s)
{
	*s = (struct qps){};
	/* So early in a machine's life that there is nothing random, it is as good as none. */
	(void)!getrandom(s->key, sizeof(s->key), GRND_NONBLOCK);
	list_init(&s->users);
	for (unsigned i = 0; i < QP_BUCKETS; i++)
		list_init(&s->buckets[i]);
}

/* A user without queue pairs is freed, too. */
static void qp_drop(struct qps *s, struct qp *qp)
{
	struct qp_user *user = qp->user;

	list_remove(&qp->link);
	list_remove(&qp->in_bucket);
	free(qp);
	s->n--;
	if (--user->n > 0)
		return;
	list_remove(&user->link);
	free(user);
}

void qps_deinit(struct qps *s)
{
	struct qp *qp, *next;

	for (unsigned i = 0; i < QP_BUCKETS; i++)
		list_for_each_safe(qp, next, &s->buckets[i], in_bucket)
			qp_drop(s, qp);
}

static struct list *bucket_of(const struct qps *s, const struct qp_name *name)
{
	const uint64_t words[] = {(uint64_t)name->pid, name->began_ticks, name->number};
	uint64_t hash = XXH3_64bits_withSecret(words, sizeof(words), s->key, sizeof(s->key));

	return (struct list *)&s->buckets[hash % QP_BUCKETS];
}

static bool are_of_one_number(const struct qp_name *a, const struct qp_name *b)
{
	return a->pid == b->pid && a->began_ticks == b->began_ticks && a->number == b->number;
}

static bool are_equal(const struct qp_name *a, const struct qp_name *b)
{
	return are_of_one_number(a, b) && !strncmp(a->device, b->device, QP_DEVICE_SIZE);
}

static bool may_be_equal(const struct qp_name *a, const struct qp_name *b)
{
	return are_of_one_number(a, b) &&
	       (!*a->device || !*b->device || !strncmp(a->device, b->device, QP_DEVICE_SIZE));
}

static bool is_there(const struct qp *qp)
{
	return qp->ended_ns == UINT64_MAX;
}

static struct qp *find_there(const struct qps *s, const struct qp_name *name)
{
	struct qp *qp;

	list_for_each(qp, bucket_of(s, name), in_bucket)
		if (is_there(qp) && are_equal(&qp->name, name))
			return qp;
	return NULL;
}

static void qp_end(struct qp *qp, uint64_t ns)
{
	qp->ended_ns = ns;
	list_remove(&qp->link);
	list_append(&qp->user->over, &qp->link);
}

static struct qp_user *user_of(struct qps *s, uid_t uid)
{
	struct qp_user *user;

	list_for_each(user, &s->users, link)
		if (user->uid == uid)
			return user;
	user = calloc(1, sizeof(*user));
	if (!user)
		return NULL;
	user->uid = uid;
	list_init(&user->there);
	list_init(&user->over);
	list_append(&s->users, &user->link);
	return user;
}

static void drop_oldest_of(struct qps *s, struct qp_user *user)
{
	qp_drop(s,
		list_first(list_empty(&user->over) ? &user->there : &user->over, struct qp, link));
}

/* In its bucket, of its user, and of all. The new one is the newest of each, and stays. */
static void qps_make_room(struct qps *s, const struct qp *new)
{
	struct qp_user *user, *largest = list_first(&s->users, struct qp_user, link);
	struct qp *qp, *oldest = NULL;
	unsigned n = 0;

	list_for_each(qp, bucket_of(s, &new->name), in_bucket) {
		if (qp->user != new->user)
			continue;
		n++;
		if (!oldest || (is_there(oldest) && !is_there(qp)))
			oldest = qp;
	}
	if (n > QPS_OF_BUCKET_MAX)
		qp_drop(s, oldest);
	if (new->user->n > QPS_OF_USER_MAX)
		drop_oldest_of(s, new->user);
	if (s->n <= QPS_MAX)
		return;
	list_for_each(user, &s->users, link)
		if (user->n > largest->n)
			largest = user;
	drop_oldest_of(s, largest);
}

void qps_make(struct qps *s, const struct qp *qp)
{
	struct qp *before = find_there(s, &qp->name), *copy = malloc(sizeof(*copy));
	struct qp_user *user;

	if (before) /* its end was not seen */
		qp_end(before, qp->cause.ns);
	user = copy ? user_of(s, qp->uid) : NULL;
	if (!user) {
		free(copy);
		return;
	}
	*copy = *qp;
	copy->user = user;
	copy->began_ns = qp->cause.ns;
	copy->ended_ns = UINT64_MAX;
	list_append(&user->there, &copy->link);
	list_append(bucket_of(s, &copy->name), &copy->in_bucket);
	user->n++;
	s->n++;
	qps_make_room(s, copy);
}

static bool is_connected(const struct qp_peer *peer)
{
	return peer->has_qp || peer->has_path;
}

static bool are_same(const struct qp_peer *a, const struct qp_peer *b)
{
	return a->qp == b->qp && a->lid == b->lid && a->port == b->port &&
	       !memcmp(a->gid, b->gid, sizeof(a->gid)) && a->has_qp == b->has_qp &&
	       a->has_path == b->has_path && a->has_gid == b->has_gid;
}

void qps_connect(struct qps *s, const struct qp *qp)
{
	struct qp *known = find_there(s, &qp->name);

	if (!known || (is_connected(&known->peer) && !are_same(&known->peer, &qp->peer))) {
		qps_make(s, qp);
		return;
	}
	known->cause = qp->cause;
	known->peer = qp->peer;
}

void qps_destroy(struct qps *s, const struct qp_name *name, uint64_t called_ns, uint64_t ns)
{
	struct qp *qp;

	list_for_each(qp, bucket_of(s, name), in_bucket)
		if (is_there(qp) && may_be_equal(&qp->name, name) && qp->began_ns <= called_ns)
			qp_end(qp, ns);
}

const struct qp *qps_find(const struct qps *s, const struct qp_name *name, uint64_t since_ns,
			  uint64_t until_ns)
{
	const struct qp *qp, *found = NULL;

	if (since_ns > until_ns)
		return NULL;
	list_for_each(qp, bucket_of(s, name), in_bucket) {
		if (!may_be_equal(&qp->name, name) || qp->began_ns > since_ns ||
		    qp->ended_ns < until_ns)
			continue;
		if (found)
			return NULL;
		found = qp;
	}
	return found;
}

void qp_peer_set(json_t *event, const struct qp_peer *peer)
{
	char gid[INET6_ADDRSTRLEN];

	if (peer->has_qp)
		(void)json_object_set_new(event, "peer_qp", json_integer(peer->qp));
	if (!peer->has_path)
		return;
	(void)json_object_set_new(event, "port", json_integer(peer->port));
	(void)json_object_set_new(event, "peer_lid", json_integer(peer->lid));
	if (peer->has_gid && inet_ntop(AF_INET6, peer->gid, gid, sizeof(gid)))
		(void)json_object_set_new(event, "peer_gid", json_string(gid));
}
