"""Rounds of contenders that take turns, each round in another order."""
import machine

ROUNDS, RETRIES, QUIET = 7, 4, 0.2  # rounds in which others took more are replaced, if that helps


def take(contenders, size, prepare=lambda: None):
    """
    The rounds, less those in which others were at work if enough are left, and how many of both. prepare() comes before each
    contender's turn.
    """
    quiet, noisy = [], []
    order = list(contenders)
    while len(quiet) < ROUNDS and len(quiet) + len(noisy) < ROUNDS + RETRIES:
        order = order[1:] + order[:1]
        with machine.Others() as others:
            done = {}
            for name in order:
                machine.warm(size)
                prepare()
                done[name] = contenders[name]()
        (quiet if others.share <= QUIET else noisy).append(done)
    rounds = quiet if len(quiet) >= 3 else quiet + noisy
    return rounds, {"rounds": len(rounds), "quiet_rounds": len(quiet)}
