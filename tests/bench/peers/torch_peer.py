"""torch_peer.py BYTES COUNT...: torch.multiprocessing, file_descriptor strategy

The consumer connects to the process that holds the tensors and receives them by torch's own reductions:
a descriptor for each tensor, whether or not their storage is the same.
"""
import multiprocessing
import os
import resource
import sys
from multiprocessing.connection import Client, Listener

import rounds

ADDRESS = f"\0weightd-bench-{os.getpid()}"


def hold(n_bytes, pipe):
    """The producer: answers (kind, count) with tensors, one consumer after the other; () ends it."""
    import torch
    import torch.multiprocessing

    torch.multiprocessing.set_sharing_strategy("file_descriptor")
    flat = torch.empty(n_bytes, dtype=torch.uint8).fill_(rounds.MARK).share_memory_()
    kind, count, answer = None, None, None
    with Listener(ADDRESS, "AF_UNIX") as listener:
        pipe.send(torch.__version__)
        while True:
            with listener.accept() as consumer:
                wanted = consumer.recv()
                if not wanted:
                    return
                if wanted != (kind, count):
                    kind, count = wanted
                    answer, flat = make(torch, kind, rounds.table(n_bytes, count), flat)
                consumer.send(answer)
                consumer.recv()  # descriptors have to be there until they are taken


def make(torch, kind, table, flat):
    """The tensors to send, and the flat tensor as long as it is needed: both do not fit."""
    if kind == "flat":
        return (flat, table), flat
    if kind == "storages":
        del flat
        return {name: torch.full(shape, rounds.MARK, dtype=torch.uint8).share_memory_()
                for name, (_, shape) in table.items()}, None
    return {name: cut(flat, entry) for name, entry in table.items()}, flat


def cut(flat, entry):
    offset, shape = entry
    return flat[offset:offset + shape[0] * shape[1]].view(shape)


def measure(kind, count, torch_release):
    name = "torch" if kind == "dict" else f"torch-{kind}"
    last = list(rounds.table(1 << 30, count))[-1]
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if kind != "flat" and count * 2 + 64 > limit:
        rounds.skip(name, count, f"needs {count} descriptors and more, the limit is {limit}")
        return

    def attach():
        consumer = Client(ADDRESS, "AF_UNIX")
        consumer.send((kind, count))
        received = consumer.recv()
        tensor = cut(received[0], received[1][last]) if kind == "flat" else received[last]
        return (consumer, received), int(tensor[0, 0])

    def release(kept):
        kept[0].send("taken")
        kept[0].close()

    consumer, _ = attach()[0]  # the producer makes the tensors now
    release((consumer, None))
    rounds.measure(name, count, attach, release, torch=torch_release)


def main(n_bytes, *counts):
    context = multiprocessing.get_context("fork")  # before torch has threads
    ours, theirs = context.Pipe()
    producer = context.Process(target=hold, args=(int(n_bytes), theirs))
    producer.start()
    import torch.multiprocessing  # registers the reductions

    try:
        release = ours.recv()
        for kind in ("flat", "dict", "storages"):
            for count in map(int, counts):
                measure(kind, count, release)
    finally:
        with Client(ADDRESS, "AF_UNIX") as consumer:
            consumer.send(())
        producer.join()


if __name__ == "__main__":
    main(*sys.argv[1:])
