/*
 * Updates in place of exclusive buffers: quiesce, deadline, evict, TORN, resume
 *
 * One exclusive buffer: one slot which is never sealed, readers that map it, writers that update it, a
 * server that may be killed between any two steps (POINT). test_model.py checks it with spin and checks
 * that each BUG_ switch, a sabotage of one rule, is found.
 *
 * What stands for what
 *   Server      server/: server/requests/reader_pause.c, and up to `up = true` server/recovery.c
 *   state, ...  the manifest's record, server/restart/manifest.c. A commit is one step here: publish.pml shows why it may
 *   head_       the word of the head page, ipc/head.c
 *   waiting     an update that was asked for: the head says UPDATING at once, the manifest when the memory is
 *               about to be handed out (writer.c, keep()); so a kill before that leaves things as they were
 *   mapped_w    which writer has the slot open or mapped for writing. What F_SETLEASE(F_RDLCK) tells, through
 *               a read-only descriptor that nobody else has, if writers get descriptors that were opened: the
 *               one of memfd_create() does not count
 *   grace       server/buffers/buffer.c, grace_ns and n_strangers: readers that a killed server had, and this not yet
 *   ask         libclient/connection/call.c: reconnects by itself; LOST where the connection ended unanswered
 *   Polite      a reader that pauses: weightd's clients, libclient/pause.c. It acknowledges between two reads
 *   Blunt       a reader that cannot: weightd_read_begin(), weightd_read_retry()
 * What is left out: as in publish.pml; further, whatever a reader does between two reads. A reader's socket
 * tells it in time: the notice of an eviction is queued before the writer is answered, the kernel ends the
 * connections of a dead server before its successor starts.
 *
 * Never torn:  what a reader accepted, by the word or by a lease that held all the while, is one version.
 * Never lost:  the version that was acknowledged is served until an update began; a committed one, after.
 * Undisturbed: under `wait` no update begins under a polite reader, even one that the restarted server has
 *              not met yet, if readers register before the server's grace ends.
 * Progress:    an update and a publish end (ltl ends): deadlines for readers that do not acknowledge, and for
 *              writers that do not come back.
 */

#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef EVICT
#define EVICT 0 /* the policy: 0 is wait */
#endif
#ifndef WRITERS
#define WRITERS 2 /* one update each */
#endif
#ifndef BLUNT
#define BLUNT 1 /* reads of the blunt reader */
#endif
#ifndef POLITE
#define POLITE 1 /* reads of the polite reader */
#endif
#ifndef PROMPT
#define PROMPT 0 /* readers register before the grace ends */
#endif
#ifndef LIVE
#define LIVE 0 /* kills between two requests only, and the polite reader may never acknowledge */
#endif

#if LIVE
#define POINT skip
#define TOGETHER atomic
#else
#define POINT \
	if \
	:: true \
	:: n_crashes < CRASHES -> goto dead \
	fi
#define TOGETHER
#endif

mtype = { READY, UPDATING, TORN, UPDATE, PUBLISH, ATTACH, REGISTER, ACK, OK, DONE, BUSY, TIMEDOUT, REFUSED, LOST };

/* --- What survives the server: the manifest, the head page, the memory -------------------------- */

mtype state = READY;
byte version = 1;
byte update; /* who updates; kept where it is UPDATING */
byte published; /* by whom the version was, 0 for the first one */

mtype head_state = READY;
byte head_version = 1;

byte mem_a; /* written by nobody yet, then by writer 1 or 2 */
byte mem_b;
byte mapped_w; /* a bit for each writer */
bool mapped_r; /* by the polite reader */

/* --- What dies with it -------------------------------------------------------------------------- */

#define N_CLIENTS 4 /* writers are 1 and 2 */
#define READER 3

