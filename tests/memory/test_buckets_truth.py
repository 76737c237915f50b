"""DDP's buckets in the account: a second set of gradients by default, the gradients themselves as views of them.

Two processes at work are measured by labs/memory.py (tests/ranks/test_memory.py);
here torch's DDP is asked what it made.
"""

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from scaleout import views
from scaleout.memory.accounts import Layout, Recipe, account
from scaleout.memory.fsdp import fsdp_account
from scaleout.memory.states import states
from scaleout.parallel.recipe import Training
from scaleout.parallel.transformer import Transformer
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import PRESETS, Shape, total_parameters
from scaleout.views.capstone import speedup

SMALL = Shape(4, 256, 4, 1000, max_seq=64)
SEVEN = PRESETS["llama-2-7b"]
GRADIENTS = 4 * total_parameters(SEVEN)


def keep(found, bucket):
    """A hook that sends nothing and remembers the bucket's storage."""
    found.append(bucket.buffer().untyped_storage())
    done = torch.futures.Future()
    done.set_result(bucket.buffer())
    return done


@pytest.fixture
def group(tmp_path):
    dist.init_process_group("gloo", store=dist.FileStore(str(tmp_path / "store"), 1), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize(("view", "buckets"), [(False, "beside"), (True, "views")])
def test_torchs_ddp_holds_what_the_word_says(group, view, buckets):
    """Bytes of all storages of gradients and buckets after the second step: DDP deals its buckets anew once."""
    model = Transformer(SMALL)
    wrapped = DistributedDataParallel(model, gradient_as_bucket_view=view)
    held = []
    wrapped.register_comm_hook(held, keep)
    tokens = torch.randint(SMALL.vocab, (2, 16))
    for _ in range(2):
        held.clear()
        model.zero_grad()
        wrapped(tokens, tokens).backward()
    own = [p.grad.untyped_storage() for p in model.parameters()]
    shared = {s.data_ptr() for s in own} & {s.data_ptr() for s in held}
    assert bool(shared) is view and len(held) > 1
    bytes_held = sum({s.data_ptr(): s.nbytes() for s in (*own, *held)}.values())
    assert bytes_held == states(SMALL, Recipe("fp32", buckets=buckets), Layout(dp=2))["gradients"]


def test_beside_they_are_there_at_every_moment_and_once_more_at_the_end():
    none, beside, view = (account(SEVEN, 1, 2048, Recipe(buckets=how)) for how in ("none", "beside", "views"))
    assert {m: k["gradients"] for m, k in beside.moments.items() if m in ("forward", "loss")} == {
        "forward": GRADIENTS,
        "loss": GRADIENTS,
    }
    for moment, kinds in none.moments.items():
        assert beside.moments[moment]["gradients"] == kinds["gradients"] + GRADIENTS
        assert view.moments[moment]["gradients"] == GRADIENTS
    assert beside.peak_bytes - none.peak_bytes == GRADIENTS
    assert view == account(SEVEN, 1, 2048, Recipe(gradients="kept"))


def test_they_are_as_large_as_what_is_trained_and_none_where_gradients_are_sharded():
    lora = states(SEVEN, Recipe(adapter="lora", buckets="beside"), Layout())
    assert lora["gradients"] == 2 * states(SEVEN, Recipe(adapter="lora"), Layout())["gradients"]
    for stage in (2, 3):
        layout = Layout(dp=8, zero=stage)
        assert states(SEVEN, Recipe(buckets="beside"), layout) == states(SEVEN, Recipe(), layout)
        assert account(SEVEN, 1, 64, Recipe(buckets="beside"), layout) == account(SEVEN, 1, 64, Recipe(), layout)


def test_the_views_count_them_from_two_gpus_on():
    one, two = (views.render("memory", {"gpus": n})["values"] for n in (1, 2))
    assert two["peak_gb"] - one["peak_gb"] == pytest.approx(GRADIENTS / 1e9)
    one, two = (views.render("ddp", {"model": "llama-2-7b", "ranks": n})["values"] for n in (1, 2))
    assert two["states_gb"] - one["states_gb"] == pytest.approx(GRADIENTS / 1e9)
    setting = speedup.Setting("llama-2-7b", "h100-sxm", 2048, 16, "node-ib", "full", 16, 1, "none", "compiled")
    assert speedup.peak_bytes_of(setting, "ddp") == account(SEVEN, 1, 2048, Recipe(buckets="views")).peak_bytes


def test_who_has_no_buckets_says_so():
    with pytest.raises(ValueError, match="buckets must be one of none, beside, views"):
        Recipe(buckets="twice")
    with pytest.raises(ValueError, match="buckets are DDP's: use none"):
        Training(SMALL, Recipe("fp32", buckets="beside"))
    with pytest.raises(ValueError, match="FSDP has none"):
        fsdp_account(SMALL, 1, 16, Recipe("fp32", buckets="views"), Sharding(2))
