"""tests/gpu/samples.py: rounds of the benchmarks on a GPU, and their figures."""
import pytest
import samples
import section_replay
from results import Skip


class Clock:
    """Each contestant lasts as long as it returns."""

    def __init__(self):
        self.now, self.calls = 0, []

    def __call__(self):
        return self.now

    def contestant(self, name, *seconds):
        lasts = iter(seconds)
        last = seconds[-1]

        def measure():
            took = next(lasts, last)
            self.now += took
            self.calls.append(name)
            return took
        return measure


@pytest.fixture
def clock():
    return Clock()


def test_rounds_begin_with_each_contestant_in_turn(clock):
    contestants = {name: clock.contestant(name, 1) for name in "abc"}
    taken, left_out = samples.take(contestants, 100, n_max=5, clock=clock)
    assert "".join(clock.calls) == "abc" "bca" "cab" "abc" "bca"
    assert (taken, left_out) == ({name: [1] * 5 for name in "abc"}, {})


def test_fewer_rounds_are_made_where_the_time_is_short(clock):
    taken, _ = samples.take({"a": clock.contestant("a", 1)}, 7.5, clock=clock)
    assert len(taken["a"]) == 7


def test_five_rounds_are_made_even_if_they_turn_out_slow(clock):
    taken, _ = samples.take({"a": clock.contestant("a", 1, 10)}, 5, clock=clock)
    assert taken["a"] == [1, 10, 10, 10, 10]


def test_the_last_contestants_are_left_out_where_five_rounds_do_not_fit(clock):
    contestants = {"a": clock.contestant("a", 1), "b": clock.contestant("b", 2), "c": clock.contestant("c", 30)}
    taken, left_out = samples.take(contestants, 20, n_max=5, clock=clock)
    assert taken == {"a": [1] * 5, "b": [2] * 5}
    assert left_out == {"c": "not tried: 5 rounds take 150 s, and 20 s are left for all"}


def test_nothing_is_measured_where_nothing_fits(clock):
    taken, left_out = samples.take({"a": clock.contestant("a", 3)}, 10, clock=clock)
    assert (taken, list(left_out), clock.calls) == ({}, ["a"], ["a"])


def test_a_contestant_that_cannot_be_tried_says_why(clock):
    def skip():
        raise Skip("no such wheel")
    taken, left_out = samples.take({"a": skip, "b": clock.contestant("b", 1)}, 100, n_max=5, clock=clock)
    assert (taken, left_out) == ({"b": [1] * 5}, {"a": "no such wheel"})


def test_a_contestant_that_fails_later_leaves_the_others(clock):
    def fail_later():
        if "b" in clock.calls[1:]:
            raise Skip("out of memory")
        return 1
    taken, left_out = samples.take({"a": clock.contestant("a", 1), "b": clock.contestant("b", 1), "c": fail_later}, 100, n_max=5,
                                   clock=clock)
    assert (sorted(taken), {len(s) for s in taken.values()}, left_out) == (["a", "b"], {5}, {"c": "out of memory"})


def test_figures_of_samples():
    assert samples.summary([5, 1, 3, 2, 4], 10) == {"value": 30, "min": 10, "q1": 20, "q3": 40, "max": 50, "n": 5}
    assert samples.summary([1 / 3]) == {"value": 0.3333, "min": 0.3333, "q1": 0.3333, "q3": 0.3333, "max": 0.3333, "n": 1}
    assert samples.ratios([2, 9, 1], [1, 3, 0]) == [2, 3]
    assert [samples.percentile(range(1, 201), p) for p in (0, 50, 99, 100)] == [1, 100, 198, 200]
    assert samples.percentile([7], 99) == 7


def test_an_interval_between_replays_belongs_to_the_stage_in_which_it_ends():
    ends = {"begin": 100, "create": 120, "fill": 140, "sum": 150, "publish": 180}
    said = {"first_ns": 95, "intervals_ns": [10, 10, 20, 10, 10, 30, 90], "swap_intervals": [5], "flip_ns": [4]}  # 105, 115, 135, 145 ...
    assert section_replay.medians(said, ends) == {"create": 10, "fill": 20, "publish": 10}
    assert section_replay.gaps_of(said, 10) == [30 - 10 - 4]