bool up;
byte n_crashes;
bool conn[N_CLIENTS];
bool leased; /* to the polite reader */
bool acked;
bool waiting; /* an update, for the readers; nothing was handed out */
bool grace; /* readers of the server before may be missing */
bool armed; /* a deadline runs: of the quiesce, or of a writer that may come back */
bool expired;
chan req = [LIVE * N_CLIENTS] of { mtype, byte, byte }; /* the last: by which server's connection */
chan rep[N_CLIENTS] = [1] of { mtype };

/* --- What only the properties know -------------------------------------------------------------- */

byte content[4]; /* of each version: who wrote it */
byte acked_version = 1;
byte n_running = WRITERS + (BLUNT > 0) + (POLITE > 0);

/* --- The server --------------------------------------------------------------------------------- */

#define bit_of(w) (w)

inline flip()
{
	d_step {
		head_version = version;
		if
		:: waiting -> head_state = UPDATING
		:: else -> head_state = state
		fi
	}
}

inline reply(what)
{
	if
	:: conn[who] -> rep[who]!what
	:: else
	fi
}

/* server/recovery.c. The head was a truth of the server before; it is written again before anybody asks. */
inline recover()
{
#ifdef BUG_FORGET_UPDATE
	if
	:: state == UPDATING -> state = READY
	:: else
	fi;
#endif
	if
	:: true
	:: state == UPDATING && mapped_w == 0 -> state = TORN /* whoever could write it is dead, it seems */
	fi;
	POINT;
	flip();
	POINT;
	d_step {
		assert(head_version >= acked_version); /* never lost */
		armed = state == UPDATING;
		expired = false;
#ifndef BUG_NO_GRACE
		grace = n_crashes > 0;
#endif
		up = true
	}
}

inline begin()
{
	if
	:: state == UPDATING && update == who -> /* resumes */
		d_step { armed = false; mapped_w = mapped_w | bit_of(who) }
		reply(OK)
	:: (waiting || state == UPDATING) && update != who -> reply(BUSY)
	:: !waiting && state != UPDATING && published == who -> reply(DONE)
	:: !waiting && state != UPDATING && published != who ->
		d_step {
			update = who;
			waiting = true;
			armed = true;
			expired = false;
#ifndef BUG_STALE_ACK
			acked = false
#endif
		}
		flip();
		POINT
	fi
}

/* A writer that is given the memory while another may still write in it makes no version at all. */
#ifdef BUG_NO_WRITER_PROOF
#define nobody_writes true
#else
#define nobody_writes (mapped_w == 0)
#endif

/* Everybody who has a lease paused; what this server does not know yet, the grace waits for. */
#ifdef BUG_NO_QUIESCE
#define quiet waiting
#else
#define quiet (waiting && nobody_writes && !grace && (!leased || acked))
#endif

inline hand_over()
{
	d_step { who = update; waiting = false; armed = false }
#ifdef BUG_HAND_BEFORE_COMMIT
	skip;
#else
	state = UPDATING;
	POINT;
#endif
	d_step {
		if
		:: conn[who] -> mapped_w = mapped_w | bit_of(who); rep[who]!OK
		:: else
		fi
	}
#ifdef BUG_HAND_BEFORE_COMMIT
	POINT;
	state = UPDATING;
#endif
	POINT;
	who = 0
}

/* The memory was never handed out: as if the update had not been asked for. */
inline give_up()
{
	d_step { who = update; waiting = false; armed = false; update = 0 }
#ifdef BUG_GIVE_UP_READY
	state = READY;
#endif
	flip();
	POINT;
	reply(TIMEDOUT);
	who = 0
}

inline tear()
{
	d_step { armed = false; state = TORN; update = 0 }
	POINT;
	flip()
}

/* An eviction cannot unmap: the reader finds it in its socket, or in the word. */
inline evict()
{
	d_step { leased = false; conn[READER] = false; grace = false }
}

#ifdef BUG_ANYBODY_PUBLISHES
#define PUBLISHER true
#else
#define PUBLISHER (update == who)
#endif

