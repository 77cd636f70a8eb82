/* Sockets that block in their last close() for long, unless their peer ends. */
#pragma once

/* A new one, of the loopback interface; the program holds its peer to the end. -1: there are too many. */
int stuck_socket_new(void);

/* Lets the caller's close() return at once. -1 is fine. */
void stuck_socket_free(int fd);

/* Closes it, soon even where that is the last descriptor: whom it was sent to may have been faster. -1 is fine. */
void stuck_socket_close(int fd);
