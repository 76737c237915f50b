// Pictures drawn before they are asked for: those one step of a control away, for the next key; and, where a mouse or a
// pen rests over a control, the one that a press there gives, and those one step from it. A finger rests nowhere before
// it presses.

/** The values one key press away from a control's value; none of one that is no slider and no choice. */
function neighbours({ kind, stops, options, lo, hi, step }, value) {
  const row = options?.map(([one]) => one) ?? stops;
  if (row) return [row.indexOf(value) - 1, row.indexOf(value) + 1].flatMap((at) => row[at] ?? []);
  return ["slider", "play"].includes(kind) ? [value - step, value + step].filter((near) => near >= lo && near <= hi) : [];
}

/** The end of the browser's next frame. */
const frame = () => new Promise((done) => {
  requestAnimationFrame(() => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = done;
    port2.postMessage(null);
  });
});

const THUMB = 1.2; // rem: the thumb of a slider, as controls.css has it

/** The value that a press sets where a pointer is, or undefined. target: the part of the control that is under it. */
function pressed(made, { options }, target, clientX) {
  const input = target.matches("input") ? target : target.closest("label")?.querySelector("input");
  if (!input?.matches(":enabled")) return undefined;
  if (input.type === "checkbox") return !input.checked;
  if (input.type === "radio") return options[[...made.input.querySelectorAll("input")].indexOf(input)][0];
  if (input.type !== "range") return undefined;
  const { left, width } = input.getBoundingClientRect();
  const thumb = THUMB * parseFloat(getComputedStyle(document.documentElement).fontSize);
  const share = (clientX - left - thumb / 2) / (width - thumb); // of the way of the thumb's middle
  const place = Number(input.min) + share * (input.max - input.min);
  return made.value(Object.assign(input.cloneNode(), { value: place }).value); // rounded and cut by the browser
}

const KEPT = 12; // pictures: those one step away, and the last that were seen

/** A press of a key or a mouse then paints at once: else the worker's answer comes after the browser's next frame, and is
 * seen in the one after that. */
export class Ahead {
  constructor(view) {
    Object.assign(this, { view, drawn: new Map() });
    if (!view.runtime.page) return;
    const side = view.root.querySelector(".live-side");
    for (const kind of ["pointermove", "pointerleave"]) side.addEventListener(kind, (event) => this.point(event));
  }

  name(shape, params) {
    return `${shape} ${this.view.setting(params)}`;
  }

  /** Remember a picture, and forget the one that nobody has come back to for longest. */
  keep(name, result) {
    if (result.failed || result.error) return;
    this.drawn.delete(name);
    this.drawn.set(name, result);
    if (this.drawn.size > KEPT) this.drawn.delete(this.drawn.keys().next().value);
  }

  clear() {
    this.drawn.clear();
  }

  /** Draw what is one step of a control away, until the reader goes on: what is asked for comes first, and so does the
   * frame that shows it, where the machine has few cores. over: the pointer's place, where the values are of one. */
  async draw(control, values = neighbours(control, this.view.params[control.name]), over = null) {
    const { view } = this;
    const { params, shape, runtime, learner } = view;
    if (!runtime.page || learner || view.held) return;
    await frame();
    for (const value of values) {
      const near = { ...params, [control.name]: value };
      const key = this.name(shape, near);
      if (view.busy || view.held || (over && this.over !== over)) return;
      if (!this.drawn.has(key)) this.drawn.set(key, view.draw(near, shape)); // a press meanwhile waits for this one
      this.asks = true;
      const result = await this.drawn.get(key);
      this.asks = false;
      this.drawn.delete(key);
      this.keep(key, result);
    }
  }

  /** Draw what a press would give, once a pointer has moved no further for two frames and what was asked for is there. */
  async point({ target, clientX, pointerType, buttons }) {
    const { runtime, learner, built, data } = this.view;
    const over = this.over = {}; // whatever was drawn for another place is not wanted any more
    const control = data.spec.controls.find(({ name }) => name === target.closest("[data-name]")?.dataset.name);
    if (!control || learner || buttons || pointerType === "touch") return;
    if (data.spec.searches?.includes(control.name)) return; // it takes long, and a press would wait for it
    do await frame();
    while ((this.asks || this.view.busy) && this.over === over); // in Python's queue is one such drawing at most
    if (this.over !== over || runtime.state !== "ready") return; // to point at something starts nothing
    const value = pressed(built.get(control.name), control, target, clientX);
    if (value !== undefined) await this.draw(control, [value, ...neighbours(control, value)], over);
  }
}
