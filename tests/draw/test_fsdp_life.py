"""Pictures of FSDP: a unit's life in six moments, and three wrappings to scale."""

import re

import pytest
from cases import over

from scaleout.draw import fsdp_life, fsdp_units, fsdp_wraps
from scaleout.spec.sharding import Sharding, units
from scaleout.spec.transformer import total_parameters

WIDTHS = (680, 354)


@over(ranks=(2, 4), kept=(True, False), moment=range(9))
def test_all_that_is_drawn_is_a_whole_unit_or_each_rank_s_part(ranks, kept, moment):
    """Cells of weights, by path and by what flies: ranks of them at rest, all of them while the unit is whole."""
    unit = fsdp_life.Unit(ranks, kept)
    body = fsdp_life.draw(unit, moment, 0, 0, 300, 10)
    cells = 0
    for d, _ in re.findall(r'<path d="([^"]*)" fill="var\(--(c1|c5)', body):
        cells += d.count("M")
    lent = len(re.findall(r'fill="var\(--c5[^>]*data-mark="[ab]', body))
    flying = (moment in (0, 1)) or (moment in (3, 4) and not kept)  # on their way, or about to leave
    assert cells + lent * (not flying) == (ranks * ranks if unit.unsharded(moment) else ranks)


@over(width=WIDTHS)
def test_a_life_has_six_moments_with_their_names(width):
    picture = fsdp_life.six(width)
    said = re.findall(r">(\d)\. ([a-z-]+(?: [a-z]+)?)<", picture)
    assert [int(number) for number, _ in said] == [1, 2, 3, 4, 5, 6]
    assert [what for _, what in said] == ["at rest", "forward", "between", "backward", "reduce-scatter", "at rest"]


def test_three_wrappings_say_what_the_models_say():
    found = {wrap: units(fsdp_wraps.SHAPE, Sharding(fsdp_wraps.RANKS, wrap=wrap)) for wrap in fsdp_wraps.NAMES}
    for width in WIDTHS:
        picture = fsdp_wraps.three(width)
        for wrap, some in found.items():
            gathers = 2 * len(some) - 1
            assert f">{len(some)} unit{'s' * (len(some) > 1)}, {gathers} all-gather{'s' * (gathers > 1)}<" in picture
            assert f"units take up to {fsdp_wraps.most(wrap):.1f} GiB" in picture
    n = total_parameters(fsdp_wraps.SHAPE)
    whole = (2 + 4) * n / 2**30  # all gradients in bf16, and in the fp32 that they are reduced in
    assert fsdp_wraps.most("model") == pytest.approx(whole, rel=0.001)
    assert fsdp_wraps.most("model") < fsdp_wraps.TOP


@over(wrap=tuple(fsdp_wraps.NAMES))
def test_the_hill_of_units_is_to_scale(wrap):
    picture = fsdp_wraps._panel(wrap, 200)
    top = min(
        float(y) for d in re.findall(r'<path d="([^"]*)" fill="var\(--c4', picture) for y in re.findall(r"V([\d.]+)", d)
    )
    bottom = max(float(y) for y in re.findall(r'y1="([\d.]+)"', picture))
    assert (bottom - top) / fsdp_wraps.HILL == pytest.approx(fsdp_wraps.most(wrap) / fsdp_wraps.TOP, abs=0.01)


def test_no_more_rows_than_can_be_told_apart():
    assert fsdp_wraps.STRIP / fsdp_units.ROWS > 1.9
