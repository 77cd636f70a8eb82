"""The probes (USDT) in a program's notes, read without the code of weightd-trace."""
import os
import struct

PT_LOAD, SHT_NOTE = 1, 7


def looks(pid, probe):
    """How many look at a probe of that process, as probes() has it."""
    with open(f"/proc/{pid}/maps") as maps, open(f"/proc/{pid}/mem", "rb") as memory:
        program = os.readlink(f"/proc/{pid}/exe").removesuffix(" (deleted)")
        first = next(line for line in maps if line.split(maxsplit=5)[-1].rstrip("\n").removesuffix(" (deleted)") == program)
        memory.seek(int(first.split("-")[0], 16) + probe["address"])
        return int.from_bytes(memory.read(2), "little")


def probes(path):
    """
    {name: what readelf -n shows of it} of the provider weightd; of "location" and "semaphore" where they lie in the
    file, too, and of the semaphore its "address" in a program that is loaded at 0.
    """
    data = path.read_bytes()
    segments = list(_table(data, 32, 54, "<IIQQQQ", 56))
    sections = list(_table(data, 40, 58, "<IIQQQQ", 64))
    names = {}

    def offset(address):
        return next(at + address - start for kind, _, at, start, _, size in segments
                    if kind == PT_LOAD and start <= address < start + size)

    for _, kind, _, _, at, size in sections:
        for owner, n in _notes(data[at:at + size]) if kind == SHT_NOTE else ():
            if owner != b"stapsdt\0":
                continue
            location, _, semaphore = struct.unpack_from("<QQQ", n)
            provider, name, arguments, _ = n[24:].split(b"\0", 3)
            if provider == b"weightd":
                assert name.decode() not in names, name
                names[name.decode()] = {"location": offset(location), "semaphore": offset(semaphore),
                                        "address": semaphore, "arguments": arguments.decode()}
    return names


def _table(data, at, count_at, fields, size):
    start, = struct.unpack_from("<Q", data, at)
    count, = struct.unpack_from("<H", data, count_at + 2)
    return (struct.unpack_from(fields, data, start + i * size) for i in range(count))


def _notes(data):
    at = 0
    while at < len(data):
        n_name, n_data, _ = struct.unpack_from("<III", data, at)
        name, start = at + 12, at + 12 + (n_name + 3 & ~3)
        yield data[name:name + n_name], data[start:start + n_data]
        at = start + (n_data + 3 & ~3)
