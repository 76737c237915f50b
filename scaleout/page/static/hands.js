// The picture as a control: marks that are buttons, and marks that a hand puts into another order. Python writes what
// each does (`svg.press`, `svg.movable`, `svg.nudge`); here they come alive, and keep the focus while pictures change under it.

import { Field } from "./field.js";
import { read } from "./share.js";

const HANDS = "[data-press][role], [data-move][role], [data-nudge][role]"; // those that are alive
const SETTLES = 250; // milliseconds from where a mark was let go to where Python put it

/** What a mark is in an order: {name, row, item, items: its row as the control has it}. */
function place(mark, params) {
  const [name, row, item] = mark.dataset.move.split(":");
  return { name, row: Number(row), item, items: params[name].split("_")[row].split(".") };
}

function middle(mark) {
  const { left, right } = mark.lastElementChild.getBoundingClientRect();
  return (left + right) / 2;
}

/** Put a picture in the place of the one in `box`: what is the same in both stays, for most of what a picture costs is to
 * lay its words out. */
function renew(box, picture) {
  const old = box.firstElementChild;
  if (box.childNodes.length !== 1 || old?.tagName !== "svg") return box.replaceChildren(picture);
  for (const { name, value } of picture.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  exchange(old, picture);
}

/** Give a node the children of another: those between the first and the last that differ are changed one for one where
 * they are as many. */
function exchange(old, fresh) {
  const [before, after] = [[...old.childNodes], [...fresh.childNodes]];
  const most = Math.min(before.length, after.length);
  let first = 0, last = 0;
  while (first < most && before[first].isEqualNode(after[first])) first += 1;
  while (last < most - first && before.at(-1 - last).isEqualNode(after.at(-1 - last))) last += 1;
  const [gone, come] = [before, after].map((some) => some.slice(first, some.length - last));
  if (gone.length === come.length) gone.forEach((node, i) => replace(node, come[i]));
  else {
    for (const node of gone) node.remove();
    const behind = before[before.length - last] ?? null;
    for (const node of come) old.insertBefore(node, behind);
  }
}

function replace(node, fresh) {
  if (node.isEqualNode(fresh)) return;
  const group = node.tagName === "g" && node.cloneNode(false).isEqualNode(fresh.cloneNode(false));
  if (group) exchange(node, fresh);
  else node.replaceWith(fresh);
}

export class Hands {
  constructor(figure, view) {
    Object.assign(this, { figure, box: figure.box, view, drag: null, entries: new Map(), field: new Field(figure.box, view) });
    const heard = {
      pointerdown: "down", pointermove: "go", pointerup: "up", lostpointercapture: "drop", click: "click",
      keydown: "key", focusin: "enter",
    };
    for (const [kind, method] of Object.entries(heard)) this.box.addEventListener(kind, (event) => this[method](event));
  }

  find(mark) {
    return this.box.querySelector(`[data-mark="${CSS.escape(mark)}"]`);
  }

  /** The marks of the row that a mark is in. */
  row(mark) {
    const row = mark.dataset.move.slice(0, mark.dataset.move.lastIndexOf(":") + 1);
    return [...this.box.querySelectorAll(`[data-move^="${CSS.escape(row)}"]`)];
  }

  /** Show another picture: what had the focus, or is in a hand, still is. */
  put(svg) {
    const { activeElement } = this.box.getRootNode();
    const focused = this.box.contains(activeElement) ? activeElement.dataset.mark : undefined;
    this.svg = svg;
    const fresh = document.createElement("div");
    fresh.innerHTML = svg;
    this.arm(fresh); // before the two are compared
    renew(this.box, fresh.firstElementChild);
    if (this.drag) this.follow();
    if (focused) this.find(focused)?.focus({ preventScroll: true });
  }

  /** Bring to life what the picture offers; before a guess, and in a room, it is only a picture. */
  arm(box = this.box) {
    const marks = [...box.querySelectorAll("[data-press], [data-move], [data-nudge], [data-field]")];
    if (!marks.length || this.view.root.matches("[data-locked], .room *")) return;
    this.svg ??= box.innerHTML;
    box.firstElementChild.setAttribute("role", "group"); // an image holds no controls
    for (const mark of marks) {
      mark.setAttribute("aria-label", mark.dataset.label);
      if (mark.dataset.press || mark.dataset.nudge) {
        mark.setAttribute("role", "button");
        mark.setAttribute("tabindex", 0);
      } else if (mark.dataset.move) this.armMove(mark);
      else this.field.arm(mark);
    }
    this.choose(this.chosen, box);
  }

  /** Where buttons nudge marks, one mark is the one that they move. */
  choose(name, box = this.box) {
    this.chosen = name;
    const nudged = box.querySelector("[data-nudge]");
    for (const mark of box.querySelectorAll("[data-move]")) {
      mark.toggleAttribute("data-chosen", Boolean(nudged) && mark.dataset.mark === name);
    }
  }

  /** A mark to move is a slider over the places of its row; a row is one stop of the Tab key. */
  armMove(mark) {
    const { name, row, item, items } = place(mark, this.view.params);
    const at = items.indexOf(item) + 1;
    const says = {
      role: "slider", "aria-orientation": "horizontal", "aria-valuemin": 1, "aria-valuemax": items.length,
      "aria-valuenow": at, "aria-valuetext": `${at} of ${items.length}`,
      tabindex: (this.entries.get(`${name}:${row}`) ?? items[0]) === item ? 0 : -1,
    };
    for (const [key, value] of Object.entries(says)) mark.setAttribute(key, value);
  }

  enter({ target }) {
    if (!target.dataset.move) return;
    const { name, row, item } = place(target, this.view.params);
    this.choose(target.dataset.mark);
    this.entries.set(`${name}:${row}`, item);
    for (const mark of this.row(target)) mark.setAttribute("tabindex", mark === target ? 0 : -1);
  }

  /** As if the reader had moved the control itself. */
  set(name, value) {
    const { built, data, params } = this.view;
    if (params[name] === value) return;
    built.get(name).stop?.();
    built.get(name).set(value);
    this.view.change(data.spec.controls.find((control) => control.name === name), value);
  }

  /** Set what a mark asks for: one control, or several at once, of which the last has the picture drawn. */
  press(mark) {
    if (mark.dataset.nudge) return this.nudge(Number(mark.dataset.nudge));
    const { built, data, params } = this.view;
    const asked = mark.dataset.press.split("&").map((one) => {
      const [name, ...text] = one.split("=");
      return [name, read(data.spec.controls.find((control) => control.name === name), text.join("="))];
    }).filter(([name, value]) => params[name] !== value);
    for (const [name, value] of asked.slice(0, -1)) {
      built.get(name).stop?.();
      built.get(name).set(value);
      params[name] = value;
    }
    if (asked.length) this.set(...asked.at(-1));
  }

  /** Put an item of a row at another place. */
  move({ name, row, item }, to) {
    const rows = this.view.params[name].split("_");
    const items = rows[row].split(".").filter((one) => one !== item);
    items.splice(to, 0, item);
    rows[row] = items.join(".");
    this.set(name, rows.join("_"));
  }

  /** Move the chosen mark by so many places; where none is, choose the first. */
  nudge(by) {
    const mark = this.chosen && this.find(this.chosen);
    if (!mark) return this.choose(this.box.querySelector("[data-move]").dataset.mark);
    const there = place(mark, this.view.params);
    const to = there.items.indexOf(there.item) + by;
    if (to >= 0 && to < there.items.length) this.move(there, to);
  }

  down({ target, button, pointerId, clientX }) {
    if (this.drag) return; // by another finger
    this.pressed = button === 0 ? target.closest(HANDS) : null;
    if (this.pressed?.dataset.move) this.take(this.pressed, pointerId, clientX);
  }

  /** Places are those of the moment the hand took hold: a picture that moves under it does not push the mark about. */
  take(mark, pointerId, from) {
    const { left, right } = mark.lastElementChild.getBoundingClientRect();
    const others = this.row(mark).filter((one) => one !== mark).map(middle);
    const [before, after] = [others.filter((at) => at < left), others.filter((at) => at >= left)];
    const x = mark.transform.baseVal[0].matrix.e;
    const held = { mark: mark.dataset.mark, pointerId, x, from, by: 0, left, right, before, after };
    this.drag = { ...place(mark, this.view.params), ...held };
    this.box.setPointerCapture(pointerId);
    this.follow();
    mark.focus({ preventScroll: true });
  }

  go({ pointerId, clientX }) {
    const { drag } = this;
    if (drag?.pointerId !== pointerId) return;
    drag.by = clientX - drag.from;
    this.follow();
    // a neighbour gives way once the edge of what is dragged has passed its middle
    const left = drag.before.filter((at) => at < drag.left + drag.by);
    const right = drag.after.filter((at) => at < drag.right + drag.by);
    this.move(drag, left.length + right.length);
  }

  /** The mark in the hand goes with it, above the others. */
  follow() {
    const { mark: name, x, by } = this.drag;
    const mark = this.find(name);
    if (!mark) return;
    mark.dataset.held = "";
    if (mark.nextSibling) mark.parentNode.append(mark);
    const { matrix } = mark.transform.baseVal[0];
    const scale = this.box.firstElementChild.getScreenCTM().a;
    mark.setAttribute("transform", `translate(${(x + by / scale).toFixed(2)} ${matrix.f})`);
  }

  drop() {
    if (!this.drag) return;
    const { mark } = this.drag;
    this.drag = null;
    this.figure.paint(this.svg, SETTLES);
    this.find(mark)?.focus({ preventScroll: true });
  }

  up({ clientX, clientY }) {
    // of a button that was drawn anew between down and up the browser makes no click
    if (!this.pressed || this.pressed.dataset.move || this.pressed.isConnected) return;
    const under = this.box.getRootNode().elementFromPoint(clientX, clientY)?.closest(HANDS);
    if (under?.dataset.mark === this.pressed.dataset.mark) this.press(under);
  }

  click({ target }) {
    const mark = target.closest(HANDS);
    if (mark && !mark.dataset.move) this.press(mark);
  }

  key(event) {
    const mark = event.target.closest(HANDS);
    if (!mark || this.drag || event.ctrlKey || event.metaKey || event.altKey) return;
    const done = mark.dataset.move ? this.moveKey(mark, event.key) : this.pressKey(mark, event);
    if (done) event.preventDefault();
  }

  pressKey(mark, { key, repeat }) {
    if (key !== "Enter" && key !== " ") return false;
    if (!repeat) this.press(mark);
    return true;
  }

  /** Left and right move the mark; up and down go to its neighbours. */
  moveKey(mark, key) {
    const there = place(mark, this.view.params);
    const at = there.items.indexOf(there.item), last = there.items.length - 1;
    const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: last }[key];
    const next = { ArrowUp: at - 1, ArrowDown: at + 1 }[key];
    if (to >= 0 && to <= last) this.move(there, to);
    const goal = this.row(mark).find((one) => place(one, this.view.params).item === there.items[next]);
    goal?.focus({ preventScroll: true });
    return to !== undefined || next !== undefined;
  }
}
