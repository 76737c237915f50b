"""Settings of a view that a reader could choose: for tests and benches that try many of them."""

from __future__ import annotations

import random
from hashlib import blake2b

from scaleout import views
from scaleout.views.controls import Control, stops

MANY, SOME = 16, 6  # options of a select: of more than so many, about so many
MOST = 4  # values of a control whose change is a search: of more than so many, some


def controls(stem: str) -> dict[str, Control]:
    """By name; without the guess, which changes nothing that is drawn."""
    return {one.name: one for one in views._view(stem).CONTROLS if one.kind != "guess"}


# A model of the Hugging Face Hub, as a reader would paste its config.json: Mistral 7B's, version 0.3
PASTED = (
    '{"model_type": "mistral", "hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, '
    '"num_key_value_heads": 8, "vocab_size": 32768, "intermediate_size": 14336, "max_position_embeddings": 32768, '
    '"rope_theta": 1000000.0, "tie_word_embeddings": false}'
)


def values(control: Control) -> list:
    """What a reader can set, in order; of a number to type, its ends and its default."""
    if control.kind == "select":
        return [value for value, _label in control.options]
    if control.kind == "toggle":
        return [False, True]
    if control.kind == "code":
        return [control.default]
    if control.kind == "paste":
        return [control.default, PASTED]
    if control.kind == "arrange":  # a few of very many: as it opens, its first row turned round, all rows shuffled
        rows, dice = [[*row] for row in views.rows_of(control.default)], random.Random(5)
        shuffled = [views.order([dice.sample(row, len(row)) for row in rows]) for _ in range(2)]
        return [control.default, views.order([rows[0][::-1], *rows[1:]]), *shuffled]
    if control.kind == "number":
        return sorted({control.lo, control.default, control.hi})
    if control.log:
        return stops(control)
    steps = round((control.hi - control.lo) / control.step)
    return [min(control.hi, control.lo + control.step * k) for k in range(steps + 1)]


def few(control: Control) -> list:
    """All of a select or toggle, of very many options some; the ends and the middle of what has an order."""
    every = values(control)
    if control.kind in ("select", "toggle", "arrange"):
        return every if len(every) <= MANY else every[:: len(every) // SOME]
    return sorted({every[0], every[len(every) // 2], every[-1]})


def pick(some: list, *toss: object) -> object:
    """One of them by chance, the same for the same `toss`. An option more changes the picks that it wins itself, and
    no other: each option has a lot of its own, and the highest wins."""
    return max(some, key=lambda value: blake2b(repr((*toss, value)).encode(), digest_size=8).digest())


def by_chance(stem: str, count: int, seed: int) -> list[dict]:
    """Every control at one of its values, the same for the same seed. A view may refuse some of them."""
    choices = {name: values(one) for name, one in controls(stem).items()}
    return [{name: pick(some, seed, n, name) for name, some in choices.items()} for n in range(count)]


def grid(stem: str, mixed: int) -> list[dict]:
    """The defaults, and a few values of every control alone beside them; then `mixed` settings by chance. Of a control
    whose every value is a search, some."""
    some = {name: few(one) for name, one in controls(stem).items()}
    some |= {name: some[name][:: max(1, len(some[name]) // 3)] for name in views.asked(stem) if len(some[name]) > MOST}
    alone = [{name: value} for name, one in controls(stem).items() for value in some[name] if value != one.default]
    return [{}, *alone, *by_chance(stem, mixed, 0)]
