/*
 * Publish, pin, rollback and recovery of sealed and reusable buffers
 *
 * One buffer, its manifest, its head page, the store, a server that may be killed between any two steps
 * (POINT), writers, a reader and an administrator. test_model.py checks it with spin, in several sizes,
 * and checks that each BUG_ switch, a sabotage of one rule, is found.
 *
 * What stands for what
 *   Server      server/: one loop, one request at a time. server/recovery.c up to `up = true`
 *   rec, index  the manifest, server/restart/manifest.c: two records, the active one chosen by one atomic store
 *   head_       ipc/head.c: one word. head_rb is no field of it but what an observer needs: how many
 *               rollbacks there had been
 *   Store       server/restart/store.c and whoever keeps descriptors: does FDSTORE and FDSTOREREMOVE later, in
 *               order, also after the sender died, but before its successor starts: so does the keeper, and
 *               systemd looks at its notify socket before it looks at SIGCHLD. BUG_LATE_STORE shows what
 *               depends on it; with COMMIT_FIRST nothing would, but for a descriptor kept too long
 *   leaving     server/buffers/retention.c: trimmed, waits for its last lease and for the proof
 *   open, wopen what F_SETLEASE and F_SEAL_WRITE know: how many readers and writers still have the slot
 *               open or mapped. Descriptors in flight count
 *   ask         libclient/connection/call.c: reconnects by itself; LOST where the connection ended unanswered
 *   job         the id of a writer (server/buffers/writer.c) and at the same time the bytes it fills in
 * What is left out: sizes, quotas, permissions, layouts and digests, several buffers, the wire. Memory is
 * two words (the smallest thing that can be torn), loads and stores are sequentially consistent (the head
 * word is release and acquire), a slot number is used again once nothing remembers it (real ones never
 * are). The proof takes no time: the server does nothing else meanwhile, and a leaving version cannot be
 * attached. A reader is as bad as it can be: it registers its lease late or never, lets go of the lease
 * before the mapping, or of the mapping before the lease.
 *
 * Never torn:  a reader sees the bytes of the version that it attached, however long it looks.
 * Never lost:  what was acknowledged is served after every recovery; versions go back only by rollback; a
 *              number is given once; a writer that asks again is told what became of its version.
 * Never freed: a slot that somebody has open is neither given to a writer nor taken out of the store.
 * Progress:    whoever asks gets an end (ltl ends), if clients that died and mappings that stay are met
 *              with deadlines. And when all is quiet, nothing leaks (Server at `timeout`).
 */

#ifndef CRASHES
#define CRASHES 1
#endif
#ifndef WRITERS
#define WRITERS 1 /* up to 2 */
#endif
#ifndef JOBS
#define JOBS 3 /* of all writers together */
#endif
#ifndef KEEP
#define KEEP 2
#endif
#ifndef ROUNDS
#define ROUNDS 1 /* attaches of the reader; 0 for no reader */
#endif
#ifndef ROLLBACKS
#define ROLLBACKS 0
#endif
#ifndef REUSABLE
#define REUSABLE 0
#endif
#ifndef COMMIT_FIRST
#define COMMIT_FIRST 0 /* what is freed leaves the manifest before the store, not after it */
#endif
#ifdef BUG_LATE_STORE
#define LATE 1
#else
#define LATE 0 /* what the dead server sent to the store may come to it after the next one started */
#endif
#ifndef DEADLY
#define DEADLY 0 /* writer 0 may die, and may leave a mapping behind for ever (a forked child) */
#endif

#define SLOTS 5
#define NONE SLOTS
#define N 4 /* versions and jobs are 1 to 3, 0 is none */

mtype = { CREATE, PUBLISH, ATTACH, REGISTER, ROLLBACK, OK, DONE, BUSY, GONE, LOST, FDSTORE, FDSTOREREMOVE };

/* --- What survives the server ------------------------------------------------------------------- */

typedef record {
	bool ok; /* the checksum */
	byte current;
	byte next;
	byte rb;
	byte writer; /* the pending job */
	byte pslot; /* ... and its slot */
	byte slot[N]; /* of each version */
	bool leaving[N];
	byte done[N]; /* the history: which version a job became */
}

record rec[2];
bit index;

byte head_version;
byte head_rb;

