/*
 * weightctl pki: create a CA and certificates of nodes.
 *
 * The file of a private key has its owner's permissions before its first byte is written, and no file is overwritten:
 * an agent may depend on it. Only the list of revoked certificates replaces the previous one.
 *
 * Each certificate is recorded before it is written, in the CA's folder, one line each: serial number, end and node.
 * So the certificates of a node can be revoked when it is lost with all its files.
 */
#include "libclient/weightctl/verbs/pki.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "libclient/weightctl/output/atomic_file.h"
#include "libclient/weightctl/output/escape.h"
#include "libclient/weightctl/output/json.h"
#include "libclient/weightctl/verb.h"

#define FILE_MAX 65536
#define ISSUED "ca.issued"
#define ISSUED_MAX (16 << 20)
#define LIST "ca.crl"
#define LIST_MAX (512 << 10) /* limit of weightd-sync */
#define NODE_MAX 42 /* limit of weightd-sync: room in a line [group NAME] of its sync.conf */
#define DAYS 365

enum {
	OPTION_DAYS = OPTION_OWN,
	OPTION_OUT,
	OPTION_CA,
};

void pki_pair_deinit(struct pki_pair *pair)
{
	if (pair->key)
		explicit_bzero(pair->key, strlen(pair->key));
	free(pair->key);
	free(pair->certificate);
	*pair = (struct pki_pair){};
}

bool pki_name_is_valid(const char *name)
{
	size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-");

	return n > 0 && n <= NODE_MAX && !name[n] && *name != '.' && *name != '-';
}

/* A folder that stays open while files are made in it, or read. */
struct folder {
	const char *path;
	int fd;
};

static void folder_deinit(struct folder *f)
{
	if (f->fd >= 0)
		(void)close(f->fd);
}

static int say_written(const struct folder *folder, const char *name, int r)
{
	if (r == -EEXIST)
		return cli_error("%s/%s exists, and is not overwritten; name another folder, or "
				 "remove it when nothing uses it any more",
				 folder->path, name);
	return cli_error("cannot write %s/%s: %s", folder->path, name, strerror(-r));
}

static int open_folder(struct folder *f)
{
	f->fd = atomic_file_folder(f->path);
	return f->fd < 0 ? cli_error("cannot use the folder %s: %s", f->path, strerror(-f->fd)) : 0;
}

/* Both files or neither. */
static int write_pair(const struct folder *folder, const char *name, const struct pki_pair *pair)
{
	char key_name[NODE_MAX + 8], certificate_name[NODE_MAX + 8];
	cleanup(atomic_file_deinit) struct atomic_file key = {};
	cleanup(atomic_file_deinit) struct atomic_file certificate = {};
	int r;

	(void)snprintf(key_name, sizeof(key_name), "%s.key", name);
	(void)snprintf(certificate_name, sizeof(certificate_name), "%s.crt", name);
	r = atomic_file_write(folder->fd, key_name, 0600, pair->key, &key);
	if (r >= 0)
		r = atomic_file_write(folder->fd, certificate_name, 0644, pair->certificate,
				      &certificate);
	if (r >= 0)
		r = atomic_file_keep(&key);
	if (r < 0)
		return say_written(folder, key_name, r);
	r = atomic_file_keep(&certificate);
	if (r >= 0)
		return 0;
	(void)unlinkat(folder->fd, key_name, 0); /* the one made above */
	return say_written(folder, certificate_name, r);
}

static void say_pair(const struct folder *folder, const char *name, const char *of_certificate,
		     const char *of_key)
{
	escape_text(stdout, folder->path);
	(void)printf("/%s.crt: %s\n", name, of_certificate);
	escape_text(stdout, folder->path);
	(void)printf("/%s.key: %s\n", name, of_key);
}

