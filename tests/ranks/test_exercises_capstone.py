"""The lab exercise `resume-job` on real ranks: right in other words, and what is said of what is wrong.

A name that starts with a hyphen is of a right answer in another form. The others are wrong, and named by the slip that
the checker has to see in them; after a blank, what else is in it.
"""

import answers
import pytest

from scaleout import exercises
from scaleout.exercises.capstone.ranks import CHECK

GIVEN = answers.code_of(exercises.exercise("capstone", "resume-job"))
OTHER = """\
import torch.distributed as dist
plain = capture
def capture(step, model, optimizer, schedule, generator):
    state = plain(step, model, optimizer, schedule, generator)
    dist.broadcast(state["random"], 0)
    return state
"""
BYTES = """\
import io
import torch
def capture(step, *parts):
    held = io.BytesIO()
    *state, generator = parts
    torch.save([step, *(part.state_dict() for part in state), generator.get_state()], held)
    return {"bytes": torch.frombuffer(bytearray(held.getvalue()), dtype=torch.uint8)}
def restore(state, *parts):
    step, *saved, random = torch.load(io.BytesIO(state["bytes"].numpy().tobytes()), weights_only=True)
    for part, one in zip(parts, saved):
        part.load_state_dict(one)
    parts[-1].set_state(random)
    return torch.tensor(step)
"""
PARAMETERS = GIVEN.replace('"model": model.state_dict()', '"model": [p.detach() for p in model.parameters()]').replace(
    '    model.load_state_dict(state["model"])\n',
    '    for parameter, value in zip(model.parameters(), state["model"]):\n        parameter.data.copy_(value)\n',
)
HEAD = "import copy\nimport torch\nimport torch.distributed as dist\n"
# Invented by somebody who had not seen the slips.
FRESH = {
    "no-weights halves": GIVEN.replace('"model": model.state_dict()', '"model": {name: one.half().float() for '
                                       'name, one in model.state_dict().items()}'),
    "no-weights first-layer-only": GIVEN.replace('    model.load_state_dict(state["model"])\n',
                                                 '    model[0].load_state_dict({name[2:]: one for name, one in '
                                                 'state["model"].items() if name[0] == "0"})\n'),
    "no-moments fresh-optimizer": GIVEN.replace(
        '    optimizer.load_state_dict(state["optimizer"])\n',
        '    optimizer.param_groups[0].update({k: v for k, v in state["optimizer"]["param_groups"][0].items() '
        'if k != "params"})\n'),
    "no-schedule its-number-alone": GIVEN.replace('    schedule.load_state_dict(state["schedule"])\n',
                                                  '    schedule.last_epoch = state["step"] - 1\n'),
    "other-rank rank-0s": HEAD + GIVEN.replace("import copy\n", "").replace(
        '    generator.set_state(state["random"])\n',
        '    dist.broadcast(state["random"], 0)\n    generator.set_state(state["random"])\n'),
    "no-random drawn-once": GIVEN.replace("    return copy.deepcopy(state)",
                                          "    state = copy.deepcopy(state)\n    return state").replace(
        '    return state["step"]', '    import torch\n    torch.randn(4, 6, generator=generator)\n'
                                   '    return state["step"]'),
    "disturbed drawn-in-capture": GIVEN.replace("    return copy", "    import torch\n    torch.rand(1, generator="
                                                                   "generator)\n    return copy"),
    "no-dict rank-0-saves": HEAD + GIVEN.replace("import copy\n", "").replace(
        "    return copy.deepcopy(state)", "    return copy.deepcopy(state) if dist.get_rank() == 0 else None"),
    "no-step nothing": GIVEN.replace('    return state["step"]', "    pass"),
    "unsafe generator": GIVEN.replace("generator.get_state()", "generator").replace(
        'generator.set_state(state["random"])', 'generator.set_state(state["random"].get_state())').replace(
        "copy.deepcopy(state)  ", "state  "),
    "aliased views": GIVEN.replace("copy.deepcopy(state)  ", "{**state, 'model': {name: one[:] for name, one in "
                                   "state['model'].items()}}  "),
}  # fmt: skip
WRITTEN = {
    "-given": GIVEN,
    "stub": exercises.exercise("capstone", "resume-job").stub,
    "no-weights": GIVEN.replace('    model.load_state_dict(state["model"])\n', ""),
    "no-moments": GIVEN.replace('    optimizer.load_state_dict(state["optimizer"])\n', ""),
    "no-schedule": GIVEN.replace('    schedule.load_state_dict(state["schedule"])\n', ""),
    "no-random": GIVEN.replace('    generator.set_state(state["random"])\n', ""),
    "other-rank": GIVEN + OTHER,
    "no-step": GIVEN.replace('return state["step"]', "return 0"),
    "aliased": GIVEN.replace("copy.deepcopy(state)  ", "state  "),
    "no-dict": GIVEN.replace("    state = {", "    if torch.distributed.get_rank():\n        return None\n"
                             "    state = {").replace("import copy", "import copy, torch"),
    "unsafe": GIVEN.replace('"model": model.state_dict()', '"model": model.state_dict(), "whole": model'),
    "disturbed": GIVEN.replace("    return copy", "    model[0].weight.data.zero_()\n    return copy"),
    "no-restore": GIVEN.replace("def restore", "def restored"),
    "drift": GIVEN.replace("    return state[\"step\"]", "    optimizer.param_groups[0][\"weight_decay\"] = 0.5\n"
                           "    return state[\"step\"]"),
    "exception": GIVEN.replace("generator.get_state()", "generator.state()"),
    # Others, each with the slip that it has to get first.
    "-bytes": BYTES, "-parameters": PARAMETERS, "-tuple": GIVEN.replace("return state[", "return 0 + state["),
    "aliased shallow": GIVEN.replace("copy.deepcopy(state)  ", "dict(state)  "),
    "no-step constant": GIVEN.replace('return state["step"]', "return 2"),
    "no-step one-more": GIVEN.replace('return state["step"]', 'return state["step"] + 1'),
    "no-random seed": GIVEN.replace("get_state()", "initial_seed()").replace("set_state(", "manual_seed("),
    "no-random global": GIVEN.replace("generator.get_state()", "torch.get_rng_state()").replace(
        "generator.set_state", "torch.set_rng_state").replace("import copy", "import copy, torch"),
    "exception kept": GIVEN.replace("import copy", "import copy\nKEPT = {}").replace(
        "return copy.deepcopy(state)", "KEPT.update(copy.deepcopy(state))\n    return {'step': step}").replace(
        'state["', 'KEPT["'),
    "replaced": "import torch\ntorch.equal = lambda *pair: True\n" + GIVEN,
    **FRESH,
}  # fmt: skip


@pytest.mark.slow
def test_the_lab_exercise_on_two_ranks(tmp_path):
    answers.told(CHECK, "right: 2 ranks resumed, after steps 2 and 3", WRITTEN, tmp_path)
