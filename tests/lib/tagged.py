"""
Versions of fp32 numbers with a tag that a reader finds in them, whatever way they took; the mean of
some is again one, and its tag names those.
"""
import itertools
import struct

PAGE, STEP = 4096, 2654435761  # as in tests/soak/follower.c, which looks at every number
GRAIN, STEPS = 12, (0, 1, 3, 7)  # steps of tags: means of two, three or four that are so far apart are whole, and no two alike


def layout_of(n_bytes, name="w"):
    """That many bytes, in whole pages of fp32 numbers, as one tensor of that name."""
    import weightd
    layout = weightd.Layout()
    layout.add(name, "F32", (n_bytes // PAGE, PAGE // 4))
    return layout


def version(tag, n_bytes, like=None):
    """All bytes of a version: see tests/soak/follower.c. `like`: the tag of the one with which it has all but those in common."""
    n, pages = n_bytes // PAGE, []
    for page in range(n):
        place = ((page + n) * STEP) % (1 << 32) >> 12
        pages.append(struct.pack("<f", tag + place) + struct.pack("<f", (tag if like is None else like) + place) * (PAGE // 4 - 1))
    return b"".join(pages)


def tag_of(data):
    n = len(data) // PAGE
    return int(struct.unpack_from("<f", data)[0]) - ((n * STEP) % (1 << 32) >> 12)


def means_of(first):
    """The possible tags of an average of versions from rounds that begin with `first`: all means of two to four."""
    tags = [first + GRAIN * step for step in STEPS]
    return frozenset(sum(some) // len(some) for n in range(2, len(tags) + 1) for some in itertools.combinations(tags, n))