inline publish()
{
	if
	:: state == UPDATING && PUBLISHER ->
		d_step {
			version++;
			state = READY;
			published = who;
			update = 0;
			armed = false;
			content[version] = who
		}
		POINT;
		flip();
		POINT;
		acked_version = version;
		reply(DONE)
	:: !(state == UPDATING && PUBLISHER) && published == who -> acked_version = version; reply(DONE)
	:: !(state == UPDATING && PUBLISHER) && published != who -> reply(REFUSED)
	fi
}

#ifdef BUG_NO_DEADLINE
#define due false
#else
#define due (armed && expired)
#endif
/* Those that a reader's eviction helps. */
#define evict_due (due && waiting && EVICT && nobody_writes)
#define give_up_due (due && waiting && !(EVICT && nobody_writes) || waiting && !conn[update])
/* Its writer did not come back; or its connection ended, and not because the server did. */
#define tear_due (state == UPDATING && (due || !armed && !conn[update]))

active proctype Server()
{
	mtype op;
	byte who, life;

start:
	TOGETHER { recover() }
end:
	do
	:: TOGETHER {
		req?op(who, life);
		if
		:: life != n_crashes -> skip /* ended before it was read */
		:: else ->
			if
			:: op == UPDATE -> begin()
			:: op == PUBLISH -> publish()
			:: op == ATTACH ->
				if
				:: state == READY && conn[who] -> leased = true; mapped_r = true; acked = false; reply(OK)
				:: else -> reply(REFUSED)
				fi
			:: op == REGISTER -> d_step { leased = conn[who]; acked = false } reply(OK)
			:: op == ACK -> acked = true; reply(OK)
			fi
		fi;
		d_step { op = 0; who = 0; life = 0 }
	}
		POINT;
#if LIVE
		if /* the loop is fair: timers are looked at between two requests */
		:: tear_due -> atomic { tear() }
		:: give_up_due -> atomic { give_up() }
		:: !give_up_due && evict_due -> evict(); atomic { hand_over() }
		:: else
		fi
#endif
	:: quiet -> TOGETHER { hand_over() }
	:: tear_due -> TOGETHER { tear() }
	:: give_up_due -> TOGETHER { give_up() }
	:: !give_up_due && evict_due -> evict(); TOGETHER { hand_over() }
	:: n_crashes < CRASHES && n_running > 0 -> goto dead
	:: timeout && n_running == 0 ->
		assert(state == READY || state == TORN);
		assert(head_state == state && head_version == version);
		break
	od;
	goto stop;
dead:
	up = false;
	d_step {
		n_crashes++;
		conn[1] = false; conn[2] = false; conn[3] = false;
		if
		:: state != UPDATING -> update = 0
		:: else
		fi;
		leased = false; acked = false; waiting = false; grace = false; armed = false; expired = false;
#if LIVE
		do
		:: nempty(req) -> req?op(who, life)
		:: empty(req) -> break
		od;
#endif
		op = 0; who = 0; life = 0
	}
	goto start;
stop:
	skip
}

/* --- Clients ------------------------------------------------------------------------------------ */

inline ask(op)
{
#if LIVE
	atomic { up -> conn[me] = true; req!op(me, n_crashes) }
	if
	:: rep[me]?r
	:: !conn[me] && empty(rep[me]) -> r = LOST
	fi
#else
	atomic { up -> conn[me] = true; life = n_crashes }
	if
	:: req!op(me, life) ->
		if
		:: rep[me]?r
		:: !conn[me] && empty(rep[me]) -> r = LOST
		fi
	:: !conn[me] -> r = LOST
	fi;
	life = 0
#endif
}

inline unmap()
{
	d_step { mapped_w = mapped_w & (3 - bit_of(me)) }
}

