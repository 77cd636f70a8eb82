/*
 * Refusals of the kernel are explained by the first thing that is missing: rights, BTF, the release.
 */
#include "bpf/base/support.h"

#include <errno.h>
#include <linux/capability.h>
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <unistd.h>

bool support_has_capability(unsigned capability)
{
	struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
	struct __user_cap_data_struct data[_LINUX_CAPABILITY_U32S_3];

	if (syscall(SYS_capget, &header, data) < 0)
		return false;
	return data[CAP_TO_INDEX(capability)].effective & CAP_TO_MASK(capability);
}

bool support_has_btf(void)
{
	return access("/sys/kernel/btf/vmlinux", R_OK) == 0;
}

void support_explain(int r, const char *since, char ret_why[WHY_SIZE])
{
	bool can = support_has_capability(CAP_SYS_ADMIN);
	struct utsname kernel;

	if (!can && !support_has_capability(CAP_BPF))
		(void)snprintf(ret_why, WHY_SIZE,
			       "weightd-trace lacks CAP_BPF%s, which its unit and root have",
			       support_has_capability(CAP_PERFMON) ? "" : " and CAP_PERFMON");
	else if (!can && !support_has_capability(CAP_PERFMON))
		(void)snprintf(ret_why, WHY_SIZE,
			       "weightd-trace lacks CAP_PERFMON, which its unit and root have");
	else if (!support_has_btf())
		(void)snprintf(ret_why, WHY_SIZE,
			       "the kernel has no BTF in /sys/kernel/btf/vmlinux: %s",
			       strerror(errno));
	else if (uname(&kernel) == 0 && strverscmp(kernel.release, since) < 0)
		(void)snprintf(ret_why, WHY_SIZE, "it needs Linux %s, and this is %s", since,
			       kernel.release);
	else
		(void)snprintf(ret_why, WHY_SIZE, "the kernel refuses it: %s", strerror(-r));
}
