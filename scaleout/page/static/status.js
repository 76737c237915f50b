// The line under a widget that says how Python is doing, and what went wrong.

import { el } from "./controls.js";

/** Watch a runtime for one widget: {element, touch, problem}. Nothing shows before the first `touch`. */
export function statusLine(runtime) {
  const words = el("span");
  const retry = el("button", { type: "button", onclick: () => runtime.retry() }, "Try again");
  const line = el("p", { class: "live-python", role: "status", hidden: true }, words);
  const problem = el("p", { class: "live-problem", role: "alert", hidden: true });
  let touched = false;
  const show = () => {
    const { state, message } = runtime;
    line.hidden = !touched || state === "ready" || state === "idle";
    line.dataset.state = state;
    words.textContent = line.hidden ? "" : message;
    if (state === "failed") line.append(retry);
    else retry.remove();
  };
  runtime.watch(show);
  const touch = () => {
    touched = true;
    runtime.start();
    show();
  };
  const say = (error) => {
    problem.hidden = !error;
    problem.textContent = error || "";
  };
  return { element: el("div", { class: "live-status" }, problem, line), touch, problem: say };
}

/** A small drawer in the reader's own browser. Where storage is refused, nothing is remembered. */
export const drawer = {
  get(name) {
    try {
      return JSON.parse(localStorage.getItem(`scaleout:${name}`));
    } catch {
      return null;
    }
  },
  put(name, value) {
    try {
      if (value === null) localStorage.removeItem(`scaleout:${name}`);
      else localStorage.setItem(`scaleout:${name}`, JSON.stringify(value));
    } catch {
      // a browser that keeps nothing still shows everything
    }
  },
};
