"""The samples of an epoch, each once, divided between the ranks."""
from __future__ import annotations

import contextlib
import random
from typing import Any, Iterator, Sized

import torch

from ._mesh import Mesh


class Sampler(torch.utils.data.Sampler):
    """
    Stands where torch.utils.data.DistributedSampler stood: the samples of an epoch in a random order that all ranks
    compute, of which each rank takes every n-th. None is repeated to make the ranks' numbers equal: in the last batch of an
    epoch ranks have different numbers of samples, and weight() of them. batches() gives each rank as many batches; in a
    plain loop over the loader some ranks may have one more, and wait in its step for the others.

        sampler = weightd.train.Sampler(dataset, mesh, seed=0)
        loader = DataLoader(dataset, batch_size=8, sampler=sampler, num_workers=2)
        sampler.load_state(opt.cursor)
        for epoch in range(sampler.epoch, 10):
            sampler.set_epoch(epoch)
            for x, y in sampler.batches(loader):
                loss = criterion(model(x), y)
                loss.backward()
                opt.step(loss, weight=sampler.weight(), cursor=sampler.state())

    With strategy="zero2" or "zero3" the loss is multiplied by share() instead of weight= in the step.

    state() is the position behind the batch that the loop has in its hands, whatever a DataLoader has fetched beyond it.
    Saved with the step it survives kills, and it is the same on all ranks and for any number of them: a job of another size
    continues with the samples that are left.

    dataset  anything with a len()
    mesh     ranks: by their coordinate in dimension "dp", or in the one that there is; ranks with the same one have the
             same samples. All ranks of a mesh of "replicate" and "shard"
    seed     of the order, with the epoch's number; the same on all ranks
    shuffle  False: the order of the dataset

    epoch    the epoch's number, from 0
    n_ranks  between which samples are divided

    TypeError: a dataset without len(). ValueError: an empty one, or a mesh of several dimensions without "dp".
    """

    def __init__(self, dataset: Sized, mesh: Mesh, seed: int = 0, shuffle: bool = True):
        try:
            self._n_samples = len(dataset)
        except TypeError as e:
            raise TypeError(f"{type(dataset).__name__} has no len(): a Sampler divides datasets of a known length; an "
                            "IterableDataset divides itself, by mesh.coordinate('dp')") from e
        if not self._n_samples:
            raise ValueError(f"{type(dataset).__name__} is empty: there is nothing to sample")
        is_sharded = all(dim.endswith(("replicate", "shard")) for dim in mesh.dims)  # HSDP
        if "dp" not in mesh.dims and len(mesh.dims) > 1 and not is_sharded:
            raise ValueError(f"the mesh {mesh.dims} has no dimension 'dp', by which samples are divided; name it so in "
                             "init_mesh()")
        self._rank, self.n_ranks = mesh.rank, mesh.size
        if "dp" in mesh.dims:
            self._rank, self.n_ranks = mesh.coordinate("dp"), mesh.dims["dp"]
        self._seed, self._shuffle = seed, shuffle
        self.epoch, self._start = 0, 0  # samples that all ranks together have taken of the epoch
        self._is_loaded = self._is_over = False  # the start is that of a state; it is the end of a whole iteration
        self._is_plain = False  # the iteration is none of batches()
        self._batch: int | None = None  # samples of a rank in a whole batch, inside batches()
        self._end = self._n_samples  # batches() with drop_last: of the last whole batch
        self._taken = 0  # batches since the start

    # --- As torch's sampler -----------------------------------------------------------------------

    def set_epoch(self, epoch: int) -> None:
        """The next iteration is of this epoch: from its beginning, unless load_state() has just set a position in it."""
        if epoch != self.epoch or not self._is_loaded:
            self.epoch, self._start = epoch, 0
        self._is_over = False

    def _begin(self, is_plain: bool) -> None:
        if self._is_over:
            self._start = 0
        self._is_loaded = self._is_over = False
        self._is_plain, self._taken = is_plain, 0

    def __len__(self) -> int:
        """Samples of this rank in the next iteration."""
        start = 0 if self._is_over else self._start
        return len(range(start + self._rank, self._end, self.n_ranks)) + self._n_fillers()

    def __iter__(self) -> Iterator[int]:
        """
        Indices of this rank's samples. In batches(), a rank that has none left for a last batch which others have gets one
        sample of weight 0, so that all ranks have the same number of batches.
        """
        if self._batch is None:
            self._begin(is_plain=True)
        order = self._order()
        yield from order[self._start + self._rank:self._end:self.n_ranks]
        if self._n_fillers():
            yield order[self._rank % self._n_samples]
        if self._batch is None:
            self._is_over = True

    def _order(self) -> list[int]:
        if not self._shuffle:
            return list(range(self._n_samples))
        # As DistributedSampler: a generator of its own, so that the program's is not used.
        generator = torch.Generator()
        generator.manual_seed(self._seed + self.epoch)
        return torch.randperm(self._n_samples, generator=generator).tolist()

    def _n_fillers(self) -> int:
        """1: the last batch has samples, and none for this rank."""
        if self._batch is None:
            return 0
        rest = max(0, self._end - self._start) % (self._batch * self.n_ranks)
        return int(0 < rest <= self._rank)

    # --- In a loop over batches ---------------------------------------------------------------------

    def batches(self, loader: torch.utils.data.DataLoader) -> Iterator[Any]:
        """
        The batches of a DataLoader that has this sampler, as many on each rank. Behind the last one set_epoch() begins
        another epoch; without it the next iteration is the same one again. After a break in the loop the next iteration
        continues behind it. Workers of the loader have seeds of their own in each epoch, and torch's generator is left as it
        is, so that a program that continues in the middle of an epoch draws the same numbers. With drop_last=True each rank has whole batches only, and the samples that are left are in none.
        ValueError: the loader has another sampler, or batches of its own.
        """
        if loader.sampler is not self or loader.batch_size is None:
            raise ValueError("batches() is for a DataLoader(dataset, batch_size=..., sampler=this one), without a "
                             "batch_sampler")
        self._begin(is_plain=False)
        self._batch, self._end = loader.batch_size, self._end_of(loader)
        try:
            with self._workers_seeded():
                batches = iter(loader)
            for batch in batches:
                self._taken += 1
                yield batch
            self._is_over = True
        finally:
            self._start = self._behind()
            self._batch, self._end = None, self._n_samples

    @contextlib.contextmanager
    def _workers_seeded(self) -> Iterator[None]:
        """
        A block that leaves torch's generator as it is. An iterator of a DataLoader draws the seed of its workers from it: a program
        that is started again in the middle of an epoch would have drawn once more than the one that was killed.
        """
        before = torch.random.get_rng_state()
        seed = random.Random(f"{self._seed} {self.epoch} {self._start} {self._rank}").getrandbits(63)
        torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            torch.random.set_rng_state(before)

    def _end_of(self, loader: torch.utils.data.DataLoader) -> int:
        left, whole = max(0, self._n_samples - self._start), loader.batch_size * self.n_ranks
        return self._start + (left // whole * whole if loader.drop_last else left)

    def n_batches(self, loader: torch.utils.data.DataLoader) -> int:
        """Batches of each rank in the next batches(loader)."""
        start = 0 if self._is_over else self._start
        left, whole = max(0, self._n_samples - start), loader.batch_size * self.n_ranks
        return left // whole if loader.drop_last else -(-left // whole)

    def has_batch(self) -> bool:
        """True inside a loop over batches()."""
        return self._batch is not None and self._taken > 0

    def weight(self) -> int:
        """This rank's samples in the batch of the loop, for opt.step(weight=): 0 where it has none of the last batch."""
        return len(range(self._before() + self._rank, self._behind(), self.n_ranks))

    def share(self) -> float:
        """
        This rank's samples in the batch of the loop, to the mean of all ranks: 1.0 in whole batches. A loss that is the mean over
        the batch, times this, weighs each sample alike without opt.step(weight=), as "zero2" and "zero3" need it:

            (loss * sampler.share()).backward()
            opt.step(loss, cursor=sampler.state())
        """
        return self.weight() * self.n_ranks / self.n_samples()

    def n_samples(self) -> int:
        """Samples of all ranks in the batch of the loop."""
        return self._behind() - self._before()

    def _position(self, n_batches: int) -> int:
        """Samples of the epoch that all ranks have taken together with that many batches."""
        if self._batch is None:
            raise ValueError("no batch is in the hands of the loop; iterate over sampler.batches(loader)")
        return min(self._start + n_batches * self._batch * self.n_ranks, self._end)

    def _before(self) -> int:
        return self._position(self._taken - 1)

    def _behind(self) -> int:
        return self._position(self._taken)

    # --- Position -----------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """
        The position behind the batch of the loop, for opt.step(cursor=). JSON has it. The same on all ranks. ValueError: in
        a loop that is none over batches(): its position is unknown.
        """
        if self._is_plain:
            self._position(0)
        position = self._start if self._batch is None else self._behind()
        return {"epoch": self.epoch, "position": position, "n_samples": self._n_samples, "seed": self._seed,
                "shuffle": self._shuffle}

    def load_state(self, state: dict[str, Any] | None) -> None:
        """
        Continues at a state(); None: at the beginning. The number of ranks may be another. ValueError: a state of another
        dataset or order.
        """
        self._is_loaded, self._is_over, self._is_plain = True, False, False
        if state is None:
            self.epoch, self._start = 0, 0
            return
        ours = {"n_samples": self._n_samples, "seed": self._seed, "shuffle": self._shuffle}
        for key, value in ours.items():
            if state.get(key) != value:
                raise ValueError(f"the state has {key} {state.get(key)!r}, and this sampler {value!r}: its position is in "
                                 "another order of samples")
        self.epoch, self._start = state["epoch"], state["position"]
