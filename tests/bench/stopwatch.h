/*
 * Common to the programs of the benches: the time, a way to give up, and the numbers
 *
 * A program measures and prints plain numbers, one round a line; ../bench/run makes figures of
 * them.
 */
#pragma once

#include <stdint.h>

/* CLOCK_MONOTONIC, the same in all processes. */
uint64_t stopwatch_ns(void);

/* User and system time of this process, of all its threads. */
uint64_t stopwatch_cpu_ns(void);

/* Ends the program with 1 and a sentence on standard error. */
__attribute__((format(printf, 1, 2), noreturn)) void stopwatch_fail(const char *format, ...);

/* A number of the command line; fails when it is none. */
uint64_t stopwatch_number(const char *text);
