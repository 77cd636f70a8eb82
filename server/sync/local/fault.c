#include "server/sync/local/fault.h"

#include <errno.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>

#include "ipc/base/num.h"
#include "server/sync/base/json_packet.h"

static const char *code_of(int r)
{
	static const struct {
		int error;
		const char *code;
	} codes[] = {
		{-ENOENT, "absent"},        {-ENODATA, "empty"},     {-EACCES, "permission"},
		{-EPERM, "permission"},     {-EBUSY, "busy"},        {-ENOMEM, "memory"},
		{-EDQUOT, "quota"},         {-EPROTOTYPE, "layout"}, {-EAGAIN, "updating"},
		{-EUCLEAN, "torn"},         {-EILSEQ, "corrupt"},    {-EOPNOTSUPP, "unsupported"},
		{-EBADMSG, "malformed"},    {-ESTALE, "lost"},       {-ENOTCONN, "weightd"},
		{-ECONNREFUSED, "weightd"}, {-ENODEV, "device"},     {-ENOSYS, "device"},
		{-EIO, "device"},
	};

	for (size_t i = 0; i < ARRAY_LEN(codes); i++)
		if (codes[i].error == r)
			return codes[i].code;
	return "failed";
}

int fault_set(struct fault *f, int r, const char *format, ...)
{
	va_list arguments;

	f->code = code_of(r);
	va_start(arguments, format);
	(void)vsnprintf(f->why, sizeof(f->why), format, arguments); /* longer texts are cut */
	va_end(arguments);
	for (char *c = f->why; *c; c++)
		if ((unsigned char)*c < 0x20 || (unsigned char)*c >= 0x7f)
			/* Names are ASCII; a cut path or op could end within a character. */
			*c = '?';
	return r;
}

int fault_set_weightd(struct fault *f, int r, const struct weightd *w)
{
	return fault_set(f, r, "%s", weightd_error(w));
}

int fault_set_message(struct fault *f, const struct json_packet *t, const char *what)
{
	const char *op = json_string_value(json_object_get(t->message, "op"));

	return fault_set(
		f, -EBADMSG,
		"weightd-sync sent '%.40s' with %u descriptors to weightd-sync-local, which %s; "
		"use the same release of both",
		op ? op : "", t->n_fds, what);
}
