/*
 * A connection as a program has that cannot do without
 */
#pragma once

#include <weightd.h>

/* Connects to $WEIGHTD_SOCKET. Ends the program without a server. */
struct weightd *connect_anew(void);