chan notify = [3] of { mtype, byte };
bool stored[SLOTS];

byte mem_a[SLOTS];
byte mem_b[SLOTS];
bool is_sealed[SLOTS];
byte open[SLOTS];
byte wopen[SLOTS];

/* --- What dies with it -------------------------------------------------------------------------- */

#define N_CLIENTS 4
#define READER 2
#define ADMIN 3

bool up;
byte n_crashes;
bool conn[N_CLIENTS];
byte lease; /* the version the reader leased */
/*
 * The last field tells which server's connection it came by. Sockets are queues, and fair; where fairness
 * does not matter, no queue has fewer states.
 */
chan req = [DEADLY * N_CLIENTS] of { mtype, byte, byte, byte };
chan rep[N_CLIENTS] = [1] of { mtype, byte, byte };

/* --- What only the properties know -------------------------------------------------------------- */

byte content[N]; /* the bytes of a version, fixed at its commit */
byte born[N]; /* after how many rollbacks */
byte acked_version;
byte acked_rb;
bool committed[N]; /* by job */
byte n_running = WRITERS + (ROUNDS > 0) + (ROLLBACKS > 0); /* clients */
bool recovered; /* with a writer that may come back */
bool expired; /* the resume deadline after a recovery */
bool late; /* the deadline of writer 0 itself */

#define older(rb1, v1, rb2, v2) ((rb1) < (rb2) || ((rb1) == (rb2) && (v1) < (v2)))

inline acked(ver, n)
{
	d_step {
		if
		:: older(acked_rb, acked_version, n, ver) -> acked_rb = n; acked_version = ver
		:: else
		fi
	}
}

/* --- The store ---------------------------------------------------------------------------------- */

active proctype Store()
{
	byte s;

end:
	do
	:: d_step { notify?FDSTORE(s) -> stored[s] = true; s = 0 }
	:: d_step { notify?FDSTOREREMOVE(s) -> stored[s] = false; s = 0 }
	od
}

/* --- The server --------------------------------------------------------------------------------- */

/*
 * Here SIGKILL may come. `if` chooses freely among what can be chosen. Where progress is the question, it
 * comes between two requests only: fairness multiplies the states.
 */
#if DEADLY
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

inline copy(to, from)
{
	to.current = from.current;
	to.next = from.next;
	to.rb = from.rb;
	to.writer = from.writer;
	to.pslot = from.pslot;
	to.slot[1] = from.slot[1]; to.slot[2] = from.slot[2]; to.slot[3] = from.slot[3];
	to.leaving[1] = from.leaving[1]; to.leaving[2] = from.leaving[2]; to.leaving[3] = from.leaving[3];
	to.done[1] = from.done[1]; to.done[2] = from.done[2]; to.done[3] = from.done[3]
}

/* Of the record that nobody will read again: its old bytes are no state worth telling apart. */
inline forget(r)
{
	r.ok = false;
	r.current = 0; r.next = 0; r.rb = 0; r.writer = 0; r.pslot = 0;
	r.slot[1] = 0; r.slot[2] = 0; r.slot[3] = 0;
	r.leaving[1] = false; r.leaving[2] = false; r.leaving[3] = false;
	r.done[1] = 0; r.done[2] = 0; r.done[3] = 0
}

/*
 * Makes `m`, the server's picture, the manifest: the inactive record first, which takes many stores, then
 * one atomic store of the index.
 */
inline commit()
{
#if DEADLY
	d_step { copy(rec[index], m) }
#else
#ifdef BUG_COMMIT_IN_PLACE
	rec[index].ok = false;
	POINT;
	d_step { copy(rec[index], m); rec[index].ok = true }
#else
#ifdef BUG_INDEX_FIRST
	index = 1 - index;
	POINT;
	d_step { copy(rec[index], m); rec[index].ok = true; forget(rec[1 - index]) }
#else
	d_step { copy(rec[1 - index], m); rec[1 - index].ok = false }
	POINT;
	d_step { rec[1 - index].ok = true; index = 1 - index; forget(rec[1 - index]) }
#endif
#endif
#endif
}

inline flip()
{
	d_step { head_version = m.current; head_rb = m.rb }
}

inline reply(what, x, y)
{
	if
	:: conn[who] -> rep[who]!what(x, y)
	:: else
	fi
}

