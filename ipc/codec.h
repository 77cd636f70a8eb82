/*
 * Encoding and decoding
 *
 * The one place where a packet becomes a struct: exact size, exact number of descriptors, terminated strings, zero
 * padding, known flags. A decoded struct is safe to read; the caller must check its meaning.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "ipc/wire.h"

struct wire_request {
	struct wire_header header;
	union {
		struct wire_hello hello;
		struct wire_create create;
		struct wire_publish publish;
		struct wire_id abort;
		struct wire_attach attach;
		struct wire_id detach;
		struct wire_wait wait;
		struct wire_list list;
		struct wire_drop drop;
		struct wire_id resume;
		struct wire_renew renew;
		struct wire_rollback rollback;
		struct wire_access access;
		struct wire_pause pause;
		struct wire_events events;
		struct wire_layout layout;
		struct wire_create_image create_image; /* begins like create */
		struct wire_create_owned create_owned; /* begins like create image */
		struct wire_id proof;
		struct wire_id set_files; /* id of the writer */
		struct wire_files files;
		struct wire_job_create job_create;
		struct wire_job_join job_join;
		struct wire_job_index job_part;
		struct wire_job_key job_description;
		struct wire_job_leave job_leave;
		struct wire_job_remove job_remove;
		struct wire_job_view job_view;
		struct wire_hello_attach hello_attach; /* begins like attach */
		struct wire_provide provide;
		struct wire_publish_shared publish_shared;
		struct wire_numa numa;
	};
};

struct wire_reply {
	struct wire_header header;
	union {
		struct wire_error error;
		struct wire_hello_reply hello;
		struct wire_ping_reply ping;
		struct wire_create_reply create; /* of all four creates */
		struct wire_publish_reply publish; /* and of publish shared */
		struct wire_attach_reply attach;
		struct wire_wait_reply wait;
		struct wire_list_reply list; /* and of events */
		struct wire_resume_reply resume;
		struct wire_renew_reply renew;
		struct wire_rollback_reply rollback;
		struct wire_pause_reply pause;
		struct wire_stat_reply stat;
		struct wire_layout_reply layout;
		struct wire_files_reply files;
		struct wire_job_join_reply job_join;
		struct wire_job_view_reply job_view;
		struct wire_hello_attach_reply hello_attach; /* begins like attach */
		struct wire_hello_error hello_error; /* begins like error */
		struct wire_provide_reply provide;
	};
};

/*
 * Checks `size` bytes with `n_fds` descriptors and copies them out. -EBADMSG for anything that is not
 * exactly one message of the protocol.
 */
int codec_decode_request(const void *data, size_t size, unsigned n_fds, struct wire_request *ret);
int codec_decode_reply(const void *data, size_t size, unsigned n_fds, struct wire_reply *ret);

/* Fills the header for operation `op` and returns the size of the whole message. */
size_t codec_seal_request(struct wire_request *m, enum wire_op op, uint64_t serial);
size_t codec_seal_reply(struct wire_reply *m, enum wire_op op, uint64_t serial);

/* Copies a string into a field, NUL-padded. -ENAMETOOLONG. */
int codec_put_string(char *field, size_t field_size, const char *s);
#define CODEC_PUT_STRING(field, s) codec_put_string(field, sizeof(field), s)
