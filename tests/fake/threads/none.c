/*
 * A system without threads, for a program that is started with this in LD_PRELOAD: it ends where it begins one.
 */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
	(void)thread, (void)attr, (void)start, (void)arg;
	(void)fputs("a thread begins: tests/unit/threads does not name this program\n", stderr);
	abort();
}
