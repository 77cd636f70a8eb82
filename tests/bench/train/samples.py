"""From the samples of contenders to figures and verdicts."""
import os

import figures
from contenders import Failed

ROUNDS = float(os.environ.get("BENCH_ROUNDS") or 1)


def rounds(n):
    return max(3, round(n * ROUNDS))


class Field:
    """The contenders of one measurement; one that cannot run leaves a line with the reason, and its bounds are missed."""

    def __init__(self, report, stack):
        self.report, self.stack, self.present = report, stack, {}

    def enter(self, name, make):
        try:
            self.present[name] = self.stack.enter_context(make())
        except Failed as e:
            self.report.line(name="peer", peer=name, skipped=str(e))

    def __getitem__(self, name):
        return self.present[name]

    def __contains__(self, name):
        return name in self.present


def warm(contender, verb, size=0, count=3, repeats=1):
    """The samples of a turn, less the first, in which caches and pages still belong to the last contender."""
    return lambda: contender.samples(verb, size, count + 1, repeats)[1:]


def spread(samples):
    """Median and quartiles of all rounds' samples, in ns."""
    flat = [ns for turn in samples for ns in turn]
    return figures.percentile(flat, 25), figures.median(flat), figures.percentile(flat, 75)


def ratio(above, below):
    """Quartiles and median over the rounds of the ratio of two contenders' medians."""
    ratios = [figures.median(a) / figures.median(b) for a, b in zip(above, below)]
    return figures.percentile(ratios, 25), figures.median(ratios), figures.percentile(ratios, 75)


def ms(samples):
    q1, p50, q3 = spread(samples)
    return {"p50_ms": p50 / 1e6, "q1_ms": q1 / 1e6, "q3_ms": q3 / 1e6}


def us(samples):
    q1, p50, q3 = spread(samples)
    return {"p50_us": p50 / 1e3, "q1_us": q1 / 1e3, "q3_us": q3 / 1e3}


def over(above, below):
    q1, p50, q3 = ratio(above, below)
    return {"over": p50, "over_q1": q1, "over_q3": q3}


class Targets:
    """Bounds of one measurement. A figure that is missing misses its bound."""

    def __init__(self, report, of):
        self.report, self.of = report, of

    def at_least(self, figure, value, bound):
        self._judge(figure, value, at_least=bound)

    def at_most(self, figure, value, bound):
        self._judge(figure, value, at_most=bound)

    def _judge(self, figure, value, **bound):
        if value is None:
            (limit,) = bound.values()
            sign = ">=" if "at_least" in bound else "<="
            self.report.missed += 1
            self.report.line(name="bound", of=self.of, figure=figure, value=None, bound=f"{sign} {limit:g}",
                             verdict="NOT MEASURED")
        else:
            self.report.bound(self.of, figure, value, **bound)
