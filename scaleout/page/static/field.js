// A field of points (scaleout/draw/field.py): too many to be buttons, so that the nearest to a pointer is the one meant,
// and arrow keys go from one to the next. A ring shows which, a line of words says what it is; a press sets controls.

import { read } from "./share.js";

const REACH = 18; // CSS pixels from a pointer to a point, where the field does not say

/** The points of a field: [{x, y, values, words}, ...]. */
function points(mark) {
  return mark.dataset.points.split(";").filter(Boolean).map((one) => {
    const bar = one.indexOf("|");
    const [x, y, ...values] = one.slice(0, bar).split(" ");
    return { x: Number(x), y: Number(y), values, words: one.slice(bar + 1) };
  });
}

export class Field {
  constructor(box, view) {
    Object.assign(this, { box, view, at: null });
    box.addEventListener("pointermove", (event) => this.point(event));
    box.addEventListener("pointerleave", () => this.show(null));
    box.addEventListener("click", (event) => this.click(event));
    box.addEventListener("keydown", (event) => this.key(event));
    box.addEventListener("focusout", () => this.show(null));
  }

  get mark() {
    return this.box.querySelector("[data-field][role]");
  }

  /** One stop of the Tab key, a slider over its points. */
  arm(mark) {
    this.at = null;
    const count = points(mark).length;
    const says = { role: "slider", tabindex: count ? 0 : -1, "aria-valuemin": 1, "aria-valuemax": Math.max(1, count), "aria-valuenow": 1 };
    for (const [key, value] of Object.entries({ ...says, "aria-label": mark.dataset.label })) mark.setAttribute(key, value);
  }

  /** The points of the mark that is there, read once. */
  get known() {
    const { mark } = this;
    if (this.read?.text !== mark?.dataset.points) this.read = { text: mark?.dataset.points, all: mark ? points(mark) : [] };
    return this.read.all;
  }

  /** The place of the point nearest to a pointer, or null. */
  nearest({ clientX, clientY, target }) {
    const { mark } = this;
    if (!mark || !mark.contains(target)) return null;
    const there = mark.ownerSVGElement.getScreenCTM();
    const at = new DOMPoint(clientX, clientY).matrixTransform(there.inverse());
    const far = this.known.map(({ x, y }) => Math.hypot(x - at.x, y - at.y) * there.a);
    const least = far.indexOf(Math.min(...far));
    return least >= 0 && far[least] <= (mark.dataset.reach * there.a || REACH) ? least : null;
  }

  point(event) {
    if (event.pointerType !== "touch") this.show(this.nearest(event));
  }

  /** Ring a point and say what it is; none: as Python drew it. */
  show(place) {
    const { mark } = this;
    if (!mark || this.at === place) return;
    this.at = place;
    const ring = mark.querySelector("circle"), words = mark.querySelector("text");
    words.dataset.first ??= words.textContent;
    const one = this.known[place];
    ring.setAttribute("visibility", one ? "visible" : "hidden");
    words.textContent = one ? one.words : words.dataset.first;
    mark.setAttribute("aria-valuenow", (place ?? 0) + 1);
    if (!one) return mark.removeAttribute("aria-valuetext");
    ring.setAttribute("cx", one.x);
    ring.setAttribute("cy", one.y);
    mark.setAttribute("aria-valuetext", one.words);
  }

  click(event) {
    const place = this.nearest(event);
    if (place !== null) this.take(place);
  }

  /** As if the reader had moved all these controls at once. */
  take(place) {
    const { spec } = this.view.data;
    const { values } = this.known[place];
    const names = this.mark.dataset.field.split(" ");
    const taken = names.map((name, i) => [name, read(spec.controls.find((one) => one.name === name), values[i])]);
    this.view.choose(Object.fromEntries(taken));
  }

  key(event) {
    if (event.target !== this.mark || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.known.length - 1, now = this.at ?? -1, row = Number(this.mark.dataset.columns ?? 1);
    const to = { ArrowRight: now + 1, ArrowUp: now + row, ArrowLeft: now - 1, ArrowDown: now - row, Home: 0, End: last, PageUp: now + 10, PageDown: now - 10 }[event.key];
    if (to !== undefined) this.show(Math.min(last, Math.max(0, to)));
    else if ((event.key === "Enter" || event.key === " ") && this.at !== null) this.take(this.at);
    else return;
    event.preventDefault();
  }
}
