// The prediction lock: the picture does not hold the answer until the reader commits a guess, or skips on purpose.

import { el, freshId, rich, written } from "./controls.js";
import { forget } from "./share.js";
import { drawer } from "./status.js";

const RIGHT = 0.02; // as far from the answer as three digits make no difference
const CLOSE = 0.1;
const FAR = 3; // from here on "times", where per cent stop saying anything
const ABSURD = 1000; // times what the picture shows: no guess, but a slip of the keys

/** A number as people type it, 1.75 and 1,75 and 1,000; NaN for anything else. */
function typed(text) {
  const plain = text.trim().replace(/,(?=\d{3}(\D|$))/g, "").replace(",", ".");
  return /^-?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?$/i.test(plain) ? Number(plain) : NaN;
}

/** A difference of shares: right up to `right` points. */
function inPoints(difference, right) {
  const points = Math.max(1, Math.round(Math.abs(difference)));
  if (Math.abs(difference) <= right) return "yours is right";
  return `${points <= 5 ? "close:" : "yours is"} ${points} point${points === 1 ? "" : "s"} too ${difference < 0 ? "low" : "high"}`;
}

const COUNTS = ["no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"];

/** How far a guess is from the answer: "26% too low". Of a share it is points, of a count how many; a rank is a name. */
function distance(guess, answer, unit) {
  if (unit === "rank") return Math.round(guess) === answer ? "yours is right" : "not the rank that you named";
  if (unit === "%") return inPoints(guess - answer, Math.max(0.5, RIGHT * answer));
  if (unit === "" && Number.isInteger(answer) && answer < COUNTS.length) {
    const more = Math.round(guess - answer);
    if (more && Math.abs(more) < COUNTS.length) return `yours is ${COUNTS[Math.abs(more)]} too ${more < 0 ? "few" : "many"}`;
  }
  const ratio = answer === 0 ? (guess === 0 ? 1 : Infinity) : guess / answer;
  const off = Math.abs(ratio - 1);
  if (off <= RIGHT) return "yours is right";
  if (ratio === Infinity) return "yours is too high";
  if (ratio >= FAR) return `yours is ${Number(ratio.toPrecision(2)).toLocaleString("en-US")} times too high`;
  if (ratio < 0.005) return "yours is far too low, under 1% of it";
  const words = `${Math.max(1, Math.round(100 * off))}% too ${ratio < 1 ? "low" : "high"}`;
  return off <= CLOSE ? `close: ${words}` : `yours is ${words}`;
}

/** The guess beside the answer, with the name of the mistake that gives just this number. */
export function verdict(guess, { answer, words, slips, unit }) {
  const far = distance(guess, answer, unit);
  const slip = slips.find(([value]) => Math.abs(value - guess) <= RIGHT * Math.abs(value));
  return `it is **${words}**: ${far}${slip && far !== "yours is right" ? `, ${slip[1]}` : ""}.`;
}

/** What `form.py` hid: {result, question}. */
export function unseal(sealed) {
  return JSON.parse(new TextDecoder().decode(Uint8Array.from(atob(sealed), (one) => one.charCodeAt(0))));
}

/** The lock of one view: `lock` puts the opening picture without its answer back, `open` shows the result beside a guess. */
export class Guess {
  constructor(view, control) {
    Object.assign(this, { view, control, name: `guess:${location.pathname}:${view.data.key}` });
    this.strip = view.root.querySelector(".live-strip");
    this.pictures = view.figures.map((figure) => figure.box.innerHTML);
    this.again = el("button", {
      type: "button", class: "live-again", "aria-label": "Guess again", title: "Guess again", onclick: () => this.lock(true),
    }, "↺");
    this.words = el("p", { class: "live-verdict", tabindex: -1 });
    this.make();
    for (const figure of view.figures) this.draggable(figure);
    const before = drawer.get(this.name);
    if (before) this.open(Number.isFinite(before.value) ? before.value : null);
    else this.lock(false);
  }

  /** What is typed; NaN where that is no number. */
  get number() {
    return typed(this.input.value);
  }

  get locked() {
    return "locked" in this.view.root.dataset;
  }

  written(value) {
    return this.control.unit === "rank" ? `rank ${value}` : written(value, this.control.unit);
  }