static int run_ca(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTION_HELP, {}};
	cleanup(folder_deinit) struct folder folder = {.fd = -1};
	cleanup(pki_pair_deinit) struct pki_pair pair = {};
	char why[PKI_WHY_SIZE];

	(void)cli_option(cli, argc, argv, LETTERS_COMMON, longs);
	if (argc - optind != 1)
		cli_usage(cli, "'%s' wants a folder", cli->verb->name);
	folder.path = argv[optind];
	if (pki_make_ca(&pair, why) < 0)
		return cli_error("%s", why);
	if (open_folder(&folder) || write_pair(&folder, "ca", &pair))
		return EXIT_FAILED;
	say_pair(&folder, "ca", "certificate of the CA, for every node",
		 "its private key, for 'weightctl pki node' alone: keep it where no agent runs");
	return 0;
}

static int read_file(const struct folder *folder, const char *name, char **ret, mode_t *ret_mode)
{
	int r = atomic_file_read(folder->fd, name, FILE_MAX, ret, ret_mode);

	if (r == -ENOENT)
		return cli_error("%s/%s is not there; 'weightctl pki ca %s' makes a CA",
				 folder->path, name, folder->path);
	if (r == -EINVAL)
		return cli_error("%s/%s is no file of text", folder->path, name);
	return r < 0 ? cli_error("cannot read %s/%s: %s", folder->path, name, strerror(-r)) : 0;
}

static int read_ca(const char *path, struct pki_pair *ret)
{
	cleanup(folder_deinit) struct folder folder = {.path = path, .fd = -1};
	mode_t mode;

	folder.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder.fd < 0)
		return cli_error("cannot use the folder %s: %s", path, strerror(errno));
	if (read_file(&folder, "ca.crt", &ret->certificate, &mode) ||
	    read_file(&folder, "ca.key", &ret->key, &mode))
		return EXIT_FAILED;
	if (mode & 077)
		return cli_error("%s/ca.key can be read by others (mode %04o), and may have been; "
				 "make a new CA, or 'chmod 600 %s/ca.key' if it was not",
				 path, (unsigned)mode, path);
	return 0;
}

/* One write, so that concurrent lines stay whole. */
static int pki_append(const char *path, const char *name, const char *line)
{
	cleanup(folder_deinit) struct folder folder = {.path = path, .fd = -1};
	size_t n = strlen(line);
	int fd, r = 0;

	folder.fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (folder.fd < 0)
		return cli_error("cannot use the folder %s: %s", path, strerror(errno));
	fd = openat(folder.fd, name, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
	if (fd < 0)
		return say_written(&folder, name, -errno);
	errno = ENOSPC; /* write() sets none if it wrote a part */
	if (fchmod(fd, 0600) < 0 || write(fd, line, n) != (ssize_t)n || fsync(fd) < 0)
		r = -errno;
	(void)close(fd);
	return r < 0 ? say_written(&folder, name, r) : 0;
}

static int note_issued(const char *ca_path, const char *certificate)
{
	struct pki_certificate c;
	char why[PKI_WHY_SIZE], line[PKI_SERIAL_MAX + PKI_TEXT_MAX + 40];

	if (pki_read(&certificate, NULL, &c, why) != 0)
		return cli_error("%s", why);
	(void)snprintf(line, sizeof(line), "%s %s %s\n", c.serial, c.until, c.name);
	return pki_append(ca_path, ISSUED, line);
}

static int make_node(const char *ca_path, const char *name, unsigned days, const char *out)
{
	cleanup(folder_deinit) struct folder folder = {.path = out, .fd = -1};
	cleanup(pki_pair_deinit) struct pki_pair ca = {};
	cleanup(pki_pair_deinit) struct pki_pair pair = {};
	char why[PKI_WHY_SIZE];
	bool cut = false;

	if (read_ca(ca_path, &ca))
		return EXIT_FAILED;
	if (pki_make_node(&ca, name, days, &pair, &cut, why) < 0)
		return cli_error("cannot issue a certificate by the CA in %s: %s", ca_path, why);
	if (open_folder(&folder) || note_issued(ca_path, pair.certificate) ||
	    write_pair(&folder, name, &pair))
		return EXIT_FAILED;
	if (cut)
		(void)fprintf(stderr,
			      "weightctl: the certificate ends with its CA, before %u days\n", days);
	say_pair(&folder, name, "certificate of the node", "its private key, for that node alone");
	return 0;
}

static int run_node(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"days", required_argument, NULL, OPTION_DAYS},
		{"out", required_argument, NULL, OPTION_OUT},
		OPTION_HELP,
		{},
	};
	const char *out = NULL, *name;
	unsigned days = DAYS;
	int option;

	while ((option = cli_option(cli, argc, argv, LETTERS_COMMON, longs)) >= 0) {
		if (option == OPTION_DAYS)
			days = (unsigned)cli_number(cli, "--days", optarg, 10, 1, PKI_DAYS_MAX);
		else
			out = optarg;
	}
	if (argc - optind != 2)
		cli_usage(cli, "'%s' wants the folder of a CA and the name of a node",
			  cli->verb->name);
	name = argv[optind + 1];
	if (!pki_name_is_valid(name))
		cli_usage(cli,
			  "'%s' cannot be a node; names are 1 to %d of a-z, 0-9, '.' and '-', "
			  "and begin with a letter or a digit",
			  name, NODE_MAX);
	return make_node(argv[optind], name, days, out ? out : argv[optind]);
}

