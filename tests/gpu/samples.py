"""Samples: contestants that are measured in turns, and the figures of what was measured."""
import math
import statistics
import time

from results import Skip

N_MIN, N_MAX = 5, 9  # rounds


def take(contestants, seconds, n_max=N_MAX, clock=time.monotonic):
    """
    Measures contestants in rounds: each round calls each of them once, and begins with another one than the round before.

    contestants  {name: function that returns a sample}, the most important first; Skip leaves one out
    seconds      for all rounds. Fewer than `n_max` are made where these are over, never fewer than N_MIN: the first round shows
                 how long each takes, and the last contestants for which there is no time are left out

    Returns {name: samples} and {name: why it was left out}.
    """
    begin, took, samples, left_out = clock(), {}, {name: [] for name in contestants}, {}

    def measure(name):
        before = clock()
        try:
            samples[name].append(contestants[name]())
        except Skip as e:
            leave_out(name, str(e))
        took[name] = clock() - before

    def leave_out(name, why):
        samples.pop(name)
        left_out[name] = why

    n = 0
    while samples and n < n_max:
        if n >= N_MIN and clock() - begin + sum(took[name] for name in samples) > seconds:
            break
        names = list(samples)
        for name in names[n % len(names):] + names[:n % len(names)]:
            measure(name)
        n += 1
        while n == 1 and samples and N_MIN * sum(took[name] for name in samples) > seconds:
            name = list(samples)[-1]
            leave_out(name, f"not tried: {N_MIN} rounds take {N_MIN * took[name]:.0f} s, and {seconds:.0f} s are left for all")
    return samples, left_out


def summary(samples, scale=1):
    """The members of a line: the median as its value, how many there are, the ends, and the quartiles."""
    scaled = sorted(s * scale for s in samples)
    quartiles = statistics.quantiles(scaled, n=4, method="inclusive") if len(scaled) > 1 else scaled * 3
    figures = {"value": statistics.median(scaled), "min": scaled[0], "q1": quartiles[0], "q3": quartiles[2], "max": scaled[-1]}
    return {name: shorten(value) for name, value in figures.items()} | {"n": len(scaled)}


def ratios(a, b):
    """Divides samples of the same rounds."""
    return [x / y for x, y in zip(a, b) if y]


def percentile(samples, p):
    """The nearest rank: a value that was measured."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)]


def shorten(value):
    """Four digits: a figure has no more."""
    return float(f"{value:.4g}")
