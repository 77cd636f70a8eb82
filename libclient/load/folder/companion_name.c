/*
 * The names follow the tokenizers and processors of transformers, the modules of sentence-transformers and the
 * components of diffusers.
 */
#include "libclient/load/folder/companion_name.h"

#include <stddef.h>
#include <string.h>

#include "ipc/base/num.h"
#include "libclient/load/folder/directory.h"

static bool has_suffix(const char *name, const char *const *suffixes, size_t n)
{
	size_t size = strlen(name);

	for (size_t i = 0; i < n; i++) {
		size_t suffix = strlen(suffixes[i]);

		if (size > suffix && !strcmp(name + size - suffix, suffixes[i]))
			return true;
	}
	return false;
}

bool companion_is_weights(const char *name)
{
	static const char *const suffixes[] = {
		".safetensors", ".sft",       ".bin", ".pt",        ".pth",  ".ckpt",   ".gguf",
		".h5",          ".msgpack",   ".npz", ".onnx",      ".ot",   ".tflite", ".ggml",
		".pkl",         ".onnx_data", ".pte", ".mlpackage", ".nemo",
	};

	return has_suffix(name, suffixes, ARRAY_LEN(suffixes));
}

/* The index of sharded weights, which are one file in a version: "model.safetensors.index.fp16.json". */
static bool is_index(const char *name)
{
	const char *index = strstr(name, ".index.");

	return directory_is_index(name) || (index && has_suffix(index, &(const char *){".json"}, 1));
}

bool companion_is_small_file(const char *name)
{
	static const char *const suffixes[] = {
		".json",  ".jinja",    ".txt",       ".model", ".spm", ".bpe",  ".codes",
		".vocab", ".tiktoken", ".tokenizer", ".py",    ".md",  ".yaml", ".yml",
	};
	static const char *const beginnings[] = {"README", "LICENSE", "LICENCE", "NOTICE"};

	/* A log of the training, as large as the training is long. */
	if (is_index(name) || companion_is_weights(name) || !strcmp(name, "trainer_state.json"))
		return false;
	for (size_t i = 0; i < ARRAY_LEN(beginnings); i++)
		if (!strncmp(name, beginnings[i], strlen(beginnings[i])))
			return true;
	return has_suffix(name, suffixes, ARRAY_LEN(suffixes));
}