/* --- revoke ------------------------------------------------------------------------------------- */

struct serials {
	char *text; /* text of ca.issued, cut into words */
	const char **at;
	size_t n;
};

static void serials_deinit(struct serials *s)
{
	free(s->text);
	free(s->at);
}

/* The serial number, if the line is of that node. */
static const char *serial_of(char *line, const char *name)
{
	const char *serial = strsep(&line, " "), *until = strsep(&line, " ");

	return until && line && !strcmp(line, name) ? serial : NULL;
}

static int read_issued(const struct folder *folder, const char *name, struct serials *ret)
{
	mode_t mode;
	char *rest, *line;
	int r = atomic_file_read(folder->fd, ISSUED, ISSUED_MAX, &ret->text, &mode);

	if (r < 0 && r != -ENOENT)
		return cli_error("cannot read %s/" ISSUED ": %s", folder->path,
				 r == -EINVAL ? "it is no file of text" : strerror(-r));
	for (rest = ret->text; rest && (line = strsep(&rest, "\n"));) {
		const char *serial = serial_of(line, name), **more;

		if (!serial)
			continue;
		more = realloc(ret->at, (ret->n + 1) * sizeof(*more));
		if (!more)
			cli_out_of_memory();
		ret->at = more;
		ret->at[ret->n++] = serial;
	}
	if (ret->n)
		return 0;
	return cli_error("%s/" ISSUED " has no certificate of '%s'; is it the folder of the CA that "
			 "issued it?",
			 folder->path, name);
}

static int read_list(const struct folder *folder, char **ret)
{
	mode_t mode;
	int r = atomic_file_read(folder->fd, LIST, LIST_MAX, ret, &mode);

	if (r >= 0 || r == -ENOENT)
		return 0;
	return cli_error("cannot read %s/" LIST ": %s", folder->path,
			 r == -EINVAL ? "it is no file of text" : strerror(-r));
}

static int write_list(const struct folder *folder, const char *text)
{
	cleanup(atomic_file_deinit) struct atomic_file list = {};
	int r = atomic_file_write(folder->fd, LIST, 0644, text, &list);

	if (r >= 0)
		r = atomic_file_replace(&list);
	return r < 0 ? say_written(folder, LIST, r) : 0;
}

