/*
 * Sockets that a child of this process must not keep open: their peers would not notice that it died
 *
 * They are close-on-exec; a child that executes nothing closes them as it begins.
 */
#pragma once

/* From now until it is closed, which nobody has to tell. -ENOMEM, with a sentence. */
int sockets_add(int fd);
