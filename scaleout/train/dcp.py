"""torch.distributed.checkpoint without pickles that could run code.

Three doors of torch 2.13 are shut here. Its reader unpickles `.metadata` (`FileSystemReader.read_metadata`), and its
planner loads whatever is not a tensor with `weights_only=False` (`DefaultLoadPlanner.load_bytes`): a file from a
stranger would run their code. So the index of tensors is kept as JSON as well and read from there; only tensors are
saved this way; and those are read with `weights_only=True`. `.metadata` is still written, for torch's own tools.
"""

import io
import json
import os
from contextlib import contextmanager
from pathlib import Path

import torch
from torch.distributed.checkpoint import DefaultLoadPlanner, FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.filesystem import FileSystem
from torch.distributed.checkpoint.metadata import (
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)

from scaleout.parallel import private
from scaleout.records import checkpoints, chunks
from scaleout.records.files import read_json

INDEX = "tensors.json"
DTYPES = {str(dtype): dtype for dtype in vars(torch).values() if isinstance(dtype, torch.dtype)}


class _Noting(io.FileIO):
    """A file that remembers why it could not be written: torch.save hides an OSError behind a RuntimeError."""

    def __init__(self, path, note):
        super().__init__(path, "wb")
        self.note = note

    def write(self, data):
        try:
            return super().write(data)
        except OSError as error:
            self.note.append(error)
            raise


class _Files(FileSystem):
    def __init__(self, before=None):
        self.refused, self.before = [], before  # OSErrors; what is called before a file is opened

    @contextmanager
    def create_stream(self, path, mode):
        if mode != "wb":
            raise ValueError(f"mode {mode!r}: this file system only writes")
        if self.before:
            self.before()
        with io.BufferedWriter(_Noting(path, self.refused)) as stream:
            yield stream
            if not stream.closed:  # torch syncs before the buffer's last part is out
                stream.flush()
                os.fsync(stream.fileno())


class Writer(FileSystemWriter):
    """Writes tensors to files of their rank, and beside torch's `.metadata` the same as JSON.

    before: called with no argument before each file is opened; an OSError from it counts as the disk's.
    """

    def __init__(self, path, before=None):
        super().__init__(path)
        self.fs = _Files(before)

    @property
    def refused(self):
        """The first OSError that the disk answered (or None)."""
        return self.fs.refused[0] if self.fs.refused else None

    def finish(self, metadata, results):
        super().finish(metadata, results)
        checkpoints.write_text(Path(self.path) / INDEX, json.dumps(_as_json(metadata)))


def _as_json(metadata):
    """{name: {"dtype", "size", "chunks": [[offsets, sizes, file, first byte, bytes]]}} of torch's Metadata."""
    infos = {(index.fqn, tuple(index.offset or ())): info for index, info in metadata.storage_data.items()}
    table = {}
    for name, tensor in metadata.state_dict_metadata.items():
        chunks = [(chunk, infos[name, tuple(chunk.offsets)]) for chunk in tensor.chunks]
        table[name] = {
            "dtype": str(tensor.properties.dtype),
            "size": list(tensor.size),
            "chunks": [
                [list(chunk.offsets), list(chunk.sizes), info.relative_path, info.offset, info.length]
                for chunk, info in chunks
            ],
        }
    return table


def index(path, files):
    """({name: entry} of the tensors of a checkpoint, None), or (None, what is wrong with it).

    files: {name: checksum} that its manifest lists, of which all are as they were written.
    """
    try:
        table = read_json(Path(path) / INDEX)
        wrong = chunks.problem(table, files, DTYPES)
    except ValueError as error:
        wrong = str(error)
    return (None, f"{INDEX}: {wrong}") if wrong else (table, None)


class Reader(FileSystemReader):
    """Reads what Writer wrote; never opens `.metadata`. table: what `index` gave."""

    def __init__(self, path, table):
        super().__init__(path)
        self.table = table

    def read_metadata(self, *_, **__):
        tensors, storage = {}, {}
        for name, entry in self.table.items():
            parts = []
            for number, (offsets, sizes, file, first, length) in enumerate(entry["chunks"]):
                parts.append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
                storage[MetadataIndex(name, offsets, number)] = private.StorageInfo(file, first, length)
            tensors[name] = TensorStorageMetadata(
                TensorProperties(DTYPES[entry["dtype"]]), torch.Size(entry["size"]), parts
            )
        return Metadata(tensors, storage_data=storage, storage_meta=StorageMeta())


class Planner(DefaultLoadPlanner):
    """Loads tensors into a flat dict of tensors, and nothing else."""

    def __init__(self):
        super().__init__(flatten_state_dict=False, flatten_sharded_tensors=False)

    def load_bytes(self, read_item, value):
        raise ValueError(f"{read_item.dest_index.fqn} is not a tensor: nothing else is loaded")