static int revoke_node(const char *path, const char *name)
{
	cleanup(folder_deinit) struct folder folder = {.path = path, .fd = -1};
	cleanup(pki_pair_deinit) struct pki_pair ca = {};
	cleanup(serials_deinit) struct serials serials = {};
	cleanup(cli_freep) char *before = NULL;
	cleanup(cli_freep) char *list = NULL;
	char why[PKI_WHY_SIZE];
	size_t n;

	if (read_ca(path, &ca) || open_folder(&folder))
		return EXIT_FAILED;
	if (flock(folder.fd, LOCK_EX) < 0) /* one list at a time, so that none is lost */
		return cli_error("cannot lock the folder %s: %s", path, strerror(errno));
	if (read_list(&folder, &before) || (name && read_issued(&folder, name, &serials)))
		return EXIT_FAILED;
	if (pki_revoke(&ca, before, serials.at, serials.n, &list, &n, why) < 0)
		return cli_error("cannot revoke by the CA in %s: %s", path, why);
	if (write_list(&folder, list))
		return EXIT_FAILED;
	escape_text(stdout, path);
	(void)printf("/" LIST
		     ": certificates of the CA that are revoked, %zu more than before; for 'crl' "
		     "under [tls] in every node's sync.conf\n",
		     n);
	return 0;
}

static int run_revoke(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {OPTION_HELP, {}};
	const char *name;

	(void)cli_option(cli, argc, argv, LETTERS_COMMON, longs);
	if (argc - optind < 1 || argc - optind > 2)
		cli_usage(cli, "'%s' wants the folder of a CA and the name of a node",
			  cli->verb->name);
	name = argv[optind + 1]; /* NULL: the end of argv */
	if (name && !pki_name_is_valid(name))
		cli_usage(cli, "'%s' cannot be a node", name);
	return revoke_node(argv[optind], name);
}

/* --- show --------------------------------------------------------------------------------------- */

static const char *pki_kind(const void *row, bool json)
{
	const struct pki_certificate *c = row;

	(void)json;
	return c->is_ca ? "ca" : "node";
}

/* Those that are arrays inside of the struct. */
#define WORD(member_)                                                                              \
	static const char *member_(const void *row, bool json)                                     \
	{                                                                                          \
		(void)json;                                                                        \
		return ((const struct pki_certificate *)row)->member_;                             \
	}

WORD(name)
WORD(issuer)
WORD(serial)
WORD(from)
WORD(until)
WORD(fingerprint)

static const struct column columns[] = {
	{"KIND", COLUMN_WORD, .word = pki_kind},
	{"NAME", COLUMN_WORD, .word = name},
	{"ISSUER", COLUMN_WORD, .word = issuer},
	{"SERIAL", COLUMN_WORD, .word = serial},
	{"FROM", COLUMN_WORD, .word = from},
	{"UNTIL", COLUMN_WORD, .word = until},
	{"FINGERPRINT", COLUMN_WORD, .word = fingerprint},
	{},
};

static void print_text(const struct pki_certificate *c)
{
	column_text_all(columns, c, false, stdout);
	for (size_t i = 0; i < c->n_wrong; i++) {
		(void)fputs("WRONG        ", stdout);
		escape_text(stdout, c->wrong[i]);
		(void)fputc('\n', stdout);
	}
}

static void print_json(struct json *j, const struct pki_certificate *c)
{
	json_open(j, NULL, '{');
	column_json_all(columns, c, j);
	json_open(j, "wrong", '[');
	for (size_t i = 0; i < c->n_wrong; i++)
		json_put_string(j, NULL, c->wrong[i]);
	json_close(j, ']');
	json_close(j, '}');
}

struct shown {
	struct pki_certificate *certificates;
	size_t n;
};

static void shown_deinit(struct shown *s)
{
	free(s->certificates);
}

