"""A stored figure as a part of a page: its colours, the names of its parts, its size, its words."""

import re

from scaleout.draw import svg
from scaleout.page import plots

STORED = """<?xml version="1.0" encoding="utf-8" standalone="no"?>
<!DOCTYPE svg PUBLIC "-//W3C//DTD SVG 1.1//EN" "http://www.w3.org/Graphics/SVG/1.1/DTD/svg11.dtd">
<svg xmlns:xlink="http://www.w3.org/1999/xlink" width="360pt" height="216pt" viewBox="0 0 360 216"
 xmlns="http://www.w3.org/2000/svg" version="1.1">
 <metadata>made by somebody</metadata>
 <defs><style type="text/css">*{stroke-linejoin: round}</style></defs>
 <g id="figure_1">
  <path d="M 0 0" style="fill: #ffffff"/>
  <defs><path id="m0072b2abcd" d="M 0 3"/><clipPath id="p1"><rect/></clipPath></defs>
  <g clip-path="url(#p1)"><use xlink:href="#m0072b2abcd" style="fill: #0072b2; stroke: #123456"/></g>
  <pattern id="h1"><rect fill="#ffffff"/></pattern><path style="fill: url(#h1); stroke: #b3261e"/>
 </g>
</svg>"""


def test_colours_of_the_palette_become_its_variables():
    drawn = plots.inline(STORED, "words", "plot1")
    assert re.findall(r"var\(--(\w+)\)", drawn) == ["paper", "c1", "paper", "accent"]
    assert plots.strange(STORED) == {"#123456"} == set(plots.HEX.findall(drawn.replace("m0072b2", "")))
    assert {plots.NAMES[code] for code in svg.FALLBACK.values()} == set(svg.FALLBACK)  # no two are one


def test_names_of_parts_are_the_figures_own_and_still_meet():
    drawn = plots.inline(STORED, "words", "plot1")
    ids = re.findall(r'\bid="([^"]+)"', drawn)
    assert ids == ["plot1-m0072b2abcd", "plot1-p1", "plot1-h1"]  # and none that nothing refers to
    assert sorted(re.findall(r'(?:xlink:href="|url\()#([^")]+)', drawn)) == sorted(ids)
    assert not set(ids) & set(re.findall(r'\bid="([^"]+)"', plots.inline(STORED, "words", "plot2")))


def test_it_is_a_picture_with_words_in_css_pixels_and_has_no_style_for_the_page():
    drawn = plots.inline(STORED, 'less < "more"', "plot1")
    assert drawn.startswith('<svg class="plot" role="img" aria-label="less &lt; &quot;more&quot;" ')
    assert 'width="480" height="288" viewBox="0 0 360 216"' in drawn
    assert not re.search("<style|<metadata|<!DOCTYPE|ns0", drawn)
