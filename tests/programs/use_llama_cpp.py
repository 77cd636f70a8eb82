"""llama-cpp-python: Llama(model_path=...), and the logits of a prompt. It shows no parameters."""
import os

import llama_cpp
from program import main


def load(path, use_mmap=True):
    return llama_cpp.Llama(model_path=os.path.join(path, "model.gguf"), n_ctx=256, n_threads=1, n_threads_batch=1,
                           logits_all=True, verbose=False, use_mmap=use_mmap)


def output(model):
    model.reset()
    model.eval(list(range(3, 19)))
    return model.scores[:16].tobytes()


def parameters(_model):
    return None


if __name__ == "__main__":
    main(load, output, parameters)
