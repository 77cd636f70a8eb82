/* The present scene of a test that plays many. */
#pragma once

#define SCENE_SIZE 128

extern char scene[SCENE_SIZE];
/* A teardown that prints it if the test did not finish. */
int scene_tell(void **state);
