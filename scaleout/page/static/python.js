// Python in a worker: started when a widget comes near or is touched, asked one thing at a time, replaced when it does not come back.
// The book's own never runs what a reader wrote. That has a worker to itself, which gives results and no verdict.

const START_SECONDS = 120; // a slow line needs a minute for the 6 MB
const MOST = 6; // times its seconds that a call may have on a busy machine
const DRAW_SECONDS = 20; // drawings take milliseconds; this only catches one that never ends

const STARTING = "Starting Python in your browser (about 6 MB, once). This takes a moment…";
const AGAIN = "Restarting Python…";
const FAILED = "Python did not start. Each picture stays as it is stored in the book, and so do the outputs of cells; answers "
  + "cannot be checked. Check the connection and try again, or download this page as a notebook and run it on your "
  + "machine.";
const BROKEN = "Python crashed and was restarted. Very deep recursion can cause this.";

let best = Infinity; // milliseconds of `slowness`'s work on this machine when nothing else runs

/** How many times as long as at its best this machine takes to compute: it may be shared with much else. */
function slowness() {
  const start = performance.now();
  let sum = 1;
  for (let i = 0; i < 1e7; i++) sum = (sum * 31 + i) | 0;
  const took = performance.now() - start + (sum === 0.5); // used, or it would not be computed
  best = Math.min(best, took);
  return took / best;
}

/** The answer to every call once Python cannot be had. */
const AWAY = Object.freeze({ failed: true });

/**
 * The address of a worker that the page's Content-Security-Policy rules: a worker has the policy of the file that it
 * comes from, which a static host sends without any, and one made in the page has the page's.
 */
function shield(address) {
  shield.made ??= URL.createObjectURL(new Blob([`import ${JSON.stringify(address.href)};`], { type: "text/javascript" }));
  return shield.made;
}

export class Python {
  /** What the first worker left for those after it, which are ready about five times sooner. */
  static image = null;

  constructor(address) {
    Object.assign(this, { address, page: true, state: "idle", message: "", queue: [], watchers: [], current: null });
    Object.assign(this, { up: false, count: 0 });
  }

  watch(watcher) {
    this.watchers.push(watcher);
  }

  become(state, message = "") {
    Object.assign(this, { state, message });
    for (const watcher of this.watchers) watcher();
  }

  start() {
    if (this.state !== "idle") return;
    this.become("starting", STARTING);
    this.boot();
  }

  retry() {
    this.state = "idle";
    this.start();
  }

  /** A new worker in place of the one there may be. */
  boot() {
    clearTimeout(this.timer);
    this.worker?.terminate();
    this.port?.close();
    this.up = false;
    // A port of its own: the worker's global postMessage is within reach of the code that runs there.
    const { port1, port2 } = new MessageChannel();
    const worker = new Worker(shield(this.address), { type: "module" });
    Object.assign(this, { worker, port: port1 });
    // what an ended worker said last may still be under way
    port1.onmessage = ({ data }) => this.worker === worker && this.hear(data);
    worker.onerror = (event) => {
      event.preventDefault();
      if (this.worker === worker && !this.up) this.fail(event.message); // later: what a reader's code left to happen
    };
    worker.postMessage({ port: port2, image: Python.image }, [port2]);
    this.timer = setTimeout(() => this.fail("it took too long"), START_SECONDS * 1000);
  }

  hear({ id, failed, ready, image, broken, result }) {
    if (!this.up && failed) this.fail(failed);
    else if (!this.up && ready) {
      if (image) Python.image ??= image;
      clearTimeout(this.timer);
      this.up = true;
      if (best === Infinity) [1, 2].forEach(slowness); // of two, for the first is compiled meanwhile
      this.become("ready");
      this.next();
    } else if (id !== undefined && id === this.current?.id) {
      if (broken) console.info(`Python broke: ${broken}`);
      const answer = broken ? null : object(result);
      if (answer) this.settle(answer);
      else this.replace(BROKEN);
    }
  }

