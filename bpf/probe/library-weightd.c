/*
 * weightd itself, which has probes of its own: in any folder, of any user
 */
#include "bpf/probe/site.h"
#include "bpf/probe/usdt.h"

static int weightd_attach(struct site_state *s, int fd, int *ret_link_fd, char ret_why[WHY_SIZE])
{
	return usdt_attach(s->usdt, fd, ret_link_fd, ret_why);
}

const struct library library_weightd = {
	.name = "weightd",
	.is_whole = true,
	.attach = weightd_attach,
};
