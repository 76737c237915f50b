// The pictures one step away, drawn before they are asked for.

/** The values one key press away from a slider's value. */
function neighbours({ stops, lo, hi, step }, value) {
  if (!stops) return [value - step, value + step].filter((near) => near >= lo && near <= hi);
  const at = stops.indexOf(value);
  return [stops[at - 1], stops[at + 1]].filter((near) => near !== undefined);
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

  /** Draw the neighbours of a slider, until the reader goes on: what is asked for comes first, and so does the frame that
   * shows it, where the machine has few cores. */
  async draw({ kind, name, ...range }) {
    if (kind !== "slider" && kind !== "play") return;
    await frame();
    const { params, shape } = this.view;
    for (const value of neighbours(range, params[name])) {
      const near = { ...params, [name]: value };
      const key = this.name(shape, near);
      if (this.view.busy) return;
      if (!this.drawn.has(key)) this.keep(key, await this.view.draw(near, shape));
    }
  }
}
