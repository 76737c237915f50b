// The controls of a live widget, built from the view's own description of them. A control here is
// {element, set(value), now(lever)}; it reports what the reader did through `changed(value)`.

import { chooser, kept, textOf } from "./file.js";

/** An element with properties, attributes and children: `el("p", {class: "x", onclick: f}, "words")`. */
export function el(tag, props = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(props)) {
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (value === true) node.setAttribute(name, "");
    else if (value !== false && value !== undefined) node.setAttribute(name, value);
  }
  node.append(...children);
  return node;
}

/** Words with **these** in bold, as nodes. */
export function rich(words) {
  return words.split("**").map((part, i) => (i % 2 ? el("strong", {}, part) : part));
}

/** An id that no other element on the page has: in a notebook each widget has modules of its own. */
export function freshId(stem) {
  globalThis.liveIds = (globalThis.liveIds ?? 0) + 1;
  return `live-${stem}-${globalThis.liveIds}`;
}

const LARGER = { kB: "MB", MB: "GB", GB: "TB", "µs": "ms", ms: "s" };
const SMALLER = Object.fromEntries(Object.entries(LARGER).map(([small, large]) => [large, small]));

/** A value as people write it, with its unit: 1 GB rather than 1,000 MB. */
export function written(value, unit = "") {
  if (typeof value !== "number") return unit ? `${value} ${unit}` : String(value);
  if (value >= 1000 && LARGER[unit]) return written(value / 1000, LARGER[unit]);
  if (value > 0 && value < 1 && SMALLER[unit]) return written(value * 1000, SMALLER[unit]);
  const words = value.toLocaleString("en-US", { maximumSignificantDigits: 6 });
  return unit === "%" ? `${words}%` : unit ? `${words} ${unit}` : words;
}

/** A control with its label: what it is called, how it is worked, and words beneath that explain it. */
function labelled(control, input, ...extra) {
  input.id ||= freshId(control.name);
  const label = input.getAttribute("role") === "radiogroup"
    ? el("span", { id: `${input.id}-label`, class: "live-name" }, control.label)
    : el("label", { for: input.id }, control.label);
  return framed(control, el("div", { class: "live-label" }, label, ...extra), input);
}

const SHORT = 16; // letters of an option that half a phone can show
const SEGMENTS = 5; // at most so many options, of so few letters together, stand side by side
const LETTERS = 36;

/** Whether the options stand side by side, and have more letters than `least` together. */
function segmented({ options }, least) {
  const letters = options.map(([, label]) => label).join("").length;
  return options.length <= SEGMENTS && letters <= LETTERS && letters > least;
}

function framed(control, ...parts) {
  const help = el("p", { class: "live-help", hidden: !control.help }, control.help ?? "");
  const labels = control.options?.map(([, label]) => label) ?? [];
  const long = labels.some((label) => label.length > SHORT) || (labels.length > 2 && segmented(control, SHORT));
  const element = el("div", {
    class: `live-control live-${control.kind}`, "data-name": control.name, "data-long": Boolean(long),
  }, ...parts, help);
  const inputs = [...element.querySelectorAll("input, select, textarea, button")];
  const described = element.querySelector("[role=radiogroup]") ?? inputs[0];
  help.id = `${described.id}-help`;
  if (control.help) described.setAttribute("aria-describedby", help.id);
  let said;
  /** What the control does in the present setting: {off: why it changes nothing}, or {note: what it does instead}. */
  const now = ({ off, note }) => {
    if ((off ?? note) === said) return;
    said = off ?? note;
    for (const input of inputs) input.disabled = Boolean(off);
    element.toggleAttribute("data-off", Boolean(off));
    if (described.matches("[role=radiogroup]")) described.setAttribute("aria-disabled", Boolean(off));
    help.textContent = off ?? note ?? control.help ?? "";
    help.hidden = !help.textContent;
    if (help.hidden) described.removeAttribute("aria-describedby");
    else described.setAttribute("aria-describedby", help.id);
  };
  return { element, now };
}

/** The positions of a range input: the stops of a logarithmic one, the plain numbers of a linear one. */
function scale(control) {
  const stops = control.stops;
  if (!stops) {
    const range = { min: control.lo, max: control.hi, step: control.step };
    return { range, value: Number, position: (value) => value };
  }
  const nearest = (value) => stops.reduce((best, stop, index) => (
    Math.abs(Math.log(stop / value)) < Math.abs(Math.log(stops[best] / value)) ? index : best), 0);
  const range = { min: 0, max: stops.length - 1, step: 1 };
  return { range, value: (position) => stops[Number(position)], position: nearest };
}

