// The controls of a live widget, built from the view's own description of them. A control here is
// {element, set(value)}; it reports what the reader did through `changed(value)`.

let made = 0;

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

/** An id that no other element on the page has. */
export function freshId(stem) {
  made += 1;
  return `live-${stem}-${made}`;
}

/** A value as people write it, with its unit. */
export function written(value, unit = "") {
  const words = typeof value === "number"
    ? value.toLocaleString("en-US", { maximumSignificantDigits: 6 })
    : String(value);
  return unit ? `${words} ${unit}` : words;
}

function labelled(control, input, ...extra) {
  input.id = freshId(control.name);
  const label = el("label", { for: input.id }, control.label);
  const parts = [el("div", { class: "live-label" }, label, ...extra), input];
  if (control.help) {
    const help = el("p", { class: "live-help", id: `${input.id}-help` }, control.help);
    input.setAttribute("aria-describedby", help.id);
    parts.push(help);
  }
  return el("div", { class: `live-control live-${control.kind}`, "data-name": control.name }, ...parts);
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
  const show = (now) => {
    shown.textContent = written(now, control.unit);
    input.setAttribute("aria-valuetext", shown.textContent);
    input.style.setProperty("--at", `${(100 * (input.value - input.min)) / (input.max - input.min)}%`);
  };
  input.addEventListener("input", () => {
    const now = value(input.value);
    show(now);
    changed(now);
  });
  const set = (now) => {
    input.value = position(now);
    show(now);
  };
  return { element: labelled(control, input, shown), input, set };
}

function select(control, changed) {
  const options = control.options.map(([, label], index) => el("option", { value: index }, label));
  const input = el("select", {}, ...options);
  // the option's own value goes to Python, whatever its type; the element only knows its place in the list
  input.addEventListener("change", () => changed(control.options[input.value][0]));
  const set = (now) => {
    input.value = control.options.findIndex(([value]) => value === now);
  };
  return { element: labelled(control, input), input, set };
}

function toggle(control, changed) {
  const input = el("input", { type: "checkbox", role: "switch", id: freshId(control.name) });
  input.addEventListener("change", () => changed(input.checked));
  const label = el("label", { for: input.id }, input, el("span", {}, control.label));
  const element = el("div", { class: "live-control live-toggle", "data-name": control.name }, label);
  if (control.help) {
    input.setAttribute("aria-describedby", `${input.id}-help`);
    element.append(el("p", { class: "live-help", id: `${input.id}-help` }, control.help));
  }
  const set = (now) => {
    input.checked = now;
  };
  return { element, input, set };
}

function number(control, changed) {
  const { lo, hi, step, unit } = control;
  const input = el("input", { type: "number", min: lo, max: hi, step, inputmode: "decimal" });
  const range = `${written(lo)} to ${written(hi, unit)}`;
  // what cannot be read as a number goes to Python as text, which says what would be right
  input.addEventListener("input", () => {
    changed(input.value === "" || Number.isNaN(input.valueAsNumber) ? input.value : input.valueAsNumber);
  });
  const set = (now) => {
    input.value = now;
  };
  const shown = el("span", { class: "live-value" }, range);
  return { element: labelled(control, input, shown), input, set };
}

const PACE = 600; // milliseconds a step: time to see what changed

function play(control, changed) {
  const made = slider(control, changed);
  const { input } = made;
  let timer = null;
  const move = (to) => {
    input.value = to;
    input.dispatchEvent(new Event("input"));
  };
  const stop = () => {
    clearInterval(timer);
    timer = null;
    start.textContent = "Play";
  };
  const tick = () => {
    move(Number(input.value) + control.step);
    if (Number(input.value) >= control.hi) stop();
  };
  const toggle = () => {
    if (timer) return stop();
    if (Number(input.value) >= control.hi) move(control.lo);
    timer = setInterval(tick, PACE);
    start.textContent = "Pause";
  };
  const by = (sign) => () => {
    stop();
    move(Number(input.value) + sign * control.step);
  };
  const button = (label, onclick, words) => el("button", { type: "button", "aria-label": label, onclick }, words);
  const start = el("button", { type: "button", onclick: toggle }, "Play");
  const back = button(`Step back: ${control.label}`, by(-1), "‹");
  const on = button(`Step on: ${control.label}`, by(1), "›");
  // a reader who asked for less motion steps by hand
  const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
  made.element.append(el("div", { class: "live-buttons" }, back, ...(still ? [] : [start]), on));
  input.addEventListener("pointerdown", stop);
  return { ...made, stop };
}

const KINDS = { slider, select, toggle, number, play };

/** Build one control of the kinds above, at a value. */
export function build(control, value, changed) {
  const made = KINDS[control.kind](control, changed);
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
