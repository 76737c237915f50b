// Python in a worker: started at the first touch, asked one thing at a time, replaced when it does not come back.

const START_SECONDS = 120; // a slow line needs a minute for the 6 MB
const DRAW_SECONDS = 20; // drawings take milliseconds; this only catches one that never ends

const STARTING = "Starting Python in your browser (about 6 MB, once). The picture answers in a moment…";
const FAILED = "Python did not start, so the picture stays as it was stored with the book. Check the connection "
  + "and try again; or download this page as a notebook and run it on your machine.";
const BROKEN = "Python itself broke and was started again. Very deep recursion can do that.";

export class Python {
  constructor(address) {
    Object.assign(this, { address, page: true, state: "idle", message: "", queue: [], watchers: [], current: null });
  }

  watch(watcher) {
    this.watchers.push(watcher);
  }

  become(state, message = "") {
    Object.assign(this, { state, message });
    for (const watcher of this.watchers) watcher();
  }

  start() {
    if (this.state === "idle") this.boot();
  }

  retry() {
    this.state = "idle";
    this.start();
  }

  boot() {
    this.become("starting", STARTING);
    this.worker = new Worker(this.address, { type: "module" });
    this.worker.onmessage = ({ data }) => this.hear(data);
    this.worker.onerror = (event) => this.fail(event.message);
    this.timer = setTimeout(() => this.fail("it took too long"), START_SECONDS * 1000);
  }

  hear(data) {
    if (data.failed) this.fail(data.failed);
    else if (data.ready) {
      clearTimeout(this.timer);
      this.become("ready");
      this.next();
    } else if (data.broken) {
      console.info(`Python broke: ${data.broken}`);
      this.replace(BROKEN);
    } else this.settle(data.result);
  }

  /** Python cannot be had: say so, and let every caller keep what it shows. */
  fail(reason) {
    clearTimeout(this.timer);
    this.worker.terminate();
    console.info(`Python did not start: ${reason}`);
    this.become("failed", FAILED);
    const left = [this.current, ...this.queue].filter(Boolean);
    Object.assign(this, { current: null, queue: [] });
    for (const { resolve } of left) resolve({ failed: true });
  }

  call(method, args, { seconds = DRAW_SECONDS, stopped = "Python did not answer and was started again." } = {}) {
    if (this.state === "failed") return Promise.resolve({ failed: true });
    return new Promise((resolve) => {
      this.queue.push({ method, args, seconds, stopped, resolve });
      this.start();
      this.next();
    });
  }

  /** One call at a time, so that a time limit counts the call's own seconds and not its wait. */
  next() {
    if (this.state !== "ready" || this.current || !this.queue.length) return;
    this.current = this.queue.shift();
    const { method, args, seconds, stopped } = this.current;
    this.timer = setTimeout(() => this.replace(stopped), seconds * 1000);
    this.worker.postMessage({ method, args: JSON.stringify(args) });
  }

  settle(result) {
    clearTimeout(this.timer);
    const { resolve } = this.current;
    this.current = null;
    resolve(JSON.parse(result));
    this.next();
  }

  /** A call that does not end, or breaks Python, takes its worker with it; the calls behind it wait. */
  replace(error) {
    clearTimeout(this.timer);
    this.worker.terminate();
    const { resolve } = this.current;
    this.current = null;
    this.boot();
    resolve({ error });
  }
}
