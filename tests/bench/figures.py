"""From samples to figures."""
import math
import statistics

median = statistics.median


def percentile(samples, p):
    """The nearest rank: a value that was measured, the largest for p = 99 of fewer than 100."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(len(ordered) * p / 100) - 1)]


def latency_us(runs):
    """
    p50_us and p99_us of runs of samples in ns: of each run, and then the median over the runs, so that
    a neighbour that woke up during one of them is not measured.
    """
    return {
        "p50_us": median(percentile(run, 50) for run in runs) / 1e3,
        "p99_us": median(percentile(run, 99) for run in runs) / 1e3,
        "runs": len(runs),
        "rounds": sum(map(len, runs)),
    }


def rate_gb_s(n_bytes, ns):
    """GB/s, powers of 1000."""
    return n_bytes / ns
