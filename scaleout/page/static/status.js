// The line under a widget that says how Python is doing, and what went wrong.

import { el } from "./controls.js";

/** Watch a runtime for one widget: {element, touch, problem}. Nothing shows before the first `touch`. A box in `root` that
 * was written in has what is wrong with it beneath it: the line's own place may be a screen away. */
export function statusLine(runtime, root = null) {
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
  const element = el("div", { class: "live-status" }, problem, line);
  let box = null;
  const wrote = ({ target }) => { box = target.closest(".live-number, .live-paste"); };
  for (const kind of ["input", "drop"]) root?.addEventListener(kind, wrote, true);
  const say = (error) => {
    const there = error && box;
    if (there && element.parentElement !== box) box.append(element);
    else if (!there && element.closest(".live-control")) root.querySelector(".live-sentence").after(element);
    problem.hidden = !error;
    problem.textContent = error || "";
  };
  return { element, touch, problem: say };
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
