"""The input pipeline of the training job: the text in memory, and a thread that cuts the next batches from it."""

from __future__ import annotations

import hashlib
import queue
import threading
import time
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor

from scaleout.lab import corpus, session
from scaleout.train.order import Order, even_starts, split

CHUNK = 8  # steps whose windows are cut at once: the thread wakes up once for all of them
DEPTH = 2  # chunks that wait


@dataclass(frozen=True)
class Text:
    """The text of a run: uint8 tensors to train on and to validate on, and what names them in a checkpoint."""

    train: Tensor
    validation: Tensor
    files: int
    held_out: tuple[str, ...]  # names of the files that are validation only
    digest: str  # of names, contents and the split: another text is another run
    copies: int = 0  # files left out, since another has the same bytes

    @property
    def words(self) -> str:
        """What was read and how it is split, for the screen and the Record."""
        total = len(self.train) + len(self.validation)
        duplicates = f" ({self.copies:,} left out, with the same bytes as another)" if self.copies else ""
        return (
            f"text {self.digest}: {total / 1e6:,.2f} MB in {self.files:,} file(s){duplicates}, "
            f"{len(self.validation) / total:.2%} of it held out in {len(self.held_out):,}"
        )


def read(path: str | None, share: float, least: int = 1) -> Text:
    """The files of `corpus.texts(path)`, about `share` of their bytes held out, as `order.split` does.

    A file with the same bytes as one before it is left out: else it could stand on both sides of the split. least:
    bytes that validation needs. ValueError, one line, where the text cannot be read or split.
    """
    contents, firsts = corpus.texts(path), {}
    for name, content in contents.items():
        firsts.setdefault(content or name, name)  # empty ones are on no side
    files = {name: contents[name] for name in firsts.values()}
    held_bytes = split({name: len(content) for name, content in files.items()}, share, least)
    digest = hashlib.sha256(f"{sorted(held_bytes.items())}\0".encode(errors="surrogateescape"))
    for name, content in files.items():
        digest.update(f"{name}\0{len(content)}\0".encode(errors="surrogateescape") + content)
    train_parts = {name: content[: len(content) - held_bytes.get(name, 0)] for name, content in files.items()}
    train = b"\n".join(part for part in train_parts.values() if part)
    if len(train) < least < share * sum(map(len, files.values())):
        raise ValueError(
            f"--held-out {share:g} leaves {len(train):,} bytes to train on, and one step takes {least:,}: "
            "hold out less, or use a larger --dataset"
        )
    validation = b"\n".join(files[name][-count:] for name, count in sorted(held_bytes.items()))
    names = [f"the end of {name}" if train_parts[name] else name for name in sorted(held_bytes)]
    return Text(
        session.as_tensor(train),
        session.as_tensor(validation),
        len(files),
        tuple(names),
        digest.hexdigest()[:16],
        len(contents) - len(files),
    )


def windows(text: Tensor, starts: list[int], seq: int) -> Tensor:
    """uint8 (sequences, seq + 1): the tokens of each window and the one after them."""
    return text[torch.tensor(starts)[:, None] + torch.arange(seq + 1)]


def inputs(window: Tensor, device: torch.device, passes: int = 1) -> list[tuple[Tensor, Tensor]]:
    """[(tokens, targets)] of every pass, each int64 (sequences / passes, seq), on the device.

    Bytes travel, and become int64 where they arrive: an eighth of the traffic. From pinned memory the copy does not
    make the host wait.
    """
    tokens = window.to(device, non_blocking=True).long()
    return [(part[:, :-1].contiguous(), part[:, 1:].contiguous()) for part in tokens.chunk(passes)]


def held_out(text: Text, batch: int, seq: int, limit: int, rank: int, world: int) -> list[Tensor]:
    """This rank's windows of the validation text, one uint8 tensor (batch / world, seq + 1) a batch, at most `limit`.

    All ranks have as many, and together the same windows for every world. `read` has left room for one batch.
    """
    starts = even_starts(len(text.validation), seq, batch * limit)
    count, share = len(starts) // batch, batch // world
    return [
        windows(text.validation, starts[i * batch + rank * share : i * batch + (rank + 1) * share], seq)
        for i in range(count)
    ]


class Batches:
    """The windows of step `first`, `first` + 1, ... of this rank, made ahead by a thread. share: (which part of a batch
    it reads, of how many), by its rank where None.

    `take` gives the next: what it waited is what the step lost to its input. Use as a context manager, or `close`.
    """

    def __init__(
        self,
        s,
        text: Tensor,
        order: Order,
        batch: int,
        first: int = 0,
        chunk: int = CHUNK,
        share: tuple[int, int] | None = None,
    ) -> None:
        self.s, self.text, self.order, self.batch, self.chunk = s, text, order, batch, chunk
        self.share = share or (s.rank, s.world)
        self.made: queue.Queue = queue.Queue(DEPTH)
        self.over, self.open = threading.Event(), []
        self.thread = threading.Thread(target=self._work, args=(first,), name="input", daemon=True)
        self.thread.start()

    def _work(self, step: int) -> None:
        try:
            while not self.over.is_set():
                self._put(self._make(step))
                step += self.chunk
        except Exception as error:  # belongs to the thread that trains
            self._put(error)

    def _make(self, step: int) -> Tensor:
        """uint8 (chunk, sequences, seq + 1)."""
        starts = [
            start for i in range(step, step + self.chunk) for start in self.order.starts(i, self.batch, *self.share)
        ]
        chunk = windows(self.text, starts, self.order.seq).unflatten(0, (self.chunk, -1))
        return chunk.pin_memory() if self.s.device.type == "cuda" else chunk

    def _put(self, item) -> None:
        while not self.over.is_set():
            with suppress(queue.Full):
                self.made.put(item, timeout=0.2)
                break

    def take(self) -> tuple[Tensor, float]:
        """(windows of the next step, seconds that this waited for them)."""
        start = time.perf_counter()
        if not self.open:
            item = self.made.get()
            if isinstance(item, Exception):
                raise item
            self.open = list(item.unbind())[::-1]
        return self.open.pop(), time.perf_counter() - start

    def close(self) -> None:
        """End the thread."""
        self.over.set()
        self.thread.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()
