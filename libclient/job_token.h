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
