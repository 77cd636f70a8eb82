/*
 * A connection as a program has that cannot do without
 */
#pragma once

#include <weightd.h>

/* To $WEIGHTD_SOCKET. Ends the program when nobody answers. */
struct weightd *connect_anew(void);
