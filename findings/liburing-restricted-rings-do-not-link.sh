#!/bin/bash
# A program that restricts an io_uring compiles with liburing 2.3 and links with liburing.a, but not with liburing.so.
#
# A ring that is created with IORING_SETUP_R_DISABLED begins to work at io_uring_enable_rings(), and may be given the list
# of the operations that it accepts before, by io_uring_register_restrictions(). liburing.h declares both, and both are in
# the static library. The version script of the shared library forgets them, and them alone: each other function that the
# header declares and the static library has is exported. A configure script that looks for io_uring_queue_init() finds the
# library complete, and the link of the program fails. What is left is -l:liburing.a, or io_uring_register(2) itself.
#
# Seen with liburing-dev and liburing2 2.3-3 of Debian 12 (x86-64, gcc 12.2):
#   static: links, and the kernel accepts both calls
#   shared: undefined reference to io_uring_register_restrictions, io_uring_enable_rings
#   declared, static, not exported: io_uring_enable_rings io_uring_register_restrictions
# A kernel that refuses io_uring is told as such. The script fails if the shared library has the two.
set -euo pipefail

VERSION=2.3-3
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
chmod 755 "$folder"
cd "$folder"
apt-get -qq -o APT::Sandbox::User=root download "liburing-dev=$VERSION" "liburing2=$VERSION"
for package in *.deb; do
	dpkg -x "$package" .
done
lib=$folder/usr/lib/$(gcc -print-multiarch)
shared=("$lib"/liburing.so.2.*)

cat >ring.c <<'C'
#include <liburing.h>
#include <stdio.h>
#include <string.h>

int main(void)
{
	struct io_uring_restriction only_reads = {
		.opcode = IORING_RESTRICTION_SQE_OP,
		.sqe_op = IORING_OP_READ,
	};
	struct io_uring ring;
	int r = io_uring_queue_init(4, &ring, IORING_SETUP_R_DISABLED);

	if (r < 0) {
		printf("links; the kernel refuses io_uring: %s\n", strerror(-r));
		return 0;
	}
	r = io_uring_register_restrictions(&ring, &only_reads, 1);
	if (r == 0)
		r = io_uring_enable_rings(&ring);
	io_uring_queue_exit(&ring);
	if (r < 0) {
		printf("links; the kernel says %s\n", strerror(-r));
		return 1;
	}
	puts("links, and the kernel accepts both calls");
	return 0;
}
C

gcc -I usr/include ring.c "$lib/liburing.a" -o with-static
echo "static: $(./with-static)"

if gcc -I usr/include ring.c "${shared[0]}" -o with-shared 2>errors; then
	echo "shared: it links now"
	exit 1
fi
missing=$(grep -o 'undefined reference to .*' errors | grep -o 'io_uring_[a-z_]*' | paste -sd, | sed 's/,/, /g')
echo "shared: undefined reference to $missing"

names() { awk '$2 == "T" { print $3 }' | sed 's/@.*//' | sort -u; }
grep -oE '\bio_uring_[a-z_0-9]+\(' usr/include/liburing.h | tr -d '(' | sort -u >declared
nm "$lib/liburing.a" 2>/dev/null | names >static
nm -D "${shared[0]}" | names >exported
left=$(comm -12 declared static | comm -23 - exported | paste -sd' ')
echo "declared, static, not exported: $left"
[ "$left" = "io_uring_enable_rings io_uring_register_restrictions" ]
[ "$missing" = "io_uring_register_restrictions, io_uring_enable_rings" ]