  /** Python cannot be had: say so, and let every caller keep what it shows. */
  fail(reason) {
    if (Python.image) { // the image may be at fault: from now on every worker starts by itself
      Python.image = false;
      this.boot();
      return;
    }
    clearTimeout(this.timer);
    this.worker.terminate();
    this.up = false;
    console.info(`Python did not start: ${reason}`);
    this.become("failed", FAILED);
    const left = [this.current, ...this.queue].filter(Boolean);
    Object.assign(this, { current: null, queue: [] });
    for (const { resolve } of left) resolve(AWAY);
  }

  /** `code`: what a reader wrote, where the call runs that. */
  call(method, args, { seconds = DRAW_SECONDS, stopped = "Python did not answer and was restarted.", code } = {}) {
    if (this.state === "failed") return Promise.resolve(AWAY);
    return new Promise((resolve) => {
      this.count += 1;
      this.queue.push({ id: this.count, method, args, seconds, stopped, code, resolve });
      this.start();
      this.next();
    });
  }

  /** One call at a time, so that a time limit counts the call's own seconds and not its wait. */
  next() {
    if (!this.up || this.current || !this.queue.length) return;
    this.current = this.queue.shift();
    const { id, method, args, seconds, stopped } = this.current;
    this.timer = setTimeout(() => this.late(seconds, stopped), seconds * 1000);
    this.port.postMessage({ id, method, args: JSON.stringify(args) });
  }

  settle(answer) {
    clearTimeout(this.timer);
    const { resolve } = this.current;
    this.current = null;
    resolve(answer);
    this.next();
  }

  /** A call has not come back in its seconds: it has as many more as a busy machine took from it. */
  late(seconds, stopped, given = seconds) {
    const more = Math.min(seconds * slowness(), MOST * seconds) - given;
    if (more < 0.1 * seconds) this.replace(stopped);
    else this.timer = setTimeout(() => this.late(seconds, stopped, given + more), more * 1000);
  }

  /** A call that does not end, or breaks Python, takes its worker with it; the calls behind it wait. */
  replace(error) {
    const { resolve } = this.current;
    this.current = null;
    this.become("starting", AGAIN);
    this.boot();
    resolve({ error });
  }
}

/**
 * Python for what a reader wrote: a worker serves one text of code and is then thrown away, with whatever that code
 * changed in it. After a check the next one starts at once, so that it is there when the reader has thought again.
 */
export class Learner extends Python {
  constructor(address, book) {
    super(address);
    Object.assign(this, { book, served: undefined });
    // the book's Python judges: it starts when this one is there, and not both at once
    this.watch(() => this.state === "ready" && book.start());
    book.watch(() => book.state === "failed" && this.state === "ready" && this.become("failed", book.message));
  }

  retry() {
    if (this.book.state === "failed") this.book.retry();
    super.retry();
  }

  boot() {
    this.served = undefined;
    super.boot();
  }

  hear(message) {
    if (!this.up && message.image) { // what a Python that leaves an image has as `js` is not quite JavaScript
      Python.image ??= message.image;
      this.boot();
    } else super.hear(message);
  }

  next() {
    const asked = this.queue[0]?.code ?? "";
    const spent = this.served !== undefined && this.served !== asked;
    if (this.up && !this.current && this.queue.length) {
      if (spent) this.boot();
      else this.served = asked;
    }
    super.next();
  }

  async call(method, args, limit) {
    if (method === "execute") return this.once(method, args, limit);
    if (method !== "check") return super.call(method, args, limit);
    const outcome = await this.once("run", args, { ...limit, code: args.answer });
    if (outcome === AWAY) return outcome;
    if (outcome.error) return { error: String(outcome.error) };
    return this.book.call("judge", { stem: args.stem, key: args.key, outcome });
  }

  /** A call whose worker is thrown away after it, even for the same code. */
  async once(method, args, limit) {
    const outcome = await super.call(method, args, limit);
    if (outcome !== AWAY && this.served !== undefined && !this.current) this.boot();
    return outcome;
  }
}

/** JSON text as an object; null where it is none. */
function object(text) {
  try {
    const found = JSON.parse(text);
    return typeof found === "object" ? found : null;
  } catch {
    return null;
  }
}
