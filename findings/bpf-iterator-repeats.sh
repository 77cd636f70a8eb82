#!/bin/bash
# A BPF iterator runs its program again for an object whose output did not fit. Other effects of the program happen twice.
#
# The kernel reads an iterator through a buffer of eight pages. bpf_seq_write() returns -EOVERFLOW when the buffer is full.
# read() then returns what the buffer holds, without the output of the current object, and the next read() runs the program
# for that object once more. The output has each object once, so nothing looks wrong. A counter that the program keeps in a
# map counts the object twice. A program with side effects must check the result of bpf_seq_write() and tolerate repetition.
#
# Seen on Linux 6.18 (x86-64) with clang 14.0.6 and bpftool 7.1.0 of Debian 12, as root, one record of 1,000 bytes a task:
#   records: 438
#   runs of the program: 451
# The numbers depend on how many tasks there are: one in 33 of them repeats. With a read() of less than the buffer, as
# that of wc, none does. The script fails if both numbers are equal.
set -euo pipefail
PATH=$PATH:/usr/sbin

for program in clang bpftool; do
	command -v $program >/dev/null || { echo "needs $program (apt-get install clang libbpf-dev bpftool)" >&2; exit 2; }
done
folder=$(mktemp -d)
mkdir "$folder/bpf"
mount -t bpf none "$folder/bpf"
trap 'umount "$folder/bpf"; rm -rf "$folder"' EXIT

cat >"$folder/repeats.bpf.c" <<'C'
#include <linux/bpf.h>
#include <bpf/bpf_helpers.h>

struct bpf_iter_meta {
	struct seq_file *seq;
} __attribute__((preserve_access_index));
struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
} __attribute__((preserve_access_index));

char LICENSE[] SEC("license") = "GPL";

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u64);
} repeats_n_runs SEC(".maps");

static const char record[1000];

SEC("iter/task")
int visit(struct bpf_iter__task *ctx)
{
	__u32 zero = 0;
	__u64 *n_runs = bpf_map_lookup_elem(&repeats_n_runs, &zero);

	if (!ctx->task || !n_runs)
		return 0;
	__sync_fetch_and_add(n_runs, 1);
	bpf_seq_write(ctx->meta->seq, (void *)record, sizeof(record));
	return 0;
}
C
clang -O2 -g -target bpf -mcpu=v3 -idirafter "/usr/include/$(uname -m)-linux-gnu" -c -o "$folder/repeats.o" \
	"$folder/repeats.bpf.c"
bpftool iter pin "$folder/repeats.o" "$folder/bpf/visit"
bytes=$(dd if="$folder/bpf/visit" bs=64K status=none | wc -c) # a smaller read() never fills the buffer
runs=$(bpftool map dump name repeats_n_runs | sed -n 's/.*"value": \([0-9]*\).*/\1/p')

echo "records: $((bytes / 1000))"
echo "runs of the program: $runs"
[ "$runs" -gt $((bytes / 1000)) ] || { echo "the program ran once for each object: this has changed" >&2; exit 1; }
