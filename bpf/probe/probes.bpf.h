/*
 * Types that probes.bpf.c and the collector share
 */
#pragma once

#include <linux/types.h>

#define CALL_ARGS 6 /* those in registers, on every machine */
#define CALL_DATA_SIZE 128 /* bytes of the caller's memory; all of NCCL's id of a communicator */
#define CALL_COMM_SIZE 16
#define CALL_NAME_SIZE 64 /* bytes of a device name, as in libibverbs and the kernel */
#define CALLS_OF_USER_MAX                                                                          \
	4096 /* a second that are reported; calls that are counted have no limit */
#define SITES_MAX 64 /* functions; a power of two */
#define TYPES_MAX 16 /* types of counted elements */
#define NAMES_MAX 8 /* names of files to look for */
#define NAME_SIZE 16 /* the most that is compared */
#define MAPPING_PATH_SIZE 4096
#define MAPPING_NAME_SIZE 256 /* of a component, with its slash; a power of two */
#define MAPPING_DEEP 128 /* components and mounts that a path may have */
#define MAPPINGS_OF_PROCESS_MAX 64 /* that are reported */

/*
 * Memory of the caller that is read, beside the arguments. At the return it is what the function wrote.
 */
enum take {
	TAKE_NOTHING,
	TAKE_AT_CALL, /* behind the pointer in an argument */
	TAKE_VALUE, /* a struct that is an argument itself, too large for registers, and the first such one */
	TAKE_AT_RETURN, /* behind the pointer in an argument */
	TAKE_RESULT, /* behind the pointer that was returned */
};

/* The open file that a call is about. */
enum file_of {
	FILE_NONE,
	FILE_IN, /* the file of the descriptor in an argument */
	FILE_OUT, /* the one that the function wrote behind the pointer in an argument */
};

/* The parts of a call that are read. */
struct plan {
	__u8 take; /* enum take */
	__u8 take_arg; /* from 0; of TAKE_VALUE where the pointer to it is, on machines that pass one */
	__u8 take_size;
	__u8 take_from; /* so many bytes behind the pointer */
	__u8 file; /* enum file_of */
	__u8 file_arg;
	__u8 out; /* bytes behind the pointer in `out_arg` at the return, up to 8, which become probe_call::out */
	__u8 out_arg;
	__u8 out_from; /* so many bytes behind it */
	__u8 also_done; /* a result that is no failure either, beside 0 */
	__u8 is_counted; /* it is counted, and not reported */
	__u8 counts; /* it has elements: as many as `count_arg` has, of the type in `type_arg` */
	__u8 count_arg;
	__u8 type_arg;
	__u8 is_named; /* the first argument leads to a name, which is read at the call */
	__u8 name_hops; /* pointers to follow, each the first member behind the one before it */
	__u8 name_from; /* so many bytes behind the last */
};

/* Calls that are counted, of a process and a function. */
struct call_count_key {
	__u32 tgid;
	__u32 site;
};

/* From its first call on. */
struct call_count {
	__u64 calls;
	__u64 errors; /* the failed ones of these */
	__u64 bytes;
	__u64 calling_ns; /* all together */
	__u64 ns; /* time of the last */
	__u32 uid;
	__u32 epoch; /* the epoch in which new counts were announced */
	char comm[CALL_COMM_SIZE];
};

/* One that has returned. */
struct probe_call {
	__u64 ns; /* CLOCK_MONOTONIC, of its return */
	__u64 took_ns; /* duration of its call */
	__u64 sp; /* stack pointer of its caller, which distinguishes calls of one thread */
	__u64 args[CALL_ARGS];
	__u64 result;
	__u64 out;
	__u64 file, inode; /* addresses in the kernel: names of what is open, 0 if unknown */
	__u64 began_ns; /* CLOCK_BOOTTIME, of its process */
	__u32 tgid, tid, uid;
	__u16 site;
	__u8 has_data, has_out;
	char comm[CALL_COMM_SIZE];
	char name[CALL_NAME_SIZE]; /* "": it has none, or it could not be read */
	__u8 data[CALL_DATA_SIZE];
};

/* Calls that were not reported. */
struct missed {
	__u64 ring; /* it had no room */
	__u64 limited; /* its user had as many as it may */
	__u64 pending; /* there were too many at the same time: the arguments of this one are lost */
};

/* A name that files are looked for by: of all of it, or of how it begins. */
struct name {
	char text[NAME_SIZE];
	__u32 size; /* with the NUL where it is all of the name */
};

/* A file that a process may execute. */
struct mapping {
	__u64 inode; /* its address in the kernel */
	__u64 ino;
	__u32 dev, tgid;
	__u32 path_at; /* the path begins there */
	__u32 unused;
	char path[MAPPING_PATH_SIZE + MAPPING_NAME_SIZE]; /* "": unknown */
};
