// What a chapter has beside its views takes part in each of their frames, seen or not: half of a redraw's time. Once a
// reader has a view at hand, blocks that are out of sight are left out, as high as they were.

// Not the headings, which links go to; nor what reaches out of its block: what floats, and the margin of a term, of a
// figure, or of an output that stands first.
const OUT = "section, aside, dl, h1, h2, h3, h4, :has(.live-widget, figure, > .cell_output:first-child)";

/** The blocks of the page that can be left out. */
export const blocks = () => [...document.querySelectorAll(`.bd-article section > :not(${OUT})`)];

/** The height of what is within a block, without its padding and border, in pixels. */
function height(block) {
  const style = getComputedStyle(block);
  const edges = ["borderTopWidth", "paddingTop", "paddingBottom", "borderBottomWidth"];
  return edges.reduce((left, edge) => left - parseFloat(style[edge]), block.getBoundingClientRect().height);
}

/** Once, when the page has nothing else to do. */
export function leaveOut() {
  const every = blocks();
  const heights = every.map(height); // all read before the first is changed
  every.forEach((block, i) => {
    block.style.containIntrinsicHeight = `auto ${heights[i]}px`;
    block.style.contentVisibility = "auto";
  });
}
