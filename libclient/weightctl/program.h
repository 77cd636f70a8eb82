/*
 * The program that a verb runs in weightctl's place
 */
#pragma once

/* Exit statuses, as of a shell. */
enum {
	EXIT_NOT_EXECUTABLE = 126,
	EXIT_NOT_FOUND = 127,
};

/* Finds the program like a shell. Returns 0 and the path, which the caller frees, or an exit status after printing why. */
int program_search(const char *name, char **ret_path);
/* Prints why it cannot be run, for a negative errno, and returns the exit status. */
int program_refuse(const char *name, int r);

/*
 * Finds the program like a shell. Refuses programs that run with other privileges than the caller's, also as the
 * interpreter of a script: set-id files and files with capabilities. Returns 0 and the path, which the caller frees, or
 * an exit status after printing why.
 */
int program_find(const char *name, char **ret_path);

/* Returns only if the program cannot be run: an exit status, after printing why. */
int program_run(const char *path, char *argv[]);
