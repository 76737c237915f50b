// One live view: the picture Python draws, at its side the controls, beneath it the sentence.

import { Ahead } from "./ahead.js";
import { announcer, arrange, build, el, keepKeys, rich } from "./controls.js";
import { editor } from "./code.js";
import { Figure } from "./figure.js";
import { Guess } from "./guess.js";
import { records } from "./record.js";
import { Rest } from "./rest.js";
import { Room } from "./room.js";
import { readFragment, shareable, writeFragment } from "./share.js";
import { statusLine } from "./status.js";

// Milliseconds that a change of the picture takes: a dragged slider leads, a step is watched.
const FOLLOWS = 120;
const WATCHED = 600;

export class View {
  constructor(root, data, runtime) {
    this.learner = data.spec.controls.some((control) => control.kind === "code");
    if (this.learner) runtime = runtime.learner ?? runtime; // a page runs a reader's code apart from the book's
    Object.assign(this, { root, data, runtime, params: { ...data.params }, built: new Map() });
    Object.assign(this, { own: data.own, values: data.result?.values ?? {}, drawn: [], shape: 0, ahead: new Ahead(this) });
    this.figures = [...root.querySelectorAll(".live-stage .live-figure")].map((box) => new Figure(box, this));
    this.shown = root.querySelector(".live-sentence");
    this.law = root.querySelector(".live-law");
    this.status = statusLine(runtime, root);
    this.rest = new Rest(this);
    this.announce = announcer();
    this.layOut();
    this.drawn = this.figures.map(() => this.setting());
    keepKeys(root);
    // what the reader asked for while Python was away is drawn once it is there
    runtime.watch(() => {
      if (runtime.state === "ready" && this.stale) this.redraw();
      else if (runtime.state === "ready") this.warm();
    });
    // the first touch, by pointer or by keyboard, is what starts Python, where it has not begun by itself
    for (const kind of ["pointerdown", "focusin"]) root.addEventListener(kind, () => this.status.touch(), { once: true });
    this.room = new Room(this);
  }

  layOut() {
    const { root, data } = this;
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", data.spec.title);
    this.shown.setAttribute("aria-hidden", "true"); // its announced copy speaks for it, once the reader's hand rests
    root.querySelector(".live-side").prepend(...this.controls());
    root.querySelector(".live-side").append(this.foot());
    this.shown.after(this.status.element, this.announce.region);
    this.lever(data.result?.levers ?? {});
    const asked = data.spec.controls.find((control) => control.kind === "guess");
    if (data.sealed) this.guess = new Guess(this, asked);
    for (const figure of this.figures) figure.hands.arm();
    this.announce.region.textContent = this.guess?.locked ? "" : this.shown.textContent;
    this.rest.arm();
    root.dataset.mounted = "";
  }

  controls() {
    const every = this.data.spec.controls.filter(({ kind }) => kind !== "guess");
    const make = (control) => {
      const changed = (value) => this.change(control, value);
      const made = control.kind === "code"
        ? this.codeBox(control)
        : build(control, this.params[control.name], changed, (words) => this.status.problem(words));
      this.built.set(control.name, made);
      return made.element;
    };
    const [first, fold] = arrange(every, make);
    this.fold = fold;
    return [first, fold];
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
    const buttons = [el("button", { type: "button", class: "live-plain", onclick: () => this.reset() }, "Reset")];
    if (this.runtime.page) {
      buttons.push(shareable(() => this.fragment()));
      addEventListener("hashchange", () => this.restore());
    }
    if (this.data.spec.measured) {
      buttons.push(records(this.root, (record) => this.take(record), (words) => this.status.problem(words)));
    }
    if (this.runtime.page && this.data.sealed) {
      const href = new URL(`../../projector/${this.data.stem}.html`, this.runtime.address);
      buttons.push(el("a", { class: "live-room", href }, "For a room"));
    }
    return el("div", { class: "live-buttons live-foot" }, ...buttons);
  }