#define named(s) (m.slot[1] == s || m.slot[2] == s || m.slot[3] == s || (m.writer != 0 && m.pslot == s))
#define in_use(v) (m.slot[v] != NONE && !m.leaving[v])

/* Only a fresh memfd has no past: nothing may remember the number that stands for it. */
#define fresh(s) (!have[s] && !stored[s] && open[s] == 0 && wopen[s] == 0 && !named(s) && \
	!(notify??[FDSTORE, eval(s)]) && !(notify??[FDSTOREREMOVE, eval(s)]))

#ifdef BUG_NO_PROOF
#define unused(v) (m.leaving[v] && m.slot[v] != NONE && lease != v)
#else
#define unused(v) (m.leaving[v] && m.slot[v] != NONE && lease != v && \
	open[m.slot[v]] == 0 && wopen[m.slot[v]] == 0)
#endif

#ifdef BUG_NO_BARRIER
#define barrier_done true
#else
#define barrier_done stored[m.pslot]
#endif

#ifdef BUG_NO_DEADLINE
#define overdue false
#else
/* A dead process ends its connection; only after a recovery can one be missing that may come back. */
#define overdue (m.writer != 0 && !conn[owner_of(m.writer)] && (expired || !recovered))
#endif
#if WRITERS == 2
#define owner_of(job) (1 - (job) % 2) /* job 1 is writer 0's, job 2 writer 1's, job 3 writer 0's */
#else
#define owner_of(job) 0
#endif

#ifdef BUG_NO_SEAL
#define SEALS false
#else
#define SEALS true
#endif
#ifdef BUG_FORGETS /* ... whose a version was when the version goes */
#define KNOWS(job) (m.done[job] != 0 && m.slot[m.done[job]] != NONE)
#else
#define KNOWS(job) (m.done[job] != 0)
#endif

/* server/recovery.c */
inline recover()
{
	d_step {
		s = 0;
		do
		:: s < SLOTS -> have[s] = stored[s]; s++
		:: else -> break
		od;
		s = 0;
		assert(rec[index].ok); /* never lost */
		copy(m, rec[index])
	}
	POINT;
	/* A pending slot that did not come was never acknowledged. */
	if
	:: m.writer != 0 && !have[m.pslot] ->
		d_step { m.writer = 0; m.pslot = 0 }
		commit();
		POINT
	:: else
	fi;
	assert(m.current == 0 || have[m.slot[m.current]]); /* never lost */
	assert(!in_use(1) || have[m.slot[1]]);
	assert(!in_use(2) || have[m.slot[2]]);
	assert(!in_use(3) || have[m.slot[3]]);
	/* A leaving one that did not come was removed just before. */
	v = 1;
	do
	:: v < N && m.slot[v] != NONE && !have[m.slot[v]] ->
		m.slot[v] = NONE;
		commit();
		v++
	:: v < N && (m.slot[v] == NONE || have[m.slot[v]]) -> v++
	:: v == N -> break
	od;
	v = 0;
	/* What came and is in no manifest is nobody's. */
	do
	:: s < SLOTS && have[s] && !named(s) -> notify!FDSTOREREMOVE(s); have[s] = false; s++
	:: s < SLOTS && (!have[s] || named(s)) -> s++
	:: s == SLOTS -> break
	od;
	s = 0;
	POINT;
#ifdef BUG_SERVE_HEAD
	if
	:: head_version != 0 && m.slot[head_version] != NONE ->
		d_step { m.current = head_version; m.rb = head_rb }
	:: else
	fi;
#endif
	flip();
	POINT;
	/* never lost */
	assert(!older(head_rb, head_version, acked_rb, acked_version));
	assert(head_version == 0 || (have[m.slot[head_version]] && content[head_version] != 0));
	recovered = n_crashes > 0 && m.writer != 0;
	up = true
}

