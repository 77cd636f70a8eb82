"""Look-ups in Python: names.py BUFFER ROUNDS. A line a round: processor ns of keys(), and of a look-up of each."""
import sys
import time

import weightd

buffer = weightd.attach(sys.argv[1])
for _ in range(int(sys.argv[2])):
    start = time.process_time_ns()
    names = list(buffer.keys())
    keys_ns = time.process_time_ns() - start
    start = time.process_time_ns()
    for name in names:
        buffer[name]
    print(keys_ns, time.process_time_ns() - start)
