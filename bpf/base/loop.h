/*
 * The loop: descriptors, and what is called when one is ready
 */
#pragma once

#include <stdint.h>
#include <sys/epoll.h>

struct waiter {
	int fd;
	void (*ready)(struct waiter *w, uint32_t events);
};

int loop_open(int *ret_fd);
int loop_add(int loop_fd, struct waiter *w);
/* EPOLLIN, EPOLLOUT */
void loop_modify(int loop_fd, struct waiter *w, uint32_t events);
void loop_remove(int loop_fd, struct waiter *w);
/* Waits, and calls one of those that are ready: it may free any. */
int loop_turn(int loop_fd);