/* server/requests/writer_create.c: a fresh slot, or in a reusable buffer one that was proved to be nobody's. */
inline create()
{
	if
	:: m.writer == arg -> waiting = true
	:: m.writer != 0 && m.writer != arg -> reply(BUSY, 0, 0)
	:: m.writer == 0 ->
		d_step {
			s = 0;
			v = 1;
			do
			:: v < N && REUSABLE && unused(v) -> break
			:: v < N && !(REUSABLE && unused(v)) -> v++
			:: v == N -> break
			od;
			if
			:: v < N ->
				s = m.slot[v];
				assert(open[s] == 0 && wopen[s] == 0); /* never given away while mapped */
				m.slot[v] = NONE
			:: else ->
				do
				:: s < SLOTS && !fresh(s) -> s++
				:: s < SLOTS && fresh(s) -> break
				:: s == SLOTS -> break
				od;
				assert(s < SLOTS); /* the model is big enough */
				mem_a[s] = 0;
				mem_b[s] = 0;
				is_sealed[s] = false
			fi;
			m.writer = arg;
			m.pslot = s
		}
		commit();
		POINT;
		if
		:: v == N -> have[s] = true; notify!FDSTORE(s)
		:: else
		fi;
		d_step { v = 0; s = 0; waiting = true }
	fi
}

inline created()
{
	d_step {
		waiting = false;
		who = owner_of(m.writer);
		if
		:: conn[who] ->
			wopen[m.pslot] = 1 + who;
			rep[who]!OK(m.pslot, 0)
		:: else
		fi;
		who = 0
	}
}

/* The oldest of too many leaves; never the current one, which a rollback may have made the oldest. */
inline trim()
{
	if
	:: in_use(1) + in_use(2) + in_use(3) > KEEP ->
		if
		:: in_use(1) && m.current != 1 -> m.leaving[1] = true
		:: !(in_use(1) && m.current != 1) && in_use(2) -> m.leaving[2] = true
		:: else
		fi
	:: else
	fi
}

inline publish()
{
	if
	:: m.writer == arg && wopen[m.pslot] != 0 && !REUSABLE && !is_sealed[m.pslot] && SEALS ->
		reply(BUSY, 0, 0)
	:: m.writer == arg && (wopen[m.pslot] == 0 || REUSABLE || is_sealed[m.pslot] || !SEALS) ->
		is_sealed[m.pslot] = !REUSABLE && SEALS;
		POINT;
#ifdef BUG_HEAD_FIRST
		d_step { head_version = m.next; head_rb = m.rb }
		POINT;
#endif
		d_step {
			v = m.next;
			m.slot[v] = m.pslot;
			m.current = v;
#ifdef BUG_NUMBER_TWICE
			m.next = v;
#else
			m.next = v + 1;
#endif
			m.done[arg] = v;
			m.writer = 0;
			m.pslot = 0;
			assert(content[v] == 0); /* a number is given once */
			trim()
		}
		commit();
		d_step { content[v] = arg; born[v] = m.rb; committed[arg] = true }
		POINT;
		flip();
		POINT;
		acked(v, m.rb);
		reply(DONE, v, 0);
		v = 0
	:: m.writer != arg && KNOWS(arg) -> /* asks again; it may have been rolled back since */
		acked(m.done[arg], born[m.done[arg]]);
		reply(DONE, m.done[arg], 0)
	:: m.writer != arg && !KNOWS(arg) -> reply(GONE, 0, 0)
	fi
}

inline rollback()
{
	if
	:: m.current == arg || (in_use(arg) && m.current > arg) ->
		if
		:: m.current != arg ->
			d_step { m.current = arg; m.rb++ }
#ifdef BUG_ROLLBACK_HEAD_ONLY
			flip();
#else
			commit();
			POINT;
			flip();
#endif
			POINT
		:: else
		fi;
		acked(m.current, m.rb);
		reply(DONE, m.current, 0)
	:: m.current != arg && !(in_use(arg) && m.current > arg) -> reply(GONE, 0, 0)
	fi
}

inline attach()
{
	if
	:: m.current == 0 -> reply(GONE, 0, 0)
	:: m.current != 0 ->
		d_step {
			/* never lost */
			assert(!older(m.rb, m.current, acked_rb, acked_version));
			assert(have[m.slot[m.current]]);
			if
			:: conn[who] ->
				lease = m.current;
				open[m.slot[m.current]]++;
				rep[who]!OK(m.current, m.slot[m.current])
			:: else
			fi
		}
	fi
}

/* Who maps a slot kept it from being freed: its version must be known still. */
inline register()
{
	assert(m.slot[arg] != NONE);
	if
	:: conn[who] -> lease = arg
	:: else
	fi;
	reply(OK, 0, 0)
}

