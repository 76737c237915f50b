// The prediction lock: the result stays out of sight until the reader commits a guess, or skips on purpose.

import { el, freshId } from "./controls.js";
import { drawer } from "./status.js";

function lockForm(control, commit, skip) {
  const id = freshId("guess");
  const input = el("input", {
    type: "number", id, min: 0, step: "any", inputmode: "decimal", autocomplete: "off", required: true,
  });
  const unit = el("span", { class: "live-unit", "aria-hidden": "true" }, control.unit || "");
  const error = el("p", { class: "live-problem", role: "alert", hidden: true });
  const submit = (event) => {
    event.preventDefault();
    const ready = input.value !== "" && input.checkValidity();
    error.hidden = ready;
    if (ready) commit(input.valueAsNumber);
    else error.textContent = "Type a number, 0 or more, or skip the guess.";
  };
  const label = el("label", { for: id }, control.label);
  if (control.unit) label.append(el("span", { class: "live-announce" }, ` in ${control.unit}`));
  const send = el("button", { type: "submit", class: "live-main" }, "Commit");
  const row = el("div", { class: "live-row" }, input, unit, send);
  const skipping = el("button", { type: "button", class: "live-plain", onclick: skip }, "Show me without a guess");
  // novalidate: the message is ours, in the widget, rather than a bubble of the browser's
  const form = el("form", { class: "live-lock", novalidate: true, onsubmit: submit }, label, row, error, skipping);
  return { form, input };
}

/** The lock of one view. `judge(value)` redraws with a guess and gives Python's words on it. */
export class Guess {
  constructor(root, control, key, judge) {
    Object.assign(this, { root, control, judge, name: `guess:${location.pathname}:${key}` });
    this.stage = root.querySelector(".live-stage");
    this.words = el("p", { class: "live-guessed", tabindex: -1, hidden: true });
    this.again = el("button", { type: "button", onclick: () => this.lock(true) }, "Guess again");
    const before = drawer.get(this.name);
    if (before) this.open(before.words);
    else this.lock(false);
  }

  get locked() {
    return !("open" in this.root.dataset);
  }

  lock(byReader) {
    drawer.put(this.name, null);
    delete this.root.dataset.open;
    const { form, input } = lockForm(this.control, (value) => this.commit(value), () => this.open("", true));
    this.form = form;
    this.stage.append(form);
    this.words.hidden = true;
    this.again.hidden = true;
    if (byReader) input.focus();
  }

  open(words, byReader = false) {
    drawer.put(this.name, { words });
    this.root.dataset.open = "";
    this.form?.remove();
    this.again.hidden = false;
    this.say(words);
    // the form with the focus is gone; the reader goes on where the result is
    if (byReader) (words ? this.words : this.again).focus({ preventScroll: true });
  }

  say(words) {
    this.words.hidden = !words;
    this.words.textContent = words;
  }

  /** The picture shows at once; the comparison as soon as Python has made it. */
  async commit(value) {
    this.open(`Your guess: ${value} ${this.control.unit || ""}`.trim(), true);
    const words = await this.judge(value);
    if (!words || this.locked) return;
    this.say(words);
    drawer.put(this.name, { words });
  }
}
