// A view with so few settings that the page holds all of them: it answers at once, and Python need not start.

/** In a runtime's place. What is not stored, such as a setting that cannot be, the runtime itself is asked. */
export class Stored {
  constructor({ every, widths }, runtime) {
    Object.assign(this, { every, widths, runtime, page: runtime.page, state: "ready", message: "" });
  }

  watch() {}

  start() {}

  async call(method, args, limit) {
    const same = ([setting]) => Object.entries(setting).every(([name, value]) => args.params[name] === value);
    const found = method === "draw" && this.every.find(same);
    return found ? found[1][this.widths.indexOf(args.width)] : this.runtime.call(method, args, limit);
  }
}
