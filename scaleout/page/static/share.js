// The state of a view in the address, after the #: "#live-memory?model=gpt2&batch=4".

import { el } from "./controls.js";

/** What the address says of the view `key`: its parameters, or null when it says nothing. */
export function readFragment(key, controls) {
  const [name, query] = location.hash.slice(1).split("?");
  if (name !== `live-${key}` || query === undefined) return null;
  const given = {};
  for (const [at, text] of new URLSearchParams(query)) {
    const control = controls.find((one) => one.name === at);
    // a link may move controls; it may not bring code to run, nor somebody else's guess
    if (control?.kind !== "code" && control?.kind !== "guess") given[at] = read(control, text);
  }
  return given;
}

/** A text from the address as the control's own type. What fits nothing stays text: Python says what would. */
export function read(control, text) {
  if (control?.kind === "toggle") return { true: true, false: false }[text] ?? text;
  if (control?.kind === "select") return control.options.find(([value]) => String(value) === text)?.[0] ?? text;
  const value = ["arrange", "paste"].includes(control?.kind) ? NaN : Number(text);
  return control && text.trim() !== "" && Number.isFinite(value) ? value : text;
}

/** The fragment of a state: {key, params}. */
export function asFragment({ key, params }) {
  return `#live-${key}?${new URLSearchParams(params)}`;
}

let timer = null;

/** Keep the address in step, once the reader's hand rests: browsers limit how often it may change. A link that was
 * followed in the meantime stays: its `hashchange` may be yet to come, and reads the address. */
export function writeFragment(state) {
  clearTimeout(timer);
  const before = location.hash;
  timer = setTimeout(() => {
    if (location.hash === before) history.replaceState(history.state, "", asFragment(state));
  }, 300);
}

/** Take the state of `key` out of the address: the reader wants the question again. */
export function forget(key) {
  clearTimeout(timer);
  if (location.hash.startsWith(`#live-${key}?`)) {
    history.replaceState(history.state, "", location.pathname + location.search);
  }
}

/** A button that copies the address of the present state. */
export function shareable(state) {
  const button = el("button", { type: "button", class: "live-plain" }, "Copy link");
  button.addEventListener("click", async () => {
    const address = new URL(asFragment(state()), location.href).href;
    history.replaceState(history.state, "", address);
    try {
      await navigator.clipboard.writeText(address);
      button.textContent = "Link copied";
    } catch {
      button.textContent = "The link is in the address bar";
    }
    setTimeout(() => {
      button.textContent = "Copy link";
    }, 2500);
  });
  return button;
}
