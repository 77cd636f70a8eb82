#pragma once

#include "libclient/client.h"

/* Ends the attachments whose streams have passed; `wait`: all. How many are left. */
int leave_look(struct weightd *w, bool wait);
