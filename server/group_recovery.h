/*
 * Recovery of jobs
 *
 * Makes writer groups from what the service manager kept, as recovery.h does it for buffers. A job is served with
 * all of its parts and its description, or set aside. Memory that no rank has received is dropped. Ranks join again.
 */
#pragma once

struct inherit;
struct server;

/* Returns how many jobs are served; logs what is set aside. */
unsigned group_recovery_run(struct server *server, struct inherit *in);
