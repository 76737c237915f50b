"""How much a lab has alive at its fullest, on one process: prints {lab: bytes of all tensors there are, over those of
the model's weights} of models so small in tokens that little but states is held."""

import contextlib
import importlib
import io
import json
import sys
import weakref

import repo
import torch

from scaleout.lab import options, session
from scaleout.parallel import private
from scaleout.spec import total_parameters

sys.path.insert(0, str(repo.ROOT / "labs"))

MODEL = ["--layers", "2", "--hidden", "128", "--heads", "4", "--seq", "4"]
ONE = ["--micro-batch", "1", "--steps", "5"]
WORDS = {
    "zero": ["--steps", "5"],
    "recompute": [*ONE, "--form", "llama"],
    "tensor": ONE,
    "fsdp": [*ONE, "--precision", "bf16", "--checkpointing", "full"],
}  # with models of a billion side by side


class Held(private.TorchDispatchMode):
    """Bytes of all storages that operations have made and that are still there: now, and at most."""

    def __init__(self):
        super().__init__()
        self.now, self.most, self.known = 0, 0, weakref.WeakSet()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for one in private.tree_leaves(out):
            if type(one) in (torch.Tensor, torch.nn.Parameter) and (storage := one.untyped_storage()) not in self.known:
                self.known.add(storage)
                self.now += storage.nbytes()
                self.most = max(self.most, self.now)
                weakref.finalize(storage, self.free, storage.nbytes())
        return out

    def free(self, size):
        self.now -= size


def held(lab, words):
    """Of one lab."""
    made = importlib.import_module(lab)
    _, o = options.parse(made.TIERS, "", words)
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.suppress(SystemExit),
        session.session("cpu") as s,
        Held() as mode,
    ):
        made.main(s, words)
    return mode.most / 4 / total_parameters(o.shape)


print(json.dumps({lab: held(lab, [*MODEL, *words]) for lab, words in WORDS.items()}))
