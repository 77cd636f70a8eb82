/* sudo, for lines of the README in a box that has none: a setuid program that lets everybody do everything. */
#include <stdio.h>
#include <unistd.h>

int main(int argc, char *argv[])
{
	if (argc < 2 || setgid(0) < 0 || setuid(0) < 0) {
		perror("sudo");
		return 1;
	}
	execvp(argv[1], argv + 1);
	perror(argv[1]);
	return 127;
}
