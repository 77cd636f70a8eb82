/*
 * The release of the programs here. Of libweightd it is in weightd.h.
 */
#pragma once

#define RELEASE "0.1.0"
