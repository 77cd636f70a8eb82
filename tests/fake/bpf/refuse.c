/*
 * A kernel that refuses some BPF programs, for a process with this in LD_PRELOAD: the programs
 * named in WEIGHTD_REFUSED, separated by commas, fail to load with EPERM. With "iter-create" among
 * the names iterators fail to start, as where a supervisor refuses that command. All else is the
 * real kernel's.
 */
#include <dlfcn.h>
#include <errno.h>
#include <linux/bpf.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static int is_refused(const char *name, size_t size)
{
	const char *list = getenv("WEIGHTD_REFUSED");
	size_t n = strnlen(name, size);

	for (const char *s = list; s && *s; s += strcspn(s, ","), s += *s == ',')
		if (n > 0 && strcspn(s, ",") == n && !memcmp(s, name, n))
			return 1;
	return 0;
}

static int is_command_refused(int command, const union bpf_attr *attr)
{
	if (command == BPF_ITER_CREATE)
		return is_refused("iter-create", sizeof("iter-create"));
	return command == BPF_PROG_LOAD && is_refused(attr->prog_name, sizeof(attr->prog_name));
}

long syscall(long number, ...)
{
	static long (*real)(long number, ...);
	long a[6];
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (number == SYS_bpf &&
	    is_command_refused((int)a[0], (const union bpf_attr *)(unsigned long)a[1])) {
		errno = EPERM;
		return -1;
	}
	if (!real)
		*(void **)&real = dlsym(RTLD_NEXT, "syscall");
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