proctype Writer(byte me)
{
	mtype r;
	byte life;

	do
	:: ask(UPDATE);
		if
		:: r == OK -> break
		:: r == DONE || r == TIMEDOUT -> goto gone
		:: r == BUSY -> goto gone
		:: r == LOST
		fi
	od;
	/* Fills without a look at its socket: it may be stopped for hours, or have lost its connection. */
	mem_a = me;
	if
	:: true
	:: unmap(); goto gone /* dies */
	:: conn[me] = false /* a bug or a firewall: without a connection, but not without the memory */
	fi;
	mem_b = me;
	unmap();
	do
	:: ask(PUBLISH);
		if
		:: r == LOST
		:: r == DONE || r == REFUSED -> break
		fi
	od;
gone:
	conn[me] = false;
	d_step { r = 0; n_running-- }
}

/* weightd_read_begin(), weightd_read_retry() */
proctype Blunt()
{
	byte v, a, b, round;

	do
	:: round == BLUNT -> break
	:: atomic { round < BLUNT && head_state == READY -> v = head_version }
		a = mem_a;
		b = mem_b;
		if
#ifdef BUG_NO_RETRY
		:: true ->
#else
		:: head_state == READY && head_version == v ->
#endif
			assert(a == content[v] && b == content[v]) /* never torn */
		:: else
		fi;
		d_step { round++; a = 0; b = 0; v = 0 }
	:: timeout -> break /* TORN, and nobody repairs it */
	od;
	n_running--
}

/*
 * Accepts what it read if its lease held all the while, or if the word did not change. `leased` is its look
 * at the socket: a notice of eviction or the end of the server is there before a byte is written. A new
 * connection is no lease, not before the server took it for one.
 */
#ifdef BUG_TRUST_LEASE
#define lease_held is_leased
#else
#define lease_held (is_leased && leased)
#endif

proctype Polite()
{
	byte me = READER;
	mtype r;
	bool is_leased;
	byte v, a, b, life, round;

	ask(ATTACH);
	if
	:: r != OK -> goto gone
	:: else
	fi;
	do
	:: round == POLITE -> break
	:: round < POLITE && head_state == TORN -> break
	:: round < POLITE && head_state == UPDATING && leased && !acked -> /* a safe point: pauses */
#if LIVE
		if
		:: true
		:: break /* or hangs for ever */
		fi;
#endif
		ask(ACK);
		r = 0
	:: round < POLITE && !leased -> ask(REGISTER); r = 0
	:: d_step { round < POLITE && head_state == READY -> v = head_version; is_leased = leased }
		a = mem_a;
		if /* meets the next server in its own time */
		:: true
		:: !leased -> is_leased = false; ask(REGISTER); r = 0
		fi;
		b = mem_b;
		if
		:: lease_held || (head_state == READY && head_version == v) ->
			assert(a == content[v] && b == content[v]) /* never torn */
		:: else ->
			assert(EVICT || !PROMPT || (a == content[v] && b == content[v])) /* undisturbed */
		fi;
		d_step { round++; is_leased = false; a = 0; b = 0; v = 0 }
	od;
#if LIVE
	if
	:: round == POLITE || head_state == TORN
	:: n_running--; goto hung
	fi;
#endif
gone:
	conn[me] = false;
	d_step { leased = false; mapped_r = false; r = 0; n_running-- }
#if LIVE
hung:
	skip
#endif
}

/* Time: passes whatever else happens. */
active proctype Clock()
{
end:
	do
	:: d_step { armed && !expired -> expired = true }
	:: d_step { grace && (!PROMPT || leased || !mapped_r) -> grace = false }
	od
}

init {
	atomic {
		run Writer(1);
		if
		:: WRITERS == 2 -> run Writer(2)
		:: else
		fi;
		if
		:: BLUNT > 0 -> run Blunt()
		:: else
		fi;
		if
		:: POLITE > 0 -> run Polite()
		:: else
		fi
	}
}

ltl ends { <> (n_running == 0) }
