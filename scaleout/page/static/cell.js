// A code cell of the page that its reader can change and run. The cells above it run first, as they stand.

import { codeArea } from "./code.js";
import { el, freshId, keepKeys } from "./controls.js";
import { statusLine } from "./status.js";

const HELP = "Tab indents. Esc, then Tab leaves.";
const CELLS = '.live-widget[data-form="cell"]';

export class Cell {
  constructor(root, data, runtime) {
    Object.assign(this, { root, data, runtime: runtime.learner ?? runtime, runs: 0, busy: false });
    this.status = statusLine(this.runtime);
    this.shown = root.querySelector(".cell_input pre");
    this.coloured = [...this.shown.childNodes];
    this.source = this.shown.textContent.replace(/\n$/, "");
    this.output = root.querySelector(".cell_output") ?? el("div", { class: "cell_output" });
    this.stored = [...this.output.childNodes];
    this.layOut();
    this.storedCode = this.code();
    this.ran = this.storedCode; // what the output is of
    keepKeys(root);
  }

  layOut() {
    const { root, shown, output } = this;
    const name = root.querySelector(".live-name").textContent;
    const help = el("span", { class: "live-help", id: freshId("help") }, HELP);
    this.area = codeArea({ "aria-label": `${name}, code`, "aria-describedby": help.id }, () => this.run(), true);
    this.area.value = this.source;
    this.area.addEventListener("input", () => this.edited());
    this.button = el("button", { type: "button", class: "live-main", onclick: () => this.run() }, "Run");
    const reset = el("button", { type: "button", class: "live-quiet", onclick: () => this.reset() }, "Reset");
    root.querySelector(".live-bar").append(help, reset, this.button);
    // the box lies over the coloured words, and its own are not painted: what is seen is always the words beneath
    this.layers = el("div", { class: "live-layers" });
    shown.replaceWith(this.layers);
    shown.setAttribute("aria-hidden", "true");
    this.layers.append(shown, this.area);
    output.setAttribute("aria-live", "polite");
    root.querySelector(".cell_input").after(output, this.status.element);
    root.addEventListener("focusin", () => this.status.touch(), { once: true });
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", name);
    root.dataset.mounted = "";
  }

  /** The cells of the page before this one. */
  static before(root) {
    const roots = [...document.querySelectorAll(CELLS)];
    return roots.slice(0, roots.indexOf(root)).map(({ live }) => live);
  }

  /** All that a run of this cell runs, as one text. */
  code() {
    return JSON.stringify([...Cell.before(this.root), this].map(({ area }) => area.value));
  }

  edited() {
    const { area, shown } = this;
    if (area.value === this.source) shown.replaceChildren(...this.coloured);
    else shown.textContent = `${area.value}\n`; // a last line that is empty has its height too
    this.point("");
    for (const root of document.querySelectorAll(CELLS)) root.live.mark();
  }

  /** Pale is an output that is of other code. */
  mark() {
    this.root.toggleAttribute("data-stale", this.code() !== this.ran);
  }

  async run() {
    if (this.busy) return;
    const above = Cell.before(this.root);
    const code = this.code();
    this.runs += 1;
    const run = this.runs;
    this.wait(true);
    this.status.touch();
    const args = { source: this.area.value, above: above.map(({ area }) => area.value) };
    const { seconds, stopped } = this.data;
    const result = await this.runtime.call("execute", args, { seconds, stopped, code });
    if (run !== this.runs) return; // it was reset meanwhile
    this.wait(false);
    if (result.failed) return; // the status line says why
    this.ran = code;
    this.show(result, above);
    this.mark();
  }

  wait(busy) {
    this.busy = busy;
    this.button.setAttribute("aria-busy", busy);
    this.button.textContent = busy ? "Running…" : "Run";
  }

  show({ output, error, cell }, above) {
    const parts = [];
    if (output) {
      const words = el("pre", { tabindex: 0 }, String(output));
      parts.push(el("div", { class: "output" }, el("div", { class: "highlight" }, words)));
    }
    const where = above[cell] ? `In “${above[cell].data.name}” above, ` : "";
    if (error) parts.push(el("p", { class: "live-problem" }, where + String(error)));
    if (!parts.length) parts.push(el("p", { class: "live-told" }, "The code ran and printed nothing."));
    this.output.replaceChildren(...parts);
    this.point(where ? "" : error);
  }

  /** Mark the line of the code that an error names, or none. */
  point(error) {
    const [, line = ""] = /^line (\d+)/.exec(error) ?? [];
    this.layers.toggleAttribute("data-line", line !== "");
    this.layers.style.setProperty("--line", line);
  }

  reset() {
    this.runs += 1;
    this.wait(false);
    this.area.value = this.source;
    this.ran = this.storedCode;
    this.output.replaceChildren(...this.stored);
    this.edited();
  }
}
