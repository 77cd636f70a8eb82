/*
 * A listening TCP socket
 */
#pragma once

#define LISTENER_WHY_SIZE 300
/* "[", an IPv6 address with a scope, "]:65535". */
#define LISTENER_ADDRESS_SIZE 128

/*
 * Listens at ADDR:PORT, as 127.0.0.1:9464, [::1]:9464 or localhost:9464; port 0 is one that the kernel chooses. Returns the
 * descriptor, which does not block, and the address in numbers; or a negative errno, and the reason. A name may be asked of
 * servers, which blocks.
 */
int listener_open(const char *address, char ret_address[LISTENER_ADDRESS_SIZE],
		  char ret_why[LISTENER_WHY_SIZE]);
