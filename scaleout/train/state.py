"""What a checkpoint holds of a training job: tensors by name, settings as JSON, the state of random numbers."""

import base64
import random

import torch
from torch.distributed.checkpoint import state_dict as states


def state(model, optimizer=None):
    """({name: tensor}, settings as JSON) of a plain, DDP or FSDP2 model and its optimizer, by parameters' names.

    A stage of a pipeline gives its own. `model.copies` has names of parameters that another stage has under another
    name, with the same state: {name here: name of the other}.
    """
    tensors = {f"model.{name}": value for name, value in states.get_model_state_dict(model).items()}
    if optimizer is None:
        return tensors, None
    state_dict = states.get_optimizer_state_dict(model, optimizer)
    for name, entry in state_dict["state"].items():
        name = getattr(model, "copies", {}).get(name, name)
        tensors |= {f"optimizer.{name}.{key}": value for key, value in entry.items() if torch.is_tensor(value)}
    plain = {
        name: {key: value for key, value in entry.items() if not torch.is_tensor(value)}
        for name, entry in state_dict["state"].items()
    }
    groups = [
        {key: value.item() if torch.is_tensor(value) else value for key, value in group.items()}
        for group in state_dict["param_groups"]
    ]
    return tensors, {"plain": plain, "groups": groups}


def put(model, optimizer, tensors, settings):
    """Give a model and its optimizer what `state` returned, tensors of this job's sharding."""
    states.set_model_state_dict(
        model, {name.removeprefix("model."): value for name, value in tensors.items() if name.startswith("model.")}
    )
    if optimizer is None:
        return
    state = {name: dict(plain) for name, plain in settings["plain"].items()}
    for key, value in tensors.items():
        if key.startswith("optimizer."):
            name, _, field = key.removeprefix("optimizer.").rpartition(".")
            state.setdefault(name, {})[field] = value
    groups_now, copies = states.get_optimizer_state_dict(model, optimizer)["param_groups"], getattr(model, "copies", {})
    state = {name: state.get(copies.get(name, name), {}) for group in groups_now for name in group["params"]}
    # weight decay is an option of the job that goes on, and which parameters are here; all else was decided when the
    # run began
    groups = [
        {
            key: group[key] if key in ("weight_decay", "params") else _as(group.get(key), value)
            for key, value in saved.items()
        }
        for saved, group in zip(settings["groups"], groups_now, strict=True)
    ]
    states.set_optimizer_state_dict(model, optimizer, {"state": state, "param_groups": groups})


def _as(current, value):
    """A setting as the optimizer holds it: JSON has neither tuples nor tensors."""
    if torch.is_tensor(current):
        return torch.full_like(current, value)
    return tuple(value) if isinstance(current, tuple) else value


def random_state(device):
    """The state of this process's random numbers (dict, JSON): Python's, torch's, and the GPU's where there is one."""
    kind, words, gauss = random.getstate()
    state = {"python": [kind, list(words), gauss], "torch": _text(torch.get_rng_state())}
    return state | ({"cuda": _text(torch.cuda.get_rng_state(device))} if device.type == "cuda" else {})


def set_random_state(state, device):
    """Undo: what `random_state` returned."""
    kind, words, gauss = state["python"]
    random.setstate((kind, tuple(words), gauss))
    torch.set_rng_state(_tensor(state["torch"]))
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(_tensor(state["cuda"]), device)


def _text(tensor):
    return base64.b64encode(bytes(tensor.tolist())).decode()


def _tensor(text):
    return torch.tensor(list(base64.b64decode(text)), dtype=torch.uint8)
