"""Models of transformers as the labs call theirs. Where that package is not installed, another stands for its model."""

from functools import partial
from types import SimpleNamespace

import pytest
import torch
from cases import refused
from repo import ROOT
from torch import nn

from scaleout.measure.fsdp_memory import measure_fsdp
from scaleout.measure.ledger import watch
from scaleout.memory.accounts import account
from scaleout.parallel import hugging_face
from scaleout.parallel.recipe import Training
from scaleout.parallel.transformer import Transformer
from scaleout.spec.config import opened
from scaleout.spec.recipe import Recipe
from scaleout.spec.sharding import Sharding
from scaleout.spec.transformer import Shape

CONFIG = opened(ROOT / "tests/ranks/small_llama.json")
SHAPE = Shape.from_config(CONFIG)


class Net(nn.Module):
    """The book's model with the interface of transformers'."""

    def __init__(self):
        super().__init__()
        self.model = Transformer(SHAPE)

    def get_output_embeddings(self):
        return self.model.head

    def forward(self, input_ids, labels):
        return SimpleNamespace(loss=self.model(input_ids, labels))


def test_the_first_layers_of_a_config():
    two = hugging_face.cut(CONFIG | {"layer_types": ["full_attention"] * 3}, 2)
    assert two["num_hidden_layers"] == 2 and two["layer_types"] == ["full_attention"] * 2
    assert hugging_face.cut(CONFIG, None) == CONFIG
    gpt = {"model_type": "gpt2", "n_layer": 12, "n_embd": 8, "n_head": 2, "vocab_size": 99}
    assert hugging_face.cut(gpt, 3)["n_layer"] == 3, "by the name that its family has for it"
    refused(lambda: hugging_face.cut(gpt, 13), "--layers 13: the config.json has 12: use at most as many")
    for wrong, said in (
        ({"n_layer": "12"}, "layers must be a whole number of at least 1, not '12'"),
        ({"n_layer": None}, "a gpt2 lacks n_layer"),
        ({"model_type": ["gpt2"]}, "is of model_type"),
    ):
        refused(partial(hugging_face.cut, gpt | wrong, 1), said)
    assert hugging_face.cut(gpt | {"layer_types": 5}, 1)["n_layer"] == 1, "which GPT-2 does not read"


def test_its_blocks_and_head_have_the_books_names():
    model = hugging_face.Model(Net(), SHAPE)
    names = {name.split(".")[0] for name, _ in model.named_parameters()}
    assert names == {"blocks", "head", "net"} and len(model.blocks) == SHAPE.layers
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in Net().parameters())
    assert model.head is model.net.get_output_embeddings()
    tokens = torch.arange(32).view(1, 32)
    assert model(tokens, None).shape == ()


def test_the_ledger_sees_it_as_the_books_own():
    recipe = Recipe("fp32")
    training = Training.of(hugging_face.Model(Net(), SHAPE), recipe)
    training.warm_up()
    tokens = torch.randint(SHAPE.vocab, (2, 32))
    with watch(training, tokens) as ledger:
        training.loss(tokens, tokens).backward()
        ledger.enter("optimizer")
        training.step()
    predicted = account(SHAPE, 2, 32, recipe)
    assert set(ledger.moments) == set(predicted.moments)
    for moment, kinds in predicted.moments.items():
        # the targets are the tokens, which are there once; and a loss
        assert sum(ledger.moments[moment].values()) == pytest.approx(sum(kinds.values()), abs=2 * 32 * 8 + 64), moment


def test_shards_of_it_are_those_of_the_shape():
    make = lambda: hugging_face.Model(Net(), SHAPE)  # noqa: E731
    theirs, ours = (measure_fsdp(SHAPE, 2, 32, Recipe("fp32"), Sharding(4), make=how) for how in (make, None))
    assert theirs.by_unit == ours.by_unit and theirs.collectives == ours.collectives


def test_what_they_do_not_do_is_refused(monkeypatch):
    monkeypatch.setattr(hugging_face, "installed", lambda package="transformers": package != "peft")
    refused(
        lambda: hugging_face.adapted(Net(), Recipe(adapter="lora")), "lora needs the package peft: pip install peft"
    )
    monkeypatch.setattr(hugging_face, "installed", lambda package="transformers": package == "peft")
    refused(
        lambda: hugging_face.adapted(Net(), Recipe(adapter="qlora")),
        "qlora needs the package bitsandbytes: pip install bitsandbytes",
    )


def test_where_it_is_installed_their_own_model_has_the_shapes_parameters():
    pytest.importorskip("transformers", reason="transformers is not installed: its models are made where it is")
    model = hugging_face.make(CONFIG, Recipe("fp32", checkpointing="full"))
    assert len(model.blocks) == SHAPE.layers and model.blocks[0].gradient_checkpointing
    assert sum(p.numel() for p in model.parameters()) == sum(p.numel() for p in Net().parameters())
    refused(lambda: hugging_face.make(CONFIG, Recipe(checkpointing="selective")), "use checkpointing none or full")
