"""weightd_peer.py NAME TENSOR COUNT: weightd by its Python package, server of $WEIGHTD_SOCKET."""
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "libclient/python"))

import weightd
from weightd import _connection

import rounds


def main(name, tensor, count):
    def attach():
        buffer = weightd.attach(name)
        return buffer, buffer[tensor].numpy()[0, 0]

    def release(buffer):
        buffer.close()
        # A process connects once; here every round has to be its first.
        _connection._shared.clear()

    rounds.measure("weightd-python", int(count), attach, release)


main(*sys.argv[1:])