  /** Draw the reader's own Record into the picture. */
  async take(record) {
    this.status.touch();
    const own = await this.runtime.call("measured", { stem: this.data.stem, record }, {});
    this.status.problem(own.error);
    if (own.error || own.failed) return;
    this.own = own;
    this.ahead.clear();
    if (this.guess?.locked) this.status.problem("Your run is drawn after your guess.");
    else await this.redraw(WATCHED);
  }

  change(control, value) {
    this.params[control.name] = value;
    this.chose = control.kind === "select";
    return this.redraw(control.kind === "slider" || this.held ? FOLLOWS : WATCHED, control);
  }

  /** Move several controls at once. */
  choose(params) {
    this.set(params);
    return this.redraw(WATCHED);
  }

  /** What the controls do in the present setting; a control that nothing is said of does all it can. */
  lever(levers) {
    for (const [name, made] of this.built) {
      const now = levers[name] ?? {};
      const wakes = this.chose && !made.element.matches(".live-arrange") && "off" in made.element.dataset && !now.off;
      if (wakes && this.fold.contains(made.element)) this.fold.open = true; // a choice that asks for more shows where
      made.now?.(now);
      if (this.params[name] > now.hi) this.params[name] = now.hi; // as its slider shows, and Python drew
    }
  }

  set(params) {
    this.params = { ...this.params, ...params };
    for (const [name, made] of this.built) made.set(this.params[name]);
  }

  reset() {
    for (const made of this.built.values()) made.stop?.();
    this.own = this.data.own;
    this.ahead.clear();
    this.set(this.data.params);
    this.redraw(WATCHED);
  }

  /** The opening picture without the answer, and controls that wait. */
  close(pictures) {
    for (const made of this.built.values()) made.stop?.();
    this.set(this.data.params);
    this.root.dataset.locked = "";
    this.figures.forEach((figure, i) => figure.paint(pictures[i]));
    this.wait(true);
    this.shown.replaceChildren();
    this.law.replaceChildren();
    this.values = {};
  }

  /** A reader who has not guessed yet moves nothing. */
  wait(locked) {
    for (const box of this.root.querySelectorAll(".live-controls")) box.disabled = locked;
  }

  /** What the page had hidden: both pictures, and all that belongs to them. */
  open(result, ms) {
    delete this.root.dataset.locked;
    this.wait(false);
    this.figures.forEach((figure, i) => figure.paint(result.svg[i], i === this.shape ? ms : 0));
    this.tell(result);
    this.status.problem("");
    this.drawn = this.figures.map(() => this.setting());
    if (this.own !== this.data.own) this.redraw(); // a run that was given while the view was locked
  }

  /** Show a setting of a locked view: for a room, where the guesses are on the board. */
  reveal(params) {
    delete this.root.dataset.locked;
    this.wait(false);
    this.set(params);
    return this.redraw(WATCHED);
  }

  /** Draw what the controls say: one drawing at a time, then the latest; the words that take a search come last. */
  async redraw(ms = 0, moved = null) {
    this.waiting = true;
    if (this.busy) return;
    this.busy = true;
    this.room.hold();
    this.status.touch();
    while (this.waiting) {
      this.waiting = false;
      const { shape, params } = this;
      const name = this.ahead.name(shape, params);
      const result = await (this.ahead.drawn.get(name) ?? this.draw(params, shape));
      if (!this.waiting && !this.learner) this.ahead.keep(name, result); // else it may be of what was set meanwhile
      if (params === this.params) this.paint(result, shape, ms);
      else this.waiting = true; // a link, Reset or the lock put all controls elsewhere meanwhile
    }
    this.busy = false;
    const chosen = moved?.kind === "select"; // what a choice leads to may take long: the words about this one come first
    if (moved && !chosen) await this.ahead.draw(moved);
    await this.rest.after(moved);
    if (chosen) await this.ahead.draw(moved);
  }

  /** Whether a thumb or a mark is held: it may go on at any moment, and Python has to be free for it. */
  get held() {
    return this.root.querySelector("input:active, [data-held]") !== null;
  }

