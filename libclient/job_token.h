/*
 * Tokens of jobs
 *
 * A process that has the token of a job may write its memory. As text it is "NAME:64 hexadecimal digits".
 */
#pragma once

#include "libclient/connection/client.h"

/* Takes a token apart. -EINVAL, with a sentence that does not repeat it. */
int job_token_parse(struct weightd *w, const char *text, struct wire_job_key *ret);

/* -EOPNOTSUPP: the server is older than jobs; -ENOTCONN. */
int job_check_server(struct weightd *w);

/* Copies a job's name. -EINVAL, with a sentence. */
int job_put_name(struct weightd *w, const char *name, char field[WIRE_NAME_SIZE]);

/* All of the description in a descriptor, for the caller to free(). -EBADMSG: it is too large. */
int job_description_read(int fd, void **ret, uint64_t *ret_size);