function slider(control, changed) {
  const { range, value, position } = scale(control);
  const input = el("input", { type: "range", ...range });
  const shown = el("span", { class: "live-value", "aria-hidden": "true" });
  const show = (at, takes) => {
    const last = control.kind === "play" ? ` of ${written(value(input.max), control.unit)}` : "";
    const here = takes === undefined ? "" : `, here ${written(takes, control.unit)}`;
    shown.textContent = last ? `${written(at)}${last}` : `${written(at, control.unit)}${here}`;
    input.setAttribute("aria-valuetext", shown.textContent);
    input.style.setProperty("--at", `${(100 * (input.value - input.min)) / (input.max - input.min)}%`);
  };
  let took; // what the picture has instead, where it cannot have the value
  let wanted = control.lo; // the value as it was set: the browser cuts it at an end that may yet move
  input.addEventListener("input", () => {
    wanted = value(input.value);
    took = undefined;
    show(wanted);
    changed(wanted);
  });
  const set = (at) => {
    wanted = at;
    input.value = position(at);
    took = undefined;
    show(at);
  };
  const made = labelled(control, input, shown);
  const now = (lever) => {
    made.now(lever);
    const last = lever.hi ?? control.hi;
    if (Number(input.max) === position(last) && lever.takes === took) return;
    input.max = position(last);
    wanted = Math.min(wanted, last); // as the picture was drawn
    input.value = position(wanted);
    took = lever.takes;
    show(value(input.value), took);
  };
  return { ...made, now, input, set, value };
}

function select(control, changed) {
  return (segmented(control, 0) ? segments : list)(control, changed);
}

function list(control, changed) {
  const options = control.options.map(([, label], index) => el("option", { value: index }, label));
  const input = el("select", {}, ...options);
  // the option's own value goes to Python, whatever its type; the element only knows its place in the list
  input.addEventListener("change", () => changed(control.options[input.value][0]));
  const set = (at) => {
    input.value = control.options.findIndex(([value]) => value === at);
  };
  return { ...labelled(control, input), input, set };
}

function segments(control, changed) {
  const id = freshId(control.name);
  const inputs = control.options.map(([value]) => (
    el("input", { type: "radio", name: id, onchange: () => changed(value) })));
  const parts = control.options.map(([, label], i) => el("label", {}, inputs[i], el("span", {}, label)));
  const box = el("div", { role: "radiogroup", id, "aria-labelledby": `${id}-label`, class: "live-segments" }, ...parts);
  const set = (at) => {
    control.options.forEach(([value], i) => {
      inputs[i].checked = value === at;
    });
  };
  return { ...labelled(control, box), input: box, set };
}

function toggle(control, changed) {
  const input = el("input", { type: "checkbox", role: "switch", id: freshId(control.name) });
  input.addEventListener("change", () => changed(input.checked));
  const label = el("label", { for: input.id }, input, el("span", {}, control.label));
  const set = (at) => {
    input.checked = at;
  };
  return { ...framed(control, label), input, set };
}

function number(control, changed) {
  const { lo, hi, step, unit } = control;
  const input = el("input", { type: "number", min: lo, max: hi, step, inputmode: "decimal" });
  const range = `${written(lo)} to ${written(hi, unit)}`;
  // what cannot be read as a number goes to Python as text, which says what would be right
  input.addEventListener("input", () => {
    changed(input.value === "" || Number.isNaN(input.valueAsNumber) ? input.value : input.valueAsNumber);
  });
  const set = (at) => Object.assign(input, { value: at });
  const shown = el("span", { class: "live-value" }, range);
  return { ...labelled(control, input, shown), input, set };
}

const PACE = 900; // milliseconds per step: time to see what moves, and where it comes to rest

