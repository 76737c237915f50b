// In a notebook: the front end talks to the kernel by messages. Python is there already.

import { mount } from "./mount.js";

const PATIENCE = 15; // seconds without an answer before the reader is told; the kernel may be busy with a cell
const SILENT = "The kernel does not answer. It is busy with another cell, or was stopped: run this cell again.";

class Kernel {
  constructor(model) {
    Object.assign(this, { model, page: false, state: "ready", message: "", watchers: [] });
    Object.assign(this, { waiting: new Map(), count: 0 });
    this.heard = (message) => {
      if (typeof message?.result === "object" && message.result) this.settle(message.id, message.result);
    };
    model.on("msg:custom", this.heard);
  }

  watch(watcher) {
    this.watchers.push(watcher);
  }

  become(state, message) {
    Object.assign(this, { state, message });
    for (const watcher of this.watchers) watcher();
  }

  start() {}

  retry() {
    this.become("ready", "");
  }

  call(method, args) {
    this.count += 1;
    const id = this.count;
    return new Promise((resolve) => {
      const timer = setTimeout(() => {
        this.become("failed", SILENT);
        this.settle(id, { failed: true });
      }, PATIENCE * 1000);
      this.waiting.set(id, { resolve, timer });
      this.model.send({ id, method, args });
    });
  }

  settle(id, result) {
    const { resolve, timer } = this.waiting.get(id) ?? {};
    this.waiting.delete(id);
    clearTimeout(timer);
    if (!result.failed && this.state === "failed") this.become("ready", "");
    resolve?.(result);
  }

  close() {
    this.model.off("msg:custom", this.heard);
    for (const { timer } of this.waiting.values()) clearTimeout(timer);
  }
}

export default {
  render({ model, el: host }) {
    const kernel = new Kernel(model);
    host.innerHTML = model.get("html");
    mount(host.querySelector(".live-widget"), kernel);
    return () => kernel.close();
  },
};
