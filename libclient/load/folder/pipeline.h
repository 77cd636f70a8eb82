/*
 * Pipelines
 *
 * A directory without weights of its own, whose model_index.json (diffusers) or modules.json (sentence-transformers)
 * says that its sub-folders are the components of one model.
 */
#pragma once

#include "libclient/connection/sentence.h"

/*
 * 1: `directory` is a pipeline, and its weights are in the folder `*ret_component`, which the caller frees. 0: it is none,
 * or has no weights at all. -EBADMSG: several components have weights; the sentence lists them.
 */
int pipeline_find(const char *directory, char **ret_component, struct sentence *s);
