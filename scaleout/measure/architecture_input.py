"""The input of a training job: documents packed into rows, read by a DataLoader with some workers, and resumed exactly.

Reading a row takes a fixed sleep, and so does a step: a busy machine then changes little, and workers overlap the two
as they do where a GPU computes.
"""

import bisect
import importlib.util
import itertools
import random
import statistics
import time
import warnings

import torch
from torch.utils.data import DataLoader, Dataset

STEP = 0.02  # seconds of a step on the emulated device
READ = 0.03  # seconds to read and tokenize a batch
ROW = 512  # tokens of a row
WORKERS = (0, 1, 2)
BATCHES = 12  # timed ones, after the first
STOPPED = 5  # batches before the run is stopped
SEPARATOR = 0  # token between documents


class Packed(Dataset):
    """Rows of tokens cut from shuffled documents that are joined with separators. Row r depends on the documents,
    the seed and r alone, so a position in the data is one number, on any number of ranks and workers.

    documents: list of uint8 tensors. seconds: what reading a row takes. row: its tokens.
    """

    def __init__(self, documents, seed, seconds=0.0, row=ROW):
        self.documents, self.row, self.seconds = documents, row, seconds
        self.order = list(range(len(documents)))
        random.Random(seed).shuffle(self.order)
        self.starts = [0, *itertools.accumulate(len(documents[i]) + 1 for i in self.order)]

    def __len__(self):
        return self.starts[-1] // self.row

    def __getitem__(self, number):
        time.sleep(self.seconds)
        first, parts, missing = number * self.row, [], self.row
        place = bisect.bisect_right(self.starts, first) - 1
        offset = first - self.starts[place]
        while missing:
            document = self.documents[self.order[place]]
            joined = torch.cat([document, document.new_full((1,), SEPARATOR)])
            parts.append(joined[offset : offset + missing])
            missing -= len(parts[-1])
            place, offset = place + 1, 0
        return torch.cat(parts).long()


def documents(text):
    """Documents of a text (uint8 tensor): what empty lines separate."""
    return [
        torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in bytes(text.tolist()).split(b"\n\n") if part
    ]


def padded_share(documents, row=ROW):
    """The share of tokens that are real if each document has rows of its own, padded at the end."""
    tokens = sum(len(document) for document in documents)
    return tokens / sum(-(-len(document) // row) * row for document in documents)


def packed_share(packed):
    """The share of tokens that are real, not separators, in all rows of a Packed dataset."""
    tokens = len(packed) * packed.row
    return 1 - sum(1 for end in packed.starts[1:] if end <= tokens) / tokens


class Rows:
    """Which rows this rank reads, batch by batch, from a batch on. One row after the other goes to the next sequence of
    the global batch."""

    def __init__(self, s, o, first=0, count=BATCHES + 1):
        self.s, self.o, self.first, self.count = s, o, first, count

    def __iter__(self):
        whole = self.o.micro_batch * self.s.world
        for batch in range(self.first, self.first + self.count):
            start = batch * whole + self.s.rank * self.o.micro_batch
            yield [*range(start, start + self.o.micro_batch)]

    def __len__(self):
        return self.count


class Input:
    """The loaders of a session `s` with options `o` on a text, and what is measured with them."""

    def __init__(self, s, o, text):
        self.s, self.o = s, o
        self.documents = documents(text)
        self.packed = Packed(self.documents, o.seed, READ / o.micro_batch)

    def loader(self, workers, first=0, count=BATCHES + 1):
        """A DataLoader of this rank's batches from `first` on."""
        return DataLoader(self.packed, batch_sampler=Rows(self.s, self.o, first, count), num_workers=workers)

    def step_seconds(self, workers):
        """Seconds per step of the slowest rank, without the first batch, for which workers have to start."""
        batches, seconds = iter(self.loader(workers)), []
        next(batches)
        for _ in range(BATCHES):
            start = self.s.clock()
            time.sleep(STEP)
            next(batches)
            seconds.append(self.s.clock() - start)
        del batches  # ends the workers
        return [self.s.largest(each) for each in seconds]

    def speeds(self):
        """{workers: (predicted, median measured) seconds per step}."""
        return {workers: (step(workers), statistics.median(self.step_seconds(workers))) for workers in WORKERS}

    def resumed(self):
        """{way: (seconds until its first batch, batches that differ from those of a run that was never stopped)}."""
        whole = [*self.loader(0, count=2 * STOPPED)]
        ways = {"from the start": self._again, "by reading on": self._reading_on, "by position": self._position}
        found = {}
        for way, resume in ways.items():
            start = self.s.clock()
            batches = resume()
            first = next(batches)
            seconds = self.s.largest(self.s.clock() - start)
            seen = [first, *itertools.islice(batches, STOPPED - 1)]
            wrong = sum(not torch.equal(a, b) for a, b in zip(seen, whole[STOPPED:], strict=True))
            found[way] = seconds, round(self.s.largest(wrong))
        return found

    def _again(self):
        return iter(self.loader(0, count=STOPPED))

    def _reading_on(self):
        return itertools.islice(self.loader(0, count=2 * STOPPED), STOPPED, None)

    def _position(self):
        return iter(self.loader(0, STOPPED, STOPPED))

    def same_on_one(self):
        """Rows of a batch of all ranks that one process would not read in this order."""
        mine = [row for batch in Rows(self.s, self.o, STOPPED, 1) for row in batch]
        every = [row for rows in self.s.gathered(mine) for row in rows]
        start = STOPPED * self.o.micro_batch * self.s.world
        return sum(a != b for a, b in zip(every, range(start, start + len(every)), strict=True))

    def stateful(self):
        """Batches that differ after a resume with torchdata's StatefulDataLoader and two workers (tried: torchdata
        0.11.0); None where it is not installed."""
        if importlib.util.find_spec("torchdata") is None:
            return None
        warnings.filterwarnings("ignore", message="'set_vital' is deprecated")  # what torchdata calls, by torch 2.13
        from torchdata.stateful_dataloader import StatefulDataLoader

        def loader():
            return StatefulDataLoader(
                Packed(self.documents, self.o.seed), num_workers=2,
                batch_sampler=Rows(self.s, self.o, count=2 * STOPPED), multiprocessing_context="fork",
            )  # fmt: skip

        whole = [*loader()]
        stopped = loader()
        begun = iter(stopped)
        for _ in range(STOPPED):
            next(begun)
        state = stopped.state_dict()
        resumed = loader()
        resumed.load_state_dict(state)
        return sum(not torch.equal(a, b) for a, b in zip(resumed, whole[STOPPED:], strict=True))


def step(workers):
    """Predicted step time in seconds: without workers the job reads and computes in turn; `workers` read at once, while
    it computes."""
    return STEP + READ if workers == 0 else max(STEP, READ / workers)


def first_batch(way):
    """Predicted seconds until the first batch of a resumed run."""
    return READ * (STOPPED + 1 if way == "by reading on" else 1)