  make() {
    const { lo, step, unit } = this.control;
    const id = freshId("guess");
    this.input = el("input", {
      type: "text", id, inputmode: "decimal", autocomplete: "off", placeholder: "guess",
    });
    this.error = el("p", { class: "live-problem", role: "alert", hidden: true });
    const label = el("label", { for: id, class: "live-announce" }, `Your guess${unit ? ` in ${unit}` : ""}`);
    this.input.addEventListener("input", () => this.show());
    // the arrow keys move the mark by what the picture can show
    this.input.addEventListener("keydown", (event) => {
      const way = { ArrowUp: 1, ArrowDown: -1, PageUp: 10, PageDown: -10 }[event.key];
      if (!way) return;
      event.preventDefault();
      this.put((Number.isFinite(this.number) ? this.number : lo) + way * step);
    });
    const send = el("button", { type: "submit", class: "live-main" }, "Commit");
    const skip = el("button", { type: "button", class: "live-plain", onclick: () => this.open(null, true) },
      "Show me without a guess");
    const row = el("div", { class: "live-row" }, label, this.input, el("span", { "aria-hidden": "true" }, unit ?? ""), send);
    const onsubmit = (event) => {
      event.preventDefault();
      this.commit();
    };
    this.form = el("form", { class: "live-lock", novalidate: true, onsubmit }, row, skip, this.error);
  }

  /** Drag the mark, or press anywhere in the locked picture. */
  draggable(figure) {
    const take = (event) => {
      const value = this.locked ? figure.value(event) : null;
      if (value !== null) this.put(value);
    };
    figure.box.addEventListener("pointerdown", (event) => {
      if (!this.locked || event.button !== 0) return;
      take(event);
      if (event.target.closest(".live-mark")) figure.box.setPointerCapture(event.pointerId);
    });
    figure.box.addEventListener("pointerup", (event) => {
      // the arrow keys go on from there; under a finger the focus would bring a keyboard up over the picture
      if (this.locked && event.pointerType === "mouse") this.input.focus({ preventScroll: true });
    });
    figure.box.addEventListener("pointermove", (event) => {
      if (event.buttons & 1 && (event.pointerType === "mouse" || figure.box.hasPointerCapture(event.pointerId))) take(event);
    });
  }

  /** A guess from the picture or from the keys, rounded to the step. */
  put(value) {
    const { lo, step } = this.control;
    this.input.value = Number((Math.max(lo, Math.round(value / step) * step)).toPrecision(6));
    this.show();
  }

  possible(value) {
    return value >= 0 && value <= ABSURD * this.control.hi;
  }

  /** The mark stands where the number says; while there is none, at the lower end. */
  show() {
    this.error.hidden = true;
    const value = this.number;
    const given = this.possible(value);
    this.mark(given ? value : this.control.lo, given ? `your guess: ${this.written(value)}` : "drag: your guess");
  }

  mark(value, words) {
    this.given = value === null ? null : { value, words };
    this.stand();
  }

  /** The guess is of the view as it opened: in the picture of another setting it would stand for nothing. */
  stand() {
    const asked = this.view.moved().every(({ kind }) => kind === "play");
    for (const figure of this.view.figures) figure.mark(asked ? this.given : null);
  }

  commit() {
    const value = this.number, ready = this.possible(value);
    this.error.hidden = ready;
    if (ready) this.open(value, true);
    else this.error.textContent = `Type a number, such as one from 0 to ${this.control.hi.toLocaleString("en-US")}, or skip the guess.`;
  }

  lock(byReader) {
    drawer.put(this.name, null);
    this.view.close(this.pictures);
    if (byReader && this.view.runtime.page) forget(this.view.data.key);
    this.words.remove();
    this.strip.append(this.form);
    this.input.value = "";
    this.show();
    if (byReader) this.input.focus();
  }

  /** Show the answer beside the guess; null: the reader wanted none. */
  open(value, byReader = false) {
    drawer.put(this.name, { value });
    this.form.remove();
    const { result, question } = unseal(this.view.data.sealed);
    this.mark(value, value === null ? "" : `your guess: ${this.written(value)}`);
    this.words.replaceChildren(...(value === null ? [] : [
      el("span", { class: "live-yours" }, `you: ${this.written(value)}`), " ", ...rich(verdict(value, { ...question, unit: this.control.unit ?? "" })), " ",
    ]), this.again);
    this.strip.append(this.words);
    this.view.open(result, byReader ? 700 : 0);
    // the form with the focus is gone; the reader goes on where the result is
    if (byReader) (value === null ? this.again : this.words).focus({ preventScroll: true });
  }
}
