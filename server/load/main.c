/*
 * weightd-load
 *
 * Loads the model of a file of models.d, as weightd-load@.service: checks the file, and becomes weightctl. With --generate
 * it writes the units of such files, when systemd reads its units.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ipc/base/num.h"
#include "ipc/base/release.h"
#include "server/base/log.h"
#include "server/base/nss.h"
#include "server/base/program.h"
#include "server/load/model.h"
#include "server/load/unit.h"

static const char usage[] =
	"Usage: weightd-load FILE\n"
	"       weightd-load --generate FOLDER FILE...\n"
	"\n"
	"Load the model of a file of /etc/weightd/models.d, unless it is loaded.\n"
	"\n"
	"  --generate FOLDER  write the units that load the models of these files at boot\n"
	"  --version          print the release and exit\n"
	"  --help             print this and exit\n";

/* True as the user of the file. The manager made us that user by what it read when it last ran its generators. */
static bool is_user_of(const char *path, const struct model *m)
{
	uid_t uid;

	if (nss_find_user(m->user, &uid) < 0)
		log_error("%s:%u: there is no user '%s'; create it, or change 'user'", path,
			  m->user_line, m->user);
	else if (uid != geteuid())
		log_error("%s:%u: the unit has another user than '%s': it is older than this file; run systemctl "
			  "daemon-reload, and restart it",
			  path, m->user_line, m->user);
	else
		return true;
	return false;
}

/* Returns only if weightctl cannot be started. */
static int become_weightctl(struct model *m)
{
	const char *argv[INI_LINE_MAX + 16] = {"weightctl", "load", "--if-needed", "--device",
					       m->device};
	char *rest = m->options, *word;
	unsigned n = 5;

	while ((word = strsep(&rest, " \t")))
		if (*word)
			argv[n++] = word;
	argv[n++] = "--";
	argv[n++] = m->name;
	argv[n++] = m->path;
	(void)execvp(argv[0], (char *const *)argv);
	log_error("cannot start weightctl: %s", strerror(errno));
	return EXIT_FAILURE;
}

static int load(const char *path)
{
	struct model m;

	if (model_read(path, &m) < 0 || !is_user_of(path, &m))
		return EXIT_USAGE;
	return become_weightctl(&m);
}

static int generate(const char *folder, char **paths)
{
	int r = 0;

	if (chdir(folder) < 0) {
		log_error("cannot write to %s: %s", folder, strerror(errno));
		return EXIT_FAILURE;
	}
	for (; *paths; paths++)
		r |= unit_generate(*paths);
	return r < 0 ? EXIT_FAILURE : 0;
}

int main(int argc, char **argv)
{
	const char *first = argc > 1 ? argv[1] : "";

	log_set_name("weightd-load");
	log_init(LOG_LEVEL_INFO);
	if (!strcmp(first, "--generate") && argc > 3)
		return generate(argv[2], argv + 3);
	if (!strcmp(first, "--version")) {
		puts("weightd-load " RELEASE);
		return EXIT_SUCCESS;
	}
	if (!strcmp(first, "--help")) {
		fputs(usage, stdout);
		return EXIT_SUCCESS;
	}
	if (argc == 2 && *first != '-')
		return load(first);
	fputs(usage, stderr);
	return EXIT_USAGE;
}
