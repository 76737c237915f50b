// The pictures of a view, one for each width. Python draws them; here what two of them share moves from one to the
// other, and the mark of a guess goes where the guess is.

import { glides } from "./glide.js";
import { Hands } from "./hands.js";

const MOVING = ["x", "y", "width", "height", "cx", "cy", "r", "x1", "y1", "x2", "y2", "points", "d", "transform", "opacity"];
const NUMBER = /-?\d+(?:\.\d+)?/g;
const SVG = "http://www.w3.org/2000/svg";
const [MANY, SLOW] = [160, 200]; // what moves that a frame has no time for, in fewer milliseconds than it could be watched
const BESIDE = 12; // of a mark's words from its line: past the knob
const [LOWER, HIGHER] = [22, -20]; // of words that others are in the way of
const still = matchMedia("(prefers-reduced-motion: reduce)");

/** From one text with numbers to another: a function of 0 to 1; null where more than the numbers differ. */
function between(from, to) {
  if (from === null || from === to || from.replace(NUMBER, "#") !== to.replace(NUMBER, "#")) return null;
  const starts = from.match(NUMBER).map(Number);
  const ends = to.match(NUMBER).map(Number);
  return (part) => {
    let i = 0;
    return to.replace(NUMBER, () => {
      const now = starts[i] + (ends[i] - starts[i]) * part;
      i += 1;
      return now.toFixed(2);
    });
  };
}

/** Where `value` lies on the line through the pairs, each [value, place]; beyond the ends it stays there. */
function along(pairs, value) {
  const [first, last] = [pairs[0], pairs.at(-1)];
  if (value <= first[0]) return first[1];
  if (value >= last[0]) return last[1];
  const next = pairs.findIndex(([at]) => at >= value);
  const [[a, from], [b, to]] = [pairs[next - 1], pairs[next]];
  return from + ((to - from) * (value - a)) / (b - a);
}

/** The values on a mark's way and their places: [[value, place], ...]. */
const stops = (mark) => mark.dataset.stops.split(" ").map((pair) => pair.split(":").map(Number));

export class Figure {
  /** `box` holds a picture of `view`. */
  constructor(box, view) {
    Object.assign(this, { box, guess: null });
    this.hands = new Hands(this, view);
  }

  /** Whether the page shows this width. */
  get visible() {
    return getComputedStyle(this.box).display !== "none";
  }

  /** Put a picture there; what has a name moves from where it was within so many milliseconds. */
  paint(svg, ms = 0) {
    cancelAnimationFrame(this.frame);
    const moves = ms > 0 && !still.matches;
    const before = moves ? this.named() : new Map();
    const points = before.get("field")?.dataset.points;
    this.hands.put(svg);
    this.dress();
    if (!moves) return;
    const tracks = [...this.paths(before), ...glides(this.box, points)];
    if (tracks.length > MANY && ms < SLOW) return;
    const start = performance.now();
    const step = (now) => {
      const part = Math.min(1, Math.max(0, (now - start) / ms));
      const eased = part < 0.5 ? 2 * part * part : 1 - 2 * (1 - part) ** 2;
      for (const { node, name, at, end } of tracks) node.setAttribute(name, part < 1 ? at(eased) : end);
      if (part < 1) this.frame = requestAnimationFrame(step);
    };
    step(start);
  }

  /** By name, the marks as they stand, halfway too. */
  named() {
    const marks = this.box.querySelectorAll("[data-mark]");
    return new Map([...marks].map((node) => [node.dataset.mark, node]));
  }

  paths(before) {
    const tracks = [];
    for (const [mark, node] of this.named()) {
      const old = before.get(mark);
      if (old === node) continue; // hands.js let it stay
      if (old?.tagName !== node.tagName || "held" in node.dataset) continue;
      for (const name of MOVING) {
        const end = node.getAttribute(name);
        const at = end === null ? null : between(old.getAttribute(name), end);
        if (at) tracks.push({ node, name, at, end });
      }
    }
    return tracks;
  }

  /** Show a guess: {value, words}, or none. */
  mark(guess) {
    this.guess = guess;
    this.dress();
  }

  dress() {
    const mark = this.box.querySelector(".live-mark");
    if (!mark) return;
    if (!this.guess) return mark.setAttribute("visibility", "hidden");
    const pairs = stops(mark);
    const { value, words } = this.guess;
    const at = along(pairs, value);
    mark.setAttribute("transform", mark.dataset.way === "x" ? `translate(${at} 0)` : `translate(0 ${at})`);
    mark.removeAttribute("visibility");
    const text = mark.querySelector("text");
    const last = pairs.at(-1)[0];
    text.textContent = value > last ? `${words}, beyond this axis` : words;
    const upright = mark.dataset.way === "x";
    if (upright) this.keepInside(text, at);
    // above the end of an axis there is room
    this.keepClear(text, upright || value < last ? [0, LOWER, HIGHER] : [0, HIGHER, LOWER]);
  }

  /** The words stand on the side where there is room. */
  keepInside(text, at) {
    const width = this.box.firstElementChild?.viewBox.baseVal.width ?? 0;
    const left = at > width * 0.6;
    text.setAttribute("x", left ? -BESIDE : BESIDE);
    text.setAttribute("text-anchor", left ? "end" : "start");
  }

  /** The words move by the first of these where they meet no others, else not at all. */
  keepClear(text, ways) {
    const home = Number(text.dataset.home ??= text.getAttribute("y"));
    const others = [...this.box.querySelectorAll("text")].filter((one) => one !== text).map((one) => one.getBoundingClientRect());
    const clear = (way) => {
      text.setAttribute("y", home + way);
      const own = text.getBoundingClientRect();
      return !others.some((one) => one.left < own.right && own.left < one.right && one.top < own.bottom && own.top < one.bottom);
    };
    if (!ways.some(clear)) text.setAttribute("y", home);
  }

  /** The value under a pointer, where the picture asks for one. */
  value(event) {
    const mark = this.box.querySelector(".live-mark");
    const picture = this.box.firstElementChild;
    if (!mark || picture.namespaceURI !== SVG) return null;
    const point = new DOMPoint(event.clientX, event.clientY).matrixTransform(picture.getScreenCTM().inverse());
    const places = stops(mark).map(([value, place]) => [place, value]);
    if (places[0][0] > places.at(-1)[0]) places.reverse();
    return along(places, mark.dataset.way === "x" ? point.x : point.y);
  }
}
