"""Contrast of what a page's pictures show, measured as it is drawn: axe does not look into SVG."""

from __future__ import annotations

TEXT, MARK = 4.5, 3  # WCAG 2.2, 1.4.3 and 1.4.11
SMALLEST, LARGEST = 11, 16  # CSS pixels of text in a plot

# Words against what is drawn beneath their middle, or against their own halo; marks of a plot by the better of their
# fill and their outline against the ground, but for the grid. Each finding says what is drawn, and its figure.
FAINT = """([least, leastMark]) => {
  const numbers = (colour) => colour.match(/[\\d.]+/g)?.map(Number) ?? [];
  const over = (colour, share, ground) => {
    const [r, g, b, alpha = 1] = numbers(colour);
    return [r, g, b].map((value, at) => share * alpha * value + (1 - share * alpha) * ground[at]);
  };
  const light = (colour) => colour.map((value) => value / 255)
    .map((value) => value <= .04045 ? value / 12.92 : ((value + .055) / 1.055) ** 2.4)
    .reduce((sum, value, at) => sum + [.2126, .7152, .0722][at] * value, 0);
  const ratio = (a, b) => {
    const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
    return (high + .05) / (low + .05);
  };
  const share = (node, kind) => {
    let all = Number(getComputedStyle(node)[`${kind}Opacity`]);
    for (let one = node; one.tagName !== "svg"; one = one.parentElement) all *= Number(getComputedStyle(one).opacity);
    return all;
  };
  const paper = (node) => {
    for (let one = node; one; one = one.parentElement) {
      const found = numbers(getComputedStyle(one).backgroundColor);
      if (found.length === 3 || found[3] === 1) return found.slice(0, 3);
    }
    return [255, 255, 255];
  };
  const within = (shape, x, y) => {
    const at = new DOMPoint(x, y).matrixTransform(shape.getScreenCTM().inverse());
    return shape.isPointInFill(at);
  };
  const beneath = (text, shapes, ground) => {
    const box = text.getBoundingClientRect();
    for (const shape of shapes) {
      const { fill } = getComputedStyle(shape);
      const drawn = fill !== "none" && shape.compareDocumentPosition(text) & Node.DOCUMENT_POSITION_FOLLOWING;
      const full = drawn && within(shape, (box.left + box.right) / 2, (box.top + box.bottom) / 2);
      if (full && !fill.startsWith("url")) ground = over(fill, share(shape, "fill"), ground);
    }
    return ground;
  };
  const out = [];
  for (const picture of document.querySelectorAll(".bd-article :is(svg.plot, .live-figure svg)")) {
    if (!picture.checkVisibility()) continue;
    const style = (node) => getComputedStyle(node);
    const ground = paper(picture);
    const shapes = [...picture.querySelectorAll("path, rect, circle, polygon, polyline, ellipse, use")]
      .filter((one) => !one.closest("defs, pattern, clipPath, symbol") && style(one).visibility === "visible");
    const fills = shapes.filter((one) => one.isPointInFill);
    for (const text of picture.querySelectorAll("text")) {
      if (!text.textContent.trim() || !text.checkVisibility({ visibilityProperty: true })) continue;
      const halo = style(text).paintOrder.startsWith("stroke") && style(text).stroke !== "none";
      const behind = halo ? over(style(text).stroke, 1, ground) : beneath(text, fills, ground);
      const found = ratio(over(style(text).fill, share(text, "fill"), behind), behind);
      if (found < least) out.push(`${text.textContent}: ${found.toFixed(2)}`);
    }
    if (!picture.matches(".plot")) continue;
    picture.style.color = "var(--grid)";
    const grid = style(picture).color;
    for (const mark of shapes) {
      const inks = ["fill", "stroke"].filter((kind) => numbers(style(mark)[kind]).length >= 3)
        .map((kind) => over(style(mark)[kind], share(mark, kind), ground));
      const best = Math.max(...inks.map((ink) => ratio(ink, ground)));
      if (inks.length && best > 1.001 && style(mark).stroke !== grid && best < leastMark) {
        out.push(`${mark.getAttribute("style") ?? mark.parentElement.outerHTML.slice(0, 90)}: ${best.toFixed(2)}`);
      }
    }
  }
  return out;
}"""

SIZES = """[...document.querySelectorAll(":is(svg.plot, .live-beneath svg, .live-figure > svg) :is(text, tspan)")]
  .filter((one) => one.textContent.trim() && one.checkVisibility())
  .map((one) => parseFloat(getComputedStyle(one).fontSize) * Math.hypot(one.getScreenCTM().a, one.getScreenCTM().b))"""


def faint(page) -> list[str]:
    """What can hardly be seen of a page's pictures, as the page stands."""
    return page.evaluate(FAINT, [TEXT, MARK])


def sizes(page) -> list[float]:
    """Heights of the words in a page's plots and views, in CSS pixels, that are no size to read. A phone may draw a
    picture a little larger than it was made."""
    return [size for size in page.evaluate(SIZES) if not SMALLEST <= size <= 1.02 * LARGEST]
