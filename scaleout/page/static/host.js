// On a page with no server: find the widgets, and answer them with Python in a worker, which starts when one comes near.

import { Cell } from "./cell.js";
import { markLadder } from "./ladder.js";
import { FORMS, mount } from "./mount.js";
import { Learner, Python } from "./python.js";
import { leaveOut } from "./unseen.js";

FORMS.cell = Cell; // in a notebook a cell runs by itself

const NEAR = "600px 0px"; // about a screen before a widget is seen

const address = new URL("worker.js", import.meta.url);
const python = new Python(address);
python.learner = new Learner(address, python);

/** Whether the reader pays for what is loaded, or asked to save it: then Python waits for the first touch. */
function metered() {
  const { saveData, type } = navigator.connection ?? {};
  return saveData === true || type === "cellular";
}

const idle = window.requestIdleCallback ?? setTimeout;
const once = new AbortController();

/** A hand on a view, by pointer or by keyboard. */
function atHand({ target }) {
  if (!target.closest?.(".live-widget[data-form=view]")) return;
  once.abort();
  idle(leaveOut);
}
for (const kind of ["pointerdown", "focusin"]) addEventListener(kind, atHand, { signal: once.signal });

const near = new IntersectionObserver((seen) => {
  if (!seen.some(({ isIntersecting }) => isIntersecting)) return;
  near.disconnect();
  if (!metered()) idle(() => python.start());
}, { rootMargin: NEAR });

/** A link to what another tab has opens that tab. */
function openTab() {
  const tab = document.getElementById(location.hash.slice(1).split("?")[0])?.closest(".live-tab");
  if (!tab) return;
  const { parentElement: tabs } = tab;
  tabs.querySelectorAll(".live-tablist input")[[...tabs.querySelectorAll(".live-tab")].indexOf(tab)].checked = true;
  warm(tabs);
}

/** The view that a tab shows is made ready, where Python runs. */
function warm(tabs) {
  if (python.state === "ready") for (const root of tabs.querySelectorAll(".live-widget")) root.live?.warm();
}

openTab();
addEventListener("hashchange", openTab); // before the views hear of it, which go to where they are
for (const list of document.querySelectorAll(".live-tablist")) list.addEventListener("change", () => warm(list.parentElement));

for (const root of document.querySelectorAll(".live-widget:not([data-mounted])")) {
  try {
    const made = mount(root, python);
    made.restore?.();
    if (!made.data.every) near.observe(root);
  } catch (error) {
    console.error(error); // one that cannot come alive stays as it was stored, and stops no other
  }
}

markLadder(document);

// The theme makes code that scrolls a tab stop as the window changes its size, and leaves out what is folded then.
addEventListener("toggle", ({ target }) => {
  for (const code of target.querySelectorAll("pre")) if (code.scrollWidth > code.clientWidth) code.tabIndex = 0;
}, true);
