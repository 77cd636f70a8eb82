/*
 * The client owns its queue. Sending never blocks and never frees the client: a broken connection ends with the next
 * event of its descriptor.
 */
#include "bpf/packets.h"

#include <errno.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include "bpf/tracer.h"
#include "ipc/base/cleanup.h"
#include "ipc/base/num.h"

#define QUEUE_MAX 8192 /* packets that a client has not read */

struct packet {
	struct list link; /* client::queue */
	char *text;
};

static void packet_free(struct client *c, struct packet *p)
{
	list_remove(&p->link);
	c->n_queue--;
	free(p->text);
	free(p);
}

/* A hang-up is reported anyhow, but while the client is not read once is enough. */
void packets_wait(struct client *c)
{
	uint32_t events = c->is_closing ? EPOLLET : EPOLLIN;

	loop_modify(&c->source, list_empty(&c->queue) ? events : EPOLLOUT);
}

/*
 * A broken client is freed at the next event of its descriptor, when no function is working on it.
 */
void packets_flush(struct client *c)
{
	struct packet *p, *next;

	list_for_each_safe(p, next, &c->queue, link) {
		if (send(c->source.fd, p->text, strlen(p->text), MSG_DONTWAIT | MSG_NOSIGNAL) < 0 &&
		    errno == EAGAIN)
			break;
		packet_free(c, p);
		c->read_ns = num_now_ns();
	}
	packets_wait(c);
}

/* Takes `json`. False: there was no room, or no memory. */
static bool queue_packet(struct client *c, json_t *json, unsigned queue_max)
{
	cleanup(json_decrefp) json_t *owned = json;
	struct packet *p = c->n_queue < queue_max ? malloc(sizeof(*p)) : NULL;

	if (p)
		p->text = json ? json_dumps(json, JSON_COMPACT) : NULL;
	if (!p || !p->text) {
		free(p);
		c->tracer->metrics.lost_packets++;
		return false;
	}
	if (list_empty(&c->queue))
		c->read_ns = num_now_ns();
	list_append(&c->queue, &p->link);
	c->n_queue++;
	packets_flush(c);
	return true;
}

void packets_send(struct client *c, json_t *json, unsigned queue_max)
{
	c->lost += !queue_packet(c, json, queue_max);
}

void packets_answer(struct client *c, json_t *json)
{
	c->cut += !queue_packet(c, json, QUEUE_MAX);
}

void packets_answer_end(struct client *c, json_t *json)
{
	packets_send(c, json, UINT_MAX);
}

void packets_clear(struct client *c)
{
	struct packet *p, *next;

	list_for_each_safe(p, next, &c->queue, link)
		packet_free(c, p);
}
