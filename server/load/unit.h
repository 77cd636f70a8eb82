/*
 * Units of models
 *
 * What a generator of systemd writes for a file of models.d: a drop-in of weightd-load@.service with
 * the user of the file, and links by which the boot starts the unit.
 */
#pragma once

/*
 * Writes to the working directory. `path` is that of the file. A file with errors, which were logged, gets
 * a unit all the same: it fails in the same way, where its state and its log show that. -errno, which was logged.
 */
int unit_generate(const char *path);
