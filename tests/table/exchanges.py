"""Bytes that ranks of several nodes send to each other in a step, from nothing but the sizes of pieces."""
MIB = 1 << 20
TOKEN = 8  # bytes of a message that has no payload
CUT = 32  # elements


def cuts(n_elements, n):
    """Elements of n pieces: as even as possible. The last one has those that are no block."""
    blocks = n_elements // CUT
    return [(blocks // n + (i < blocks % n)) * CUT + (i == n - 1) * (n_elements % CUT) for i in range(n)]


def summary(n_ranks, n_tensors):
    """Bytes of what a node sends about a step: struct control_summary, the weights of its ranks, a bit for each tensor."""
    return -(-(544 + 8 * n_ranks + (n_tensors + 7) // 8) // 64) * 64


def framed(sent, received):
    """Bytes on the socket of an exchange with one node: Gloo announces each MiB that begins, at both ends."""
    sent, received = sent or TOKEN, received or TOKEN
    return sent + 96 * -(-sent // MIB) + 48 * -(-received // MIB)


def marked(sent, received):
    """Likewise of an exchange that passes of "zero3" ask for: its messages begin with what it is, and need no token."""
    return framed(TOKEN + sent, TOKEN + received)


def of_step(line, node, n_summary, element=4, overlap=False):
    """
    Bytes of a step on the sockets of a rank. `line`: of the rank of each node, the elements that it sums in each bucket; element:
    bytes of one that it sends to the others; overlap: each bucket is an exchange of its own.
    """
    own, sent = line[node], 0
    for i, other in enumerate(line):
        if i == node:
            continue
        buckets = zip(other, own) if overlap else [(sum(other), sum(own))]
        sent += sum(framed(4 * theirs, 4 * ours) for theirs, ours in buckets)
        sent += framed(n_summary, n_summary) + framed(8, 8) + framed(element * sum(own), element * sum(other))
    return sent


def rooms(levels, keeps=False, prefetches=True):
    """The room of each unit in GATHERED, by their levels: a level has two, or one, or one for each of its units."""
    found, numbers = [], [0] * (max(levels) + 1)
    for level in levels:
        n = levels.count(level)
        found.append((level, numbers[level] % (n if keeps else min(n, 1 + prefetches))))
        numbers[level] += 1
    return found


def fetches(levels, keeps=False, prefetches=True):
    """Units that a forward and a backward pass gather, in order: backward gathers what another unit was put in the place of."""
    place = rooms(levels, keeps, prefetches)
    again = [unit for unit in range(len(levels)) if place[unit] in place[unit + 1:]]
    return [*range(len(levels)), *reversed(again)]


def of_pooled_step(line, node, n_summary, element=4, fetched=(), replicas=1):
    """
    Likewise with pooled gradients; fetched: units that are gathered, of "zero3". Buckets are units in the opposite order. A replica
    is some nodes, one after the other; those of different ones send each other nothing but tokens, and sums of the same pieces.
    """
    frame = marked if fetched else framed
    sent, n_sharing, nothing = 0, len(line) // replicas, [0] * len(line[node])
    for i, other in enumerate(line):
        if i == node:
            continue
        shares = i // n_sharing == node // n_sharing
        theirs, ours = (other, line[node]) if shares else (nothing, nothing)
        sent += sum(frame(4 * received, 4 * own) for received, own in zip(theirs, ours))
        sent += framed(n_summary, n_summary) + framed(8, 8)
        if fetched:
            sent += sum(of_fetch(ours, theirs, unit, element) for unit in fetched)
        else:
            sent += framed(element * sum(ours), element * sum(theirs))
        if replicas > 1:
            mirrored = line[node] if i % n_sharing == node % n_sharing else nothing
            sent += sum(of_replicas(piece, node // n_sharing, i // n_sharing, replicas, frame) for piece in mirrored)
    return sent


def of_replicas(piece, own, other, replicas, frame):
    """Bytes that a rank sends to the one with the same piece in another replica: sums for its part, and those of the own one."""
    ours, theirs = (4 * cuts(piece, replicas)[replica] for replica in (own, other))
    return frame(theirs, ours) + frame(ours, theirs)


def of_fetch(own, other, unit, element=4):
    """Bytes that a rank sends to another node for a unit: its piece."""
    bucket = len(own) - 1 - unit
    return marked(element * own[bucket], element * other[bucket])
