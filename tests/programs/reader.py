"""
A program for the control: reader.py FILE maps the file as safetensors does, and reports the sum of its elements. A
line of input asks for the sum again, of the same tensors.
"""
import sys

from program import say
from safetensors.torch import load_file


def main():
    tensors = load_file(sys.argv[1])
    say({"path": sys.argv[1], "sum": total(tensors)})
    for _line in sys.stdin:
        say({"path": sys.argv[1], "sum": total(tensors)})


def total(tensors):
    return sum(tensor.double().sum().item() for tensor in tensors.values())


if __name__ == "__main__":
    main()
