/* The program that converts a checkpoint, in Python. */
#pragma once

extern const char convert_text[];