/* All of them, before anything is printed. */
static int read_all(const char *path, const char *pem, const char *ca, struct shown *ret)
{
	struct pki_certificate c, *more;
	char why[PKI_WHY_SIZE];
	const char *at = pem;
	int r;

	while ((r = pki_read(&at, ca, &c, why)) == 0) {
		more = realloc(ret->certificates, (ret->n + 1) * sizeof(c));
		if (!more)
			cli_out_of_memory();
		ret->certificates = more;
		ret->certificates[ret->n++] = c;
	}
	if (r < 0)
		return cli_error("%s: %s", path, why);
	if (ret->n)
		return 0;
	return cli_error(strstr(pem, "PRIVATE KEY-----")
				 ? "%s holds a private key; its certificate is the file beside it "
				   "that ends with .crt"
				 : "%s holds no certificate in PEM",
			 path);
}

static int pki_print(const struct cli *cli, const struct shown *shown)
{
	struct json json = {.file = stdout};
	bool wrong = false;

	if (cli->format.json) {
		json_open(&json, NULL, '{');
		json_open(&json, "certificates", '[');
	}
	for (size_t i = 0; i < shown->n; i++) {
		const struct pki_certificate *c = &shown->certificates[i];

		wrong |= c->n_wrong > 0;
		if (cli->format.json)
			print_json(&json, c);
		else if (i && fputc('\n', stdout) != EOF)
			print_text(c);
		else
			print_text(c);
	}
	if (cli->format.json) {
		json_close(&json, ']');
		json_close(&json, '}');
	}
	return wrong ? EXIT_FAILED : 0;
}

static int read_text(const char *path, char **ret)
{
	mode_t mode;
	int r = atomic_file_read(AT_FDCWD, path, FILE_MAX, ret, &mode);

	if (r == -EINVAL)
		return cli_error("%s is no file of text; certificates are in PEM here", path);
	return r < 0 ? cli_error("cannot read %s: %s", path, strerror(-r)) : 0;
}

static void pki_wipe(char **text)
{
	if (*text)
		explicit_bzero(*text, strlen(*text)); /* it may be a key by mistake */
	free(*text);
}

static int run_show(struct cli *cli, int argc, char *argv[])
{
	static const struct option longs[] = {
		{"ca", required_argument, NULL, OPTION_CA},
		OPTIONS_JSON,
		OPTION_HELP,
		{},
	};
	cleanup(pki_wipe) char *pem = NULL;
	cleanup(pki_wipe) char *ca = NULL;
	cleanup(shown_deinit) struct shown shown = {};
	const char *ca_path = NULL;

	while (cli_option(cli, argc, argv, LETTERS_JSON, longs) >= 0)
		ca_path = optarg;
	if (argc - optind != 1)
		cli_usage(cli, "'%s' wants a file", cli->verb->name);
	if (read_text(argv[optind], &pem) || (ca_path && read_text(ca_path, &ca)) ||
	    read_all(argv[optind], pem, ca, &shown))
		return EXIT_FAILED;
	return pki_print(cli, &shown);
}

const struct verb verb_pki_ca = {
	.name = "pki ca",
	.args = "DIR",
	.summary = "Create a CA for certificates of nodes",
	.peer = PEER_NONE,
	.run = run_ca,
};

const struct verb verb_pki_node = {
	.name = "pki node",
	.args = "DIR NAME",
	.summary = "Issue the certificate of a node, by the CA in DIR",
	.options = "     --days DAYS        validity (365), at most that of its CA\n"
		   "     --out DIR          folder to write to (DIR of the CA)\n",
	.peer = PEER_NONE,
	.run = run_node,
};

const struct verb verb_pki_revoke = {
	.name = "pki revoke",
	.args = "DIR [NAME]",
	.summary = "Revoke all certificates of a node, by the CA in DIR",
	.peer = PEER_NONE,
	.run = run_revoke,
};

const struct verb verb_pki_show = {
	.name = "pki show",
	.args = "FILE",
	.summary = "Show certificates and their errors",
	.options = "     --ca FILE          certificate of the CA to verify it by\n" HELP_JSON,
	.peer = PEER_NONE,
	.run = run_show,
};