/* Out of the store and of the manifest: recovery copes with either without the other. */
inline drop_slot()
{
#if COMMIT_FIRST
	commit();
	POINT;
	notify!FDSTOREREMOVE(s);
#else
	notify!FDSTOREREMOVE(s);
	POINT;
	commit();
#endif
	d_step { have[s] = false; s = 0 }
}

/* server/buffers/reaper.c: the last lease went, and nobody maps it. */
inline release(old)
{
	d_step {
		s = m.slot[old];
		assert(open[s] == 0 && wopen[s] == 0); /* never freed while mapped */
		m.slot[old] = NONE
	}
	drop_slot()
}

/* What was not committed goes; the memory lives on for the writer that still maps it, and for it alone. */
inline abandon()
{
	d_step { s = m.pslot; m.writer = 0; m.pslot = 0; waiting = false }
	drop_slot()
}

inline quiet()
{
	d_step {
		s = 0;
		do
		:: s < SLOTS ->
			assert(have[s] == named(s) && (stored[s] || !have[s]) && (LATE || stored[s] == have[s]));
			s++
		:: else -> break
		od;
		s = 0;
		assert(m.writer == 0 && !unused(1) && !unused(2) && !unused(3));
		assert(head_version == m.current && head_rb == m.rb)
	}
}

active proctype Server()
{
	record m;
	bool have[SLOTS];
	bool waiting; /* a create, for the store */
	mtype op;
	byte who, arg, life, s, v;

	d_step {
		rec[0].ok = true;
		rec[0].next = 1;
		rec[0].slot[1] = NONE; rec[0].slot[2] = NONE; rec[0].slot[3] = NONE
	}
start:
	if
	:: empty(notify)
	:: LATE
	fi;
	TOGETHER { recover() }
end:
	do
	:: TOGETHER {
		req?op(who, arg, life);
		if
		:: life != n_crashes -> skip /* ended before it was read */
		:: else ->
			if
			:: op == CREATE -> create()
			:: op == PUBLISH -> publish()
			:: op == ATTACH -> attach()
			:: op == REGISTER -> register()
			:: op == ROLLBACK -> rollback()
			fi
		fi;
		d_step { op = 0; who = 0; arg = 0; life = 0 }
		POINT;
#if DEADLY
		if /* the loop is fair: a timer or the store's answer is looked at between two requests */
		:: waiting && barrier_done -> created()
		:: overdue -> abandon()
		:: else
		fi
#endif
	}
	:: waiting && barrier_done -> created()
	:: TOGETHER { overdue -> abandon() }; POINT
	:: TOGETHER { unused(1) -> release(1) }; POINT
	:: TOGETHER { unused(2) -> release(2) }; POINT
	:: TOGETHER { unused(3) -> release(3) }; POINT
	:: n_crashes < CRASHES && n_running > 0 -> goto dead
	:: timeout && n_running == 0 -> quiet(); break
	od;
	goto stop;
dead:
	up = false;
	d_step {
		n_crashes++;
		lease = 0;
		expired = false;
		conn[0] = false; conn[1] = false; conn[2] = false; conn[3] = false;
		forget(m);
#if DEADLY
		do
		:: nempty(req) -> req?op(who, arg, life)
		:: empty(req) -> break
		od;
#endif
		waiting = false; recovered = false; op = 0; who = 0; arg = 0; life = 0; s = 0; v = 0;
		do
		:: s < SLOTS -> have[s] = false; s++
		:: else -> break
		od;
		s = 0
	}
	goto start;
stop:
	skip
}

/* --- Clients ------------------------------------------------------------------------------------ */

/* The library connects again by itself. A reply that came before the end is still read. */
inline ask(op, arg)
{
#if DEADLY
	atomic { up -> conn[me] = true; req!op(me, arg, n_crashes) }
	if
	:: rep[me]?r(x, y)
	:: !conn[me] && empty(rep[me]) -> r = LOST
	fi
#else
	atomic { up -> conn[me] = true; life = n_crashes }
	if
	:: req!op(me, arg, life) ->
		if
		:: rep[me]?r(x, y)
		:: !conn[me] && empty(rep[me]) -> r = LOST
		fi
	:: !conn[me] -> r = LOST
	fi;
	life = 0
#endif
}

