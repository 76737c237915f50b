// A view for a room: the question, then the view's own steps, by keys, a clicker or a click. Nothing else is on the screen.

import { mount } from "./mount.js";
import { Python } from "./python.js";

const RESTS = 4000; // milliseconds after which the hint goes
const KEYS = {
  ArrowRight: 1, ArrowDown: 1, PageDown: 1, " ": 1, Enter: 1, ArrowLeft: -1, ArrowUp: -1, PageUp: -1, Backspace: -1,
  Home: -Infinity, End: Infinity,
};

const root = document.querySelector(".live-widget");
const back = document.querySelector(".room-hint a");
const python = new Python(new URL("worker.js", import.meta.url));
const view = mount(root, python);
const play = view.data.spec.controls.find(({ kind }) => kind === "play");

/** What is shown one after the other: the question (null), then the settings. */
function settings() {
  if (!play) return [null, {}];
  const last = view.data.result.levers[play.name]?.hi ?? play.hi;
  const count = Math.floor((last - play.lo) / play.step) + 1;
  const values = play.stops ?? Array.from({ length: count }, (_, i) => play.lo + i * play.step);
  return [null, ...values.filter((value) => value <= last).map((value) => ({ [play.name]: value }))];
}

const steps = settings();
let wanted = 0;
let shown = 0;
let busy = false;

/** One picture at a time; keys that come meanwhile lead to the last of them. While Python starts, the first one waits for
 * it and the rest are a hand that found no answer. */
async function go(step) {
  if (busy && python.state !== "ready") return;
  wanted = Math.min(steps.length - 1, Math.max(0, step));
  if (busy) return;
  busy = true;
  while (shown !== wanted) {
    shown = wanted;
    if (steps[shown]) await view.reveal(steps[shown]);
    else ask();
  }
  busy = false;
  document.body.dataset.step = shown;
}

function ask() {
  view.guess.lock(false);
  for (const figure of view.figures) figure.mark(null); // in a room guesses are on the board
}

function fullScreen() {
  if (document.fullscreenElement) document.exitFullscreen();
  else document.documentElement.requestFullscreen?.();
}

let timer = null;
function hint() {
  document.body.dataset.hint = "";
  clearTimeout(timer);
  timer = setTimeout(() => delete document.body.dataset.hint, RESTS);
}

addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest?.("a, button") && event.key === "Enter") return;
  if (event.key in KEYS) go(wanted + KEYS[event.key]);
  else if (event.key === "f" || event.key === "F") fullScreen();
  else if (event.key === "Escape" && !document.fullscreenElement) location = back.href;
  else return;
  event.preventDefault();
}, true);
addEventListener("click", (event) => !event.target.closest("a, button") && go(wanted + 1));
root.addEventListener("pointerdown", (event) => event.stopPropagation(), true); // no mark is dragged here
addEventListener("pointermove", hint);

ask();
hint();
python.start();
document.body.dataset.step = 0;
