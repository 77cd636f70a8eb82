"""Points where tests kill the daemon: those listed and those in the code are the same."""
import re

from lint import sources


def test_each_point_is_listed_and_stands_in_one_place():
    listed = re.findall(r'"([a-z-]+)"', re.search(r"points\[\] = \{(.*?)\};", sources.text("server/base/fault.c"), re.S)[1])
    used = []
    for path in sources.files("server"):
        used += re.findall(r'\bfault_point\("([^"]*)"\)', sources.code(path, keep_strings=True))
    assert sorted(used) == sorted(listed)
