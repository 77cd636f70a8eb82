/*
 * The release of the programs. That of libweightd is in weightd.h.
 */
#pragma once

#define RELEASE "0.1.0"
