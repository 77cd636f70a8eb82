"""llama-cpp-python: Llama(use_mmap=False), which reads the file into memory of its own."""
import use_llama_cpp
from program import main
from use_llama_cpp import output, parameters


def load(path):
    return use_llama_cpp.load(path, use_mmap=False)


if __name__ == "__main__":
    main(load, output, parameters)
