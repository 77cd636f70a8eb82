"""Windows on jobs of a real weightd: sums in the order of ranks, deaths, and weightd's own death."""
import array
import errno
import itertools
import json
import os
import pathlib
import random
import signal
import struct
import subprocess
import sys
import time

import pytest
from lib.native import Client
from lib.wire import Wire, until

PROGRAM = pathlib.Path(__file__).with_name("window_program.py")
SIZE = 1 << 20
BF16, F32 = 15, 18
NOTICED_S, BUSY_S = 0.1, 1.9  # of a death; more, on a busy machine


class Rank:
    def __init__(self, daemon, token, number, size=SIZE, deadline_ms=60000):
        self.process = subprocess.Popen([sys.executable, PROGRAM, token, str(number), str(size), str(deadline_ms)], text=True,
                                        env=daemon.env, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self.pid = self.process.pid

    def open(self):
        """Lets it open its window, once its program has started. Returns self."""
        assert self.process.stdout.readline() == "ready\n", f"the rank ended with {self.process.wait()}"
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self

    def ask(self, *request):
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()

    def answer(self):
        line = self.process.stdout.readline()
        assert line, f"the rank ended with {self.process.wait()}"
        return json.loads(line)

    def close(self):
        self.process.kill()
        self.process.wait()
        self.process.stdin.close()
        self.process.stdout.close()


@pytest.fixture
def make_window(keeper):
    """make_window(n): the ranks, which have opened their window, and its token."""
    ranks, numbers = [], itertools.count()

    def make(n, **options):
        with Client(keeper.socket) as client:
            token = client.create_job(f"window-{next(numbers)}", n_ranks=n)
        made = [Rank(keeper, token, i, **options) for i in range(n)]
        ranks.extend(made)
        for rank in made:
            rank.open()
        for rank in made:
            opened = rank.answer()
            assert opened["r"] == 0, opened
        return made, token

    yield make
    for rank in ranks:
        rank.close()


def all_ask(ranks, *request):
    for rank in ranks:
        rank.ask(*request)
    return [rank.answer() for rank in ranks]


def call(ranks, *request):
    for found in all_ask(ranks, "call", *request):
        assert found["r"] == 0, found


def as_float(value):
    return struct.unpack("f", struct.pack("f", value))[0]


def draw(numbers, n):
    """Sums of these depend on their order."""
    return array.array("f", [numbers.uniform(-1, 1) * 2 ** numbers.randrange(16) for _ in range(n)])


def sum_in_order(columns):
    return array.array("f", [0.0 + as_float(sum_floats(column)) for column in zip(*columns)])


def sum_floats(column):
    total = column[0]
    for value in column[1:]:
        total = as_float(total + value)
    return total


def jobs(daemon):
    with Client(daemon.socket) as client:
        return client.jobs()


@pytest.mark.parametrize("n_ranks", [1, 2, 3, 4])
def test_all_reduce_is_the_sum_in_the_order_of_ranks_and_the_job_ends_with_the_last_rank(keeper, make_window, n_ranks):
    ranks, _ = make_window(n_ranks)
    numbers = random.Random(n_ranks)
    for n in (1, 33, 1000, 20011):
        columns = [draw(numbers, n) for _ in ranks]
        for rank, column in zip(ranks, columns):
            rank.ask("fill", 64, column.tobytes().hex())
            assert rank.answer()["r"] == 0
        call(ranks, "all_reduce", 64, n, F32)
        expected = sum_in_order(columns).tobytes().hex()
        for found in all_ask(ranks, "read", 64, 4 * n):
            assert found["hex"] == expected
    assert [row["n_present"] for row in jobs(keeper).values()] == [n_ranks]
    all_ask(ranks, "free")
    until(lambda: not jobs(keeper), "the job is gone")


def test_the_other_collectives_move_what_they_have_to(make_window):
    ranks, _ = make_window(3)
    content = [bytes([16 * i + j for j in range(16)]) * 3200 for i in range(3)]  # 25600 elements of bf16
    cuts = [0, 8544, 17088, 25600]

    def refill():
        for rank, own in zip(ranks, content):
            rank.ask("fill", 0, own.hex())
            assert rank.answer()["r"] == 0

    refill()
    call(ranks, "all_gather", 0, 25600, BF16, None)
    expected = b"".join(own[2 * begin:2 * end] for own, begin, end in zip(content, cuts, cuts[1:]))
    assert [bytes.fromhex(found["hex"]) == expected for found in all_ask(ranks, "read", 0, 51200)] == [True] * 3
    refill()
    call(ranks, "broadcast", 0, 51199, 2)
    for found, own in zip(all_ask(ranks, "read", 0, 51200), content):
        assert bytes.fromhex(found["hex"]) == content[2][:51199] + own[51199:]
    ones = struct.pack("<H", 0x3f80) * 25600
    for rank in ranks:
        rank.ask("fill", 0, ones.hex())
        assert rank.answer()["r"] == 0
    call(ranks, "reduce_scatter", 0, 25600, BF16)
    for found, begin, end in zip(all_ask(ranks, "read", 0, 51200), cuts, cuts[1:]):
        assert bytes.fromhex(found["hex"])[2 * begin:2 * end] == struct.pack("<H", 0x4040) * (end - begin)


def test_a_death_in_a_collective_fails_the_others_with_a_sentence(make_window):
    ranks, _ = make_window(3)
    for rank in ranks[::2]:
        rank.ask("call", "all_reduce", 0, 1000, F32)
    died = time.monotonic()
    os.kill(ranks[1].pid, signal.SIGKILL)
    for rank in ranks[::2]:
        found = rank.answer()
        assert found["r"] == -errno.EOWNERDEAD, found
        assert f"rank 1 (process {ranks[1].pid}) died" in found["sentence"] and "weightctl rm window-0" in found["sentence"]
        assert found["at"] - died < NOTICED_S + BUSY_S


def test_a_stopped_rank_ends_a_barrier_at_the_deadline(make_window):
    ranks, _ = make_window(2, deadline_ms=3000)
    os.kill(ranks[1].pid, signal.SIGSTOP)
    ranks[0].ask("call", "barrier")
    found = ranks[0].answer()
    assert found["r"] == -errno.ETIMEDOUT, found
    assert f"rank 1 (process {ranks[1].pid}) did not enter the barrier" in found["sentence"] and "within 3 s" in found["sentence"]


def test_collectives_need_no_weightd(keeper, make_window):
    """Its memory and the locks of ranks outlive it; the keeper starts it anew."""
    ranks, _ = make_window(2)
    with Wire(keeper.socket) as wire:
        os.kill(wire.ping().pid, signal.SIGKILL)
    for _ in range(20):
        call(ranks, "all_reduce", 0, 20000, F32)
    until(keeper.is_serving, "weightd is back")
    call(ranks, "barrier")


def test_a_removed_job_ends_a_wait(keeper, make_window):
    ranks, _ = make_window(2)
    ranks[0].ask("call", "barrier")
    with Client(keeper.socket) as client:
        client.remove_job("window-0")
    found = ranks[0].answer()
    assert found["r"] == -errno.ESTALE and "job 'window-0' was removed" in found["sentence"], found


def test_windows_of_other_sizes_are_refused_with_both(keeper, make_window):
    with Client(keeper.socket) as client:
        token = client.create_job("w", n_ranks=2)
    first, second = Rank(keeper, token, 0).open(), None
    try:
        until(lambda: jobs(keeper)["w"]["n_present"] == 1, "rank 0 has joined")
        second = Rank(keeper, token, 1, size=2 * SIZE).open()
        found = second.answer()
        assert found["r"] == -errno.EPROTOTYPE and str(SIZE) in found["sentence"] and str(2 * SIZE) in found["sentence"], found
    finally:
        for rank in filter(None, (first, second)):
            rank.close()


def test_the_job_of_a_trainer_has_no_window(keeper, make_job):
    job = make_job(2, steps=3)
    trainer = job.start(0, hold_at=2)
    job.start(1)
    assert trainer.held() == 2
    rank = Rank(keeper, job.token, 1).open()
    try:
        found = rank.answer()
        assert found["r"] == -errno.EPROTOTYPE and "has no window, it is one of trainers" in found["sentence"], found
    finally:
        rank.close()
    trainer.go_on()
    job.finish()


def test_a_token_of_no_job_is_refused(keeper):
    rank = Rank(keeper, "nowhere:" + "0" * 64, 0).open()
    try:
        found = rank.answer()
        assert found["r"] == -errno.ENOENT and "'nowhere'" in found["sentence"], found
    finally:
        rank.close()
