"""The memory of a process that shows a file: its areas in /proc/PID/smaps."""
import pathlib
import re
from typing import NamedTuple

FIRST = re.compile(r"^(?P<start>[0-9a-f]+)-(?P<end>[0-9a-f]+) \S+ \S+ \S+ (?P<inode>\d+) *(?P<name>.*)$")


class Area(NamedTuple):
    """
    Addresses, and bytes. `anonymous` are those of pages that the process wrote: they are no longer the file's, and
    no other process shares them.
    """

    start: int
    end: int
    pss: int
    rss: int
    anonymous: int


def areas_of(pid, path):
    """Areas of the file that is open as `path`, in order of their addresses."""
    file = pathlib.Path(path)
    inode, name = file.stat().st_ino, str(file.resolve())
    found = []
    for text in re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", pathlib.Path(f"/proc/{pid}/smaps").read_text(), flags=re.M)[1:]:
        first = FIRST.match(text.split("\n")[0])
        if int(first["inode"]) == inode and first["name"] == name:
            found.append(Area(int(first["start"], 16), int(first["end"], 16),
                              *(_bytes(text, key) for key in ("Pss", "Rss", "Anonymous"))))
    return found


def share_inside(areas, ranges):
    """The share of the bytes of `ranges`, pairs of an address and a size, that lie in the areas."""
    inside = sum(size for address, size in ranges
                 if any(area.start <= address and address + size <= area.end for area in areas))
    return inside / sum(size for _, size in ranges)


def _bytes(text, key):
    return int(re.search(rf"^{key}: +(\d+) kB$", text, re.M)[1]) * 1024
