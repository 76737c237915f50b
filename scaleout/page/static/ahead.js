// The pictures one step away, drawn before they are asked for.

/** The values one key press away from a slider's value. */
function neighbours({ stops, lo, hi, step }, value) {
  if (!stops) return [value - step, value + step].filter((near) => near >= lo && near <= hi);
  const at = stops.indexOf(value);
  return [stops[at - 1], stops[at + 1]].filter((near) => near !== undefined);
}

/** A key press then paints at once: else the worker's answer comes after the browser's next frame, and is seen in the one
 * after that. */
export class Ahead {
  constructor(view) {
    Object.assign(this, { view, drawn: new Map() });
  }

  name(shape, params) {
    return `${shape} ${this.view.setting(params)}`;
  }

  get(shape, params) {
    return this.drawn.get(this.name(shape, params));
  }

  clear() {
    this.drawn.clear();
  }

  /** Draw the neighbours of a slider, until the reader goes on: what is asked for comes first. */
  async draw({ kind, name, ...range }) {
    if (kind !== "slider" && kind !== "play") return;
    const { params, shape } = this.view;
    const near = neighbours(range, params[name]).map((value) => ({ ...params, [name]: value }));
    const known = near.map((one) => this.get(shape, one));
    this.clear();
    for (const [i, one] of near.entries()) {
      if (this.view.busy) return;
      const result = known[i] ?? await this.view.draw(one, shape);
      if (this.view.busy) return;
      if (!result.failed && !result.error) this.drawn.set(this.name(shape, one), result);
    }
  }
}
