"""vineyard_peer.py BYTES COUNT...: vineyard, with a vineyardd of its own

The wheel of vineyard-bdist carries the daemon, and -meta local needs no etcd. get_meta() returns the
whole tree of metadata and maps all blobs; a member is looked up in it by name.
"""
import contextlib
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time

import numpy
import vineyard
import vineyard.bdist

import rounds

START_S = 20
# vineyard takes time by the square of the tensors: 20,000 took 10 s to make, and 2.7 s to get.
COUNT_MAX = 10_000


@contextlib.contextmanager
def private_daemon(n_bytes):
    """The socket of a vineyardd with room for that, and some more."""
    with tempfile.TemporaryDirectory(prefix="weightd-bench-") as folder:
        path = pathlib.Path(folder, "socket")
        command = [pathlib.Path(vineyard.bdist.__file__).parent / "vineyardd", "-meta", "local",
                   "-rpc=false", "-size", str(n_bytes + (512 << 20)), "-socket", path]
        with open(pathlib.Path(folder, "log"), "wb") as log:
            daemon = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder)
        try:
            deadline = time.monotonic() + START_S
            while not answers(path):
                if daemon.poll() is not None or time.monotonic() > deadline:
                    log_text = pathlib.Path(folder, "log").read_text()
                    sys.exit(f"vineyardd does not serve: {log_text[-300:]}")
                time.sleep(0.02)  # nothing to wait on before the socket is there
            yield str(path)
        finally:
            daemon.kill()
            daemon.wait()


def answers(path):
    try:
        vineyard.connect(str(path)).close()
        return True
    except Exception:  # vineyard has many kinds of them
        return False


# --- Making the objects, in a process of its own: a process has one connection to a socket -----------


def make_flat(client, tables, n_bytes):
    """One blob, and an object with a table for each number of tensors."""
    builder = client.create_blob(n_bytes)
    numpy.frombuffer(memoryview(builder).cast("B"), numpy.uint8).fill(rounds.MARK)
    blob = builder.seal(client)
    for count, table in tables.items():
        meta = vineyard.ObjectMeta()
        meta["typename"] = "bench::Flat"
        meta["table"] = json.dumps(table)
        meta.add_member("buffer_", blob)
        publish(client, f"flat-{count}", meta)


def make_tensors(client, table):
    builders = [client.create_blob(rows * columns) for _, (rows, columns) in table.values()]
    whole = vineyard.ObjectMeta()
    whole["typename"] = "bench::Weights"
    metas = []
    for builder, (_, shape) in zip(builders, table.values()):
        bytes_ = numpy.frombuffer(memoryview(builder).cast("B"), numpy.uint8)
        bytes_.fill(rounds.MARK)
        meta = vineyard.ObjectMeta()
        meta["typename"] = "vineyard::Tensor<uint8>"
        meta["shape_"] = json.dumps(shape)
        meta["value_type_"] = "uint8"
        meta["value_type_meta_"] = "|u1"
        meta["partition_index_"] = "[]"
        meta["order_"] = '"C"'
        meta["nbytes"] = bytes_.nbytes
        meta.add_member("buffer_", builder.seal(client))
        metas.append(meta)
    made = client.create_metadata(metas) if len(metas) > 1 else [client.create_metadata(metas[0])]
    for key, meta in zip(table, made):
        whole.add_member(key, meta)
    publish(client, "tensors", whole)


def publish(client, name, meta):
    made = client.create_metadata(meta)
    client.persist(made.id)
    client.put_name(made.id, name)


def make(socket, kind, n_bytes, *counts):
    client = vineyard.connect(socket)
    tables = {count: rounds.table(n_bytes, count) for count in counts}
    if kind == "flat":
        make_flat(client, tables, n_bytes)
    else:
        make_tensors(client, tables[counts[0]])
    client.close()


# --- Consuming ---------------------------------------------------------------------------------------


def measure_flat(socket, count, last):
    def attach():
        client = vineyard.connect(socket)
        meta = client.get_meta(client.get_name(f"flat-{count}"))
        offset, shape = json.loads(meta["table"])[last]
        memory = memoryview(meta.get_member("buffer_")).cast("B")
        tensor = numpy.ndarray(shape, numpy.uint8, memory, offset)
        return (client, meta, tensor), tensor[0, 0]

    rounds.measure("vineyard-flat", count, attach, release)


def measure_tensors(socket, count, last):
    def attach():
        client = vineyard.connect(socket)
        meta = client.get_meta(client.get_name("tensors"))
        member = meta.get_member(last)
        memory = memoryview(member.member("buffer_")).cast("B")
        tensor = numpy.ndarray(json.loads(member.meta["shape_"]), numpy.uint8, memory)
        return (client, meta, tensor), tensor[0, 0]

    rounds.measure("vineyard", count, attach, release)


def release(kept):
    kept[0].close()


def last_name(count):
    return list(rounds.table(1 << 30, count))[-1]


@contextlib.contextmanager
def served(kind, n_bytes, *counts):
    """The socket of a daemon that has the objects."""
    with private_daemon(n_bytes) as socket:
        subprocess.run([sys.executable, __file__, "make", socket, kind, str(n_bytes),
                        *map(str, counts)], check=True)
        yield socket


def main(n_bytes, *counts):
    with served("flat", n_bytes, *counts) as socket:
        for count in counts:
            measure_flat(socket, count, last_name(count))
    for count in counts:
        if count > COUNT_MAX:
            rounds.skip("vineyard", count, "minutes to make and seconds to get: 20,000 objects took "
                        "10 s and 2.7 s, and both grow faster than their number")
            continue
        with served("tensors", n_bytes, count) as socket:
            measure_tensors(socket, count, last_name(count))


if __name__ == "__main__":
    if sys.argv[1] == "make":
        make(sys.argv[2], sys.argv[3], *map(int, sys.argv[4:]))
    else:
        main(*map(int, sys.argv[1:]))
