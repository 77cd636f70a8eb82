#include <errno.h>

#include "server/base/ini.h"

int ini_line_read(const char *line, struct ini_line *ret)
{
	(void)line;
	(void)ret;
	return -ENOSYS;
}