  /** Once, before the reader asks: the first drawing, for which Python reads most, and what the first control leads to. */
  async warm() {
    if (this.warmed || !this.runtime.page || this.learner || !this.root.checkVisibility()) return; // in a tab behind
    this.warmed = true;
    await this.draw(this.params);
    await this.ahead.draw(this.data.spec.controls.find(({ kind }) => kind !== "guess"));
  }

  /** What a picture shows, as text: the parameters, and the reader's own run if there is one. */
  setting(params = this.params) {
    return JSON.stringify([params, this.own ?? null]);
  }

  /** A page that became wide or narrow shows its other picture, which may be of another setting. `shape`: 0 the wide one,
   * 1 the narrow one; kept, because to look it up in the middle of a drag costs a layout. */
  fit() {
    this.shape = Math.max(0, this.figures.findIndex((figure) => figure.visible));
    this.figures[this.shape].dress(); // what was not laid out could not be measured
    if (!this.guess?.locked && this.drawn[this.shape] !== this.setting()) this.redraw();
  }

  draw(params, shape = this.shape) {
    const { seconds, stopped, spec, widths } = this.data;
    const code = spec.controls.filter(({ kind }) => kind === "code").map(({ name }) => params[name]).join("\n");
    const limit = this.learner ? { seconds, stopped, code } : {};
    const asked = { stem: this.data.stem, params, width: widths[shape], advise: false, ...(this.own && { own: this.own }) };
    return this.runtime.call("draw", asked, limit);
  }

  paint(result, shape, ms = 0) {
    if (this.guess?.locked) return; // it was asked for before the reader chose to guess again
    this.stale = result.failed === true;
    if (this.stale) return;
    this.status.problem(result.error);
    if (this.root.toggleAttribute("data-refused", Boolean(result.error))) return;
    this.guess?.stand();
    this.figures[shape].paint(result.svg, ms);
    this.tell(result);
    this.drawn[shape] = this.setting(); // after a range may have taken a value back to its end
    if (this.runtime.page) writeFragment(this.fragment());
    this.root.dispatchEvent(new CustomEvent("live-paint", { detail: result, bubbles: true }));
    this.root.getBoundingClientRect(); // laid out now, while the browser waits for its next frame, and not within it
  }

  /** Words, values and what the controls can do, of a picture that is there. */
  tell({ sentence, values, law, levers }) {
    this.values = values;
    this.sentence = sentence;
    this.say(sentence);
    this.law.replaceChildren(...law.map((words) => el("p", {}, ...rich(words))));
    this.lever(levers);
  }

  say(words) {
    this.shown.replaceChildren(...rich(words));
    this.announce.say(this.shown.textContent);
  }

  /** The controls that are not as the view opened. */
  moved() {
    return this.data.spec.controls.filter(({ kind, name }) => kind !== "guess" && this.params[name] !== this.data.params[name]);
  }

  fragment() {
    const moved = this.moved().filter(({ kind }) => kind !== "code");
    return { key: this.data.key, params: Object.fromEntries(moved.map(({ name }) => [name, this.params[name]])) };
  }

  /** Take the state that the address holds, when it names this view. A wrong one leaves the stored picture. */
  async restore() {
    const given = readFragment(this.data.key, this.data.spec.controls);
    if (!given || !Object.keys(given).length) return;
    this.root.scrollIntoView();
    const params = { ...this.data.params, ...given };
    this.status.touch();
    const { shape } = this, result = await this.draw(params, shape);
    if (this.guess?.locked) { // whoever shared a setting wants it to be seen
      this.status.problem(result.error);
      if (result.error || result.failed) return;
      this.guess.open(null);
    }
    if (!result.error && !result.failed) this.set(params);
    if (this.data.spec.controls.some(({ name, more }) => more && name in given)) this.fold.open = true;
    this.paint(result, shape), this.fit(); // a phone's page had not yet been laid out
    if (!result.error && !result.failed) await this.rest.after();
  }
}