function play(control, changed) {
  const made = slider(control, changed), { input } = made;
  let timer = null;
  const move = (to) => Object.assign(input, { value: to }).dispatchEvent(new Event("input"));
  const show = (plays) => {
    start.textContent = plays ? "Pause" : "Play";
    start.toggleAttribute("data-playing", Boolean(plays));
  };
  const stop = () => {
    if (!timer) return;
    timer = clearInterval(timer);
    show(false);
    start.dispatchEvent(new Event("live-rest", { bubbles: true }));
  };
  const atEnd = () => Number(input.value) >= Number(input.max);
  const tick = () => {
    move(Number(input.value) + Number(input.step));
    if (atEnd()) stop();
  };
  const toggle = () => {
    if (timer) return stop();
    if (atEnd()) move(input.min);
    show(timer = setInterval(tick, PACE));
  };
  const by = (sign) => () => {
    stop();
    move(Number(input.value) + sign * Number(input.step));
  };
  const button = (label, onclick, words) => el("button", { type: "button", "aria-label": label, onclick }, words);
  const start = el("button", { type: "button", class: "live-main", onclick: toggle }, "Play");
  const back = button(`Step back: ${control.label}`, by(-1), "‹");
  const on = button(`Step on: ${control.label}`, by(1), "›");
  const less = matchMedia("(prefers-reduced-motion: reduce)").matches; // who asked for less motion steps by hand
  input.before(el("div", { class: "live-buttons" }, ...(less ? [] : [start]), back, on));
  input.addEventListener("pointerdown", stop);
  // keys take over as a pointer does: else it plays on beneath the arrows
  input.addEventListener("keydown", ({ key }) => key === "Tab" || stop());
  return { ...made, stop };
}

const MOVED = "Drag one in the picture, or focus one: ← → move it, ↑ ↓ choose another.";

/** An order that is changed in the picture (hands.js); beside it there is only the way back. */
function order(control, changed) {
  const onclick = () => changed(control.default);
  const names = { id: freshId(control.name), "aria-label": `Put back: ${control.label}` };
  const back = el("button", { type: "button", class: "live-plain", ...names, onclick }, "Put back");
  const name = el("span", { class: "live-name" }, control.label);
  return { ...framed({ help: MOVED, ...control }, el("div", { class: "live-label" }, name, back)), set() {} };
}

const CONFIG = 1e6; // bytes of a config.json at most

/** A box that takes a JSON file, pasted or dropped, and keeps the keys that the view reads. */
function paste(control, changed, wrong) {
  const input = el("textarea", { rows: 1, spellcheck: "false", placeholder: "{ … }" });
  const keys = control.options.map(([key]) => key);
  const take = () => changed(kept(input.value, keys));
  const set = (at) => Object.assign(input, { value: at });
  const read = (file) => file && textOf(file, CONFIG, "a config.json").then(set).then(take).catch(({ message }) => wrong(message));
  input.addEventListener("input", take);
  input.addEventListener("drop", (event) => {
    if (event.dataTransfer.files.length) event.preventDefault();
    read(event.dataTransfer.files[0]);
  });
  const chosen = chooser(read), onclick = () => chosen.click();
  const choose = el("button", { type: "button", class: "live-plain", onclick }, "Choose a file");
  return { ...labelled({ ...control, options: undefined }, input, choose, chosen), input, set };
}

const KINDS = { slider, select, toggle, number, play, paste, arrange: order };

/** Build one control of the kinds above, at a value. `wrong(words)`: hears of a file that cannot be taken. */
export function build(control, value, changed, wrong) {
  const made = KINDS[control.kind](control, changed, wrong);
  made.set(value);
  return made;
}

/** Keys pressed in a widget belong to it: a notebook would take arrows and letters for its own commands. */
export function keepKeys(root) {
  root.addEventListener("keydown", (event) => event.stopPropagation());
}

/** Text for the eyes now, and for screen readers once it has rested: a drag should not speak every step. */
export function announcer(rest = 700) {
  const region = el("div", { class: "live-announce", role: "status" });
  let timer = null;
  const say = (words) => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      region.textContent = words;
    }, rest);
  };
  return { region, say };
}

/** Play first, then what changes most; the rest is folded. Two fieldsets, so that a lock can stop them. */
export function arrange(controls, make) {
  const order = [...controls].sort((a, b) => (b.kind === "play") - (a.kind === "play"));
  const first = order.filter(({ more }) => !more).map(make);
  const rest = order.filter(({ more }) => more);
  const names = `More: ${rest.map(({ label }) => label).join(", ")}`;
  const box = el("fieldset", { class: "live-controls" }, ...rest.map(make));
  const fold = el("details", { class: "live-more", hidden: !rest.length }, el("summary", {}, names), box);
  return [el("fieldset", { class: "live-controls live-first" }, ...first), fold];
}
