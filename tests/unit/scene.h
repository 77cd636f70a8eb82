/* Of a test that plays many scenes, the one that is played. */
#pragma once

#define SCENE_SIZE 128

extern char scene[SCENE_SIZE];
/* A teardown that tells it, if the test came to no end. */
int scene_tell(void **state);
