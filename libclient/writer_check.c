#include "libclient/writer_check.h"

#include <errno.h>
#include <unistd.h>

int writer_say_lost(const struct weightd_writer *wr)
{
	return sentence_set(&wr->w->sentence, -ESTALE,
			    "the bytes written were lost with the connection to weightd (%.300s); "
			    "create another writer",
			    wr->why_lost.text);
}

int writer_check_open(const struct weightd_writer *wr)
{
	struct sentence *s = &wr->w->sentence;

	if (wr->version || wr->committed || wr->aborted)
		return sentence_set(
			s, -EALREADY,
			"this writer has published or was aborted already; create another");
	if (wr->owner != getpid())
		return sentence_set(s, -ECHILD, "this writer belongs to the parent process");
	return wr->lost ? writer_say_lost(wr) : 0;
}
