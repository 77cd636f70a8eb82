/*
 * weightctl chown: change owners of buffers. Like chown(1), it changes all that it can.
 */
#include <stdint.h>
#include <string.h>

#include "libclient/weightctl/absent.h"
#include "libclient/weightctl/cli.h"
#include "libclient/weightctl/output/user.h"
#include "libclient/weightctl/server.h"
#include "libclient/weightctl/verb.h"

struct owner {
	int64_t uid, gid; /* -1: stays */
};

/* USER, USER:GROUP, :GROUP, or USER: for the group that the user logs in with. Cuts `arg`. */
static struct owner chown_parse(const struct cli *cli, char *arg)
{
	struct owner owner = {-1, -1};
	char *group = strchr(arg, ':');
	uint32_t id;

	if (!*arg || !strcmp(arg, ":"))
		cli_usage(cli, "'chown' wants USER, USER:GROUP or :GROUP, not '%s'", arg);
	if (group)
		*group++ = '\0';
	if (*arg) {
		if (user_parse(arg, &id) < 0)
			cli_usage(cli, "there is no user '%s'", arg);
		owner.uid = id;
	}
	if (!group)
		return owner;
	if (*group ? user_parse_group(group, &id) < 0 : user_login_group(id, &id) < 0)
		cli_usage(cli,
			  *group ? "there is no group '%s'" : "the group of user '%s' is unknown",
			  *group ? group : arg);
	owner.gid = id;
	return owner;
}

static int chown_run(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTIONS_DEVICE, OPTIONS_COMMON, {}};
	struct owner owner;
	int status = 0, r;

	(void)cli_option(cli, argc, argv, LETTERS_COMMON, longs);
	if (argc - optind < 2)
		cli_usage(cli, "'chown' wants an owner and at least one name");
	owner = chown_parse(cli, argv[optind]);
	for (int i = optind + 1; i < argc; i++)
		(void)cli_name(cli, argv[i]);
	if (server_connect(cli))
		return EXIT_FAILED;
	for (int i = optind + 1; i < argc; i++) {
		r = weightd_set_access(cli->w, argv[i], cli->device, -1, owner.uid, owner.gid);
		if (r < 0)
			status = absent_buffer(cli, argv[i], r);
	}
	return status;
}

const struct verb verb_chown = {
	.name = "chown",
	.args = "[USER][:GROUP] NAME...",
	.summary = "Change the owner and group of buffers",
	.options = HELP_DEVICE,
	.run = chown_run,
};