inline leave()
{
	d_step {
		conn[me] = false;
		n_running--
	}
}

/* No writer goes back on its bytes, unless nothing but its good will keeps it from that. */
#define may_write(s) (wopen[s] == 1 + me && !is_sealed[s])

#define unmap(s) d_step { if :: wopen[s] == 1 + me -> wopen[s] = 0 :: else fi }

proctype Writer(byte me; byte job)
{
	mtype r;
	byte s, x, y, life;

next:
	do
	:: ask(CREATE, job);
		if
		:: r == OK -> s = x; break
		:: else
		fi
#if DEADLY
	:: me == 0 -> goto gone
#endif
	od;
	assert(may_write(s));
	mem_a[s] = job;
	mem_b[s] = job;
#if DEADLY
	if
	:: true
	:: me == 0 -> unmap(s); goto gone
	:: me == 0 -> goto gone
	fi;
#endif
	if
	:: unmap(s)
	:: !REUSABLE /* asks with the mapping still there */
	fi;
	do
	:: ask(PUBLISH, job);
		d_step { x = 0; y = 0 }
		if
		:: r == BUSY && !(late && me == 0) ->
			if
			:: unmap(s)
#if DEADLY
			:: me == 0
#endif
			fi
		:: r == BUSY && late && me == 0 -> break /* told which process still maps it */
		:: r == LOST
		:: r == DONE -> assert(committed[job]); break
		:: r == GONE -> assert(!committed[job]); break
		fi
	od;
	if
	:: may_write(s) && r == DONE -> mem_b[s] = 0 /* against all promises */
	:: else
	fi;
	d_step {
		if
		:: r != DONE -> conn[me] = false /* gives up */
		:: else
		fi;
		if
		:: wopen[s] == 1 + me -> wopen[s] = 0
		:: else
		fi;
		r = 0;
		s = 0;
		job = job + WRITERS
	}
	if
	:: job <= JOBS -> goto next
	:: else
	fi;
gone:
	leave()
}

inline look()
{
	d_step {
		assert(!older(head_rb, head_version, seen_rb, seen)); /* never back */
		seen = head_version;
		seen_rb = head_rb
	}
}

inline check()
{
	assert(mem_a[s] == content[v]);
	assert(mem_b[s] == content[v]) /* never torn */
}

proctype Reader()
{
	byte me = READER;
	mtype r;
	byte s, v, x, y, life, seen, seen_rb, round;

	do
	:: round == ROUNDS -> break
	:: round < ROUNDS ->
		look();
		ask(ATTACH, 0);
		if
		:: r == OK ->
			d_step { v = x; s = y; x = 0; y = 0; r = 0 }
			look();
			check();
			if
			:: true
			:: !conn[me] -> ask(REGISTER, v); d_step { r = 0; x = 0; y = 0 }
			fi;
			check();
			look();
			if /* ends the lease, or the mapping, or both at once */
			:: d_step { conn[me] = false; lease = 0 }
				check();
				d_step { open[s]--; s = 0; v = 0 }
			:: open[s]--;
				d_step { conn[me] = false; lease = 0; s = 0; v = 0 }
			fi
		:: r != OK
		fi;
		round++
	od;
	leave()
}

proctype Admin()
{
	byte me = ADMIN;
	mtype r;
	byte x, y, life, round;

	do
	:: round == ROLLBACKS -> break
	:: round < ROLLBACKS ->
		ask(ROLLBACK, 1);
		if
		:: r == DONE -> round++
		:: r == GONE -> round++
		:: r == LOST
		fi;
		d_step { r = 0; x = 0; y = 0 }
	od;
	leave()
}

/* Time: passes whatever else happens. */
active proctype Clock()
{
end:
	do
	:: d_step { recovered && !expired -> expired = true }
	:: d_step { DEADLY && !late -> late = true }
	od
}

init {
	atomic {
		run Writer(0, 1);
		if
		:: WRITERS == 2 -> run Writer(1, 2)
		:: else
		fi;
		if
		:: ROUNDS > 0 -> run Reader()
		:: else
		fi;
		if
		:: ROLLBACKS > 0 -> run Admin()
		:: else
		fi
	}
}

ltl ends { <> (n_running == 0) }
