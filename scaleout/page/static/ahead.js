// The pictures one step away, drawn before they are asked for.

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

const KEPT = 12; // pictures: those one step away, and the last that were seen

/** A key press then paints at once: else the worker's answer comes after the browser's next frame, and is seen in the one
 * after that. */
export class Ahead {
  constructor(view) {
    Object.assign(this, { view, drawn: new Map() });
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
   * frame that shows it, where the machine has few cores. */
  async draw(control) {
    const { params, shape, runtime, learner, held } = this.view;
    if (!runtime.page || learner || held) return;
    await frame();
    for (const value of neighbours(control, params[control.name])) {
      const near = { ...params, [control.name]: value };
      const key = this.name(shape, near);
      if (this.view.busy) return;
      if (!this.drawn.has(key)) this.keep(key, await this.view.draw(near, shape));
    }
  }
}
