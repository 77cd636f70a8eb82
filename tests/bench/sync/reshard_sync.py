"""
Shards of rows that become shards of columns, by weightd-sync-gloo: the sources share the rows of one matrix, and the
targets its columns, as a model moves from training to inference. Both begin with the first node, so some send and receive.
"""
import time

from lib.engine import Exchange, plan

ROW = 16384  # bytes


class Reshard:
    """
    A case of a matrix of so many bytes, each source's filled with `block`, which has whole rows.

    busiest     bytes to a node or from it, whichever is more, of the node with the most
    """

    def __init__(self, block, n_bytes, n_sources, n_targets):
        self.n_nodes = max(n_sources, n_targets)
        self.source, self.result = n_bytes // n_sources, n_bytes // n_targets
        self.block, width = block, ROW // n_targets
        self.columns = [b"".join(block[i + t * width:][:width] for i in range(0, len(block), ROW)) for t in range(n_targets)]
        rows = self.source // ROW
        self.sizes = [(self.source * (i < n_sources), self.result * (i < n_targets)) for i in range(self.n_nodes)]
        self.plan = plan(self.sizes, {(s, t): [(t * width, s * rows * width, width, 1, 0, 0, rows, ROW, width)]
                                      for s in range(n_sources) for t in range(n_targets)})
        self.busiest = max(self.result * (n_sources - 1) // n_sources, self.source * (n_targets - 1) // n_targets)

    def run(self, net, chunk):
        """Seconds, and the engines, which are done."""
        sources = [bytes(self.block) * (size // len(self.block)) or None for size, _ in self.sizes]
        with Exchange(sources, [size for _, size in self.sizes], [self.plan] * self.n_nodes, net=net, chunk=chunk) as x:
            for result in filter(None, x.results):
                result.provide()
            started = time.monotonic()
            x.start()
            x.await_done()
            seconds = time.monotonic() - started
            for result, column in zip(x.results, self.columns):
                assert result.read() == column * (result.size // len(column)), "other bytes"
            return seconds, x.engines
