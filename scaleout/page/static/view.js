// One live view: the picture Python draws, and the controls under it.

import { announcer, build, el, keepKeys } from "./controls.js";
import { editor } from "./code.js";
import { Guess } from "./guess.js";
import { readFragment, shareable, writeFragment } from "./share.js";
import { statusLine } from "./status.js";

/** The values one key press away from a slider's value. */
function neighbours({ stops, lo, hi, step }, value) {
  if (!stops) return [value - step, value + step].filter((near) => near >= lo && near <= hi);
  const at = stops.indexOf(value);
  return [stops[at - 1], stops[at + 1]].filter((near) => near !== undefined);
}

export class View {
  constructor(root, data, runtime) {
    this.learner = data.spec.controls.some((control) => control.kind === "code");
    if (this.learner) runtime = runtime.learner ?? runtime; // a page runs a reader's code apart from the book's
    Object.assign(this, { root, data, runtime, params: { ...data.params }, built: new Map(), ahead: new Map() });
    this.shown = root.querySelector(".live-sentence");
    this.figure = root.querySelector(".live-figure");
    this.status = statusLine(runtime);
    this.announce = announcer();
    this.values = data.result.values;
    this.stored = { svg: this.figure.innerHTML, sentence: this.shown.textContent };
    this.layOut();
    keepKeys(root);
    // what the reader asked for while Python was away is drawn once it is there
    runtime.watch(() => {
      if (runtime.state === "ready" && this.stale) this.redraw();
    });
    // the first touch, by pointer or by keyboard, is what starts Python
    for (const kind of ["pointerdown", "focusin"]) {
      root.addEventListener(kind, () => this.status.touch(), { once: true });
    }
  }

  layOut() {
    const { root, data } = this;
    const asked = data.spec.controls.find((control) => control.kind === "guess");
    const after = [this.status.element];
    if (asked) {
      this.guess = new Guess(root, asked, data.key, (value) => this.judge(asked.name, value));
      after.unshift(this.guess.words);
    }
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", data.spec.title);
    // the announced copy speaks for this one, once the reader's hand rests
    this.shown.setAttribute("aria-hidden", "true");
    this.announce.region.textContent = this.guess?.locked ? "" : this.shown.textContent;
    root.append(...after, this.controls(), this.foot(), this.announce.region);
    root.dataset.mounted = "";
  }

  controls() {
    const box = el("div", { class: "live-controls" });
    for (const control of this.data.spec.controls) {
      if (control.kind === "guess") continue;
      const changed = (value) => this.change(control.name, value);
      const made = control.kind === "code"
        ? this.codeBox(control)
        : build(control, this.params[control.name], changed);
      this.built.set(control.name, made);
      box.append(made.element);
    }
    return box;
  }

  codeBox(control) {
    const run = () => this.redraw();
    const made = editor(control.label, this.params[control.name], (text) => {
      this.params[control.name] = text;
      this.status.problem(""); // it was said of other code
    }, run);
    made.element.append(el("button", { type: "button", class: "live-main", onclick: run }, "Run"));
    return made;
  }

  foot() {
    const reset = el("button", { type: "button", onclick: () => this.reset() }, "Reset");
    const buttons = [reset];
    if (this.runtime.page) {
      buttons.push(shareable(() => this.fragment()));
      addEventListener("hashchange", () => this.restore());
    }
    if (this.guess) buttons.push(this.guess.again);
    return el("div", { class: "live-buttons live-foot" }, ...buttons);
  }

  async change(name, value) {
    this.params[name] = value;
    await this.redraw();
    const control = this.data.spec.controls.find((one) => one.name === name);
    const steps = control.kind === "slider" || control.kind === "play";
    if (steps && this.runtime.page && !this.learner && !this.busy) this.drawAhead(control);
  }

  /**
   * Draw a slider's neighbours before they are asked for: a key press then paints at once. Without this the worker's
   * answer to a key comes after the browser's next frame, and is seen in the one after that.
   */
  async drawAhead(control) {
    const { params } = this;
    const near = neighbours(control, params[control.name]).map((value) => ({ ...params, [control.name]: value }));
    const known = near.map((one) => this.ahead.get(JSON.stringify(one)));
    this.ahead.clear();
    for (const [i, one] of near.entries()) {
      const result = known[i] ?? await this.draw(one);
      if (this.busy) return; // the reader went on: what is asked for comes first
      if (!result.failed && !result.error) this.ahead.set(JSON.stringify(one), result);
    }
  }

  set(params) {
    this.params = { ...this.params, ...params };
    for (const [name, made] of this.built) made.set(this.params[name]);
  }

  reset() {
    for (const made of this.built.values()) made.stop?.();
    this.set(this.data.params);
    this.redraw();
  }

  /** Draw what the controls say. At most one drawing is under way; then the latest, never one in between. */
  async redraw() {
    this.waiting = true;
    if (this.busy) return;
    this.busy = true;
    this.status.touch();
    while (this.waiting) {
      this.waiting = false;
      const drawn = this.ahead.get(JSON.stringify(this.params));
      this.paint(drawn ?? await this.draw(this.params));
    }
    this.busy = false;
  }

  draw(params) {
    const { seconds, stopped, spec } = this.data;
    const code = spec.controls.filter(({ kind }) => kind === "code").map(({ name }) => params[name]).join("\n");
    const limit = this.learner ? { seconds, stopped, code } : {};
    return this.runtime.call("draw", { stem: this.data.stem, params }, limit);
  }

  paint(result) {
    this.stale = result.failed === true;
    if (this.stale) return;
    this.status.problem(result.error);
    if (result.error) return;
    this.figure.innerHTML = result.svg;
    this.shown.textContent = result.sentence;
    this.values = result.values;
    if (!this.guess?.locked) this.announce.say(result.sentence);
    if (this.runtime.page) writeFragment(this.fragment());
    this.root.dispatchEvent(new CustomEvent("live-paint", { detail: result, bubbles: true }));
  }

  async judge(name, value) {
    this.status.touch();
    const result = await this.draw({ ...this.params, [name]: value });
    this.paint(result);
    return result.guess?.sentence;
  }

  fragment() {
    const plain = this.data.spec.controls.filter(({ kind }) => kind !== "guess" && kind !== "code");
    const moved = plain.filter(({ name }) => this.params[name] !== this.data.params[name]);
    return { key: this.data.key, params: Object.fromEntries(moved.map(({ name }) => [name, this.params[name]])) };
  }

  /** Take the state that the address holds, when it names this view. A wrong one leaves the stored picture. */
  async restore() {
    const given = readFragment(this.data.key, this.data.spec.controls);
    if (!given) return;
    this.root.scrollIntoView();
    const asked = { ...this.data.params, ...given };
    this.status.touch();
    const result = await this.draw(asked);
    if (!result.error && !result.failed) this.set(asked);
    this.paint(result);
  }
}
