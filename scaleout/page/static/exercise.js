// One exercise: its prompt, a place to answer, Python's word on the answer, hints one at a time.

import { editor } from "./code.js";
import { el, freshId, keepKeys } from "./controls.js";
import { drawer, statusLine } from "./status.js";

function numberField(spec, check) {
  const id = freshId("answer");
  // text, so that "12,5" or "1e9" reaches Python, which says what it cannot read
  const input = el("input", { type: "text", id, inputmode: "decimal", autocomplete: "off", size: 12, placeholder: "a number" });
  input.addEventListener("keydown", (event) => {
    if (event.key === "Enter") check();
  });
  const row = el("div", { class: "live-row" }, input);
  let unit = null;
  if (spec.units?.length) {
    unit = el("select", { "aria-label": "Unit" }, el("option", { value: "" }, "unit"),
      ...spec.units.map((name) => el("option", { value: name }, name)));
    row.append(unit);
  }
  const element = el("div", { class: "live-answer" }, el("label", { for: id, class: "live-announce" }, "Your answer"), row);
  return { element, row, read: () => ({ value: input.value, unit: unit ? unit.value : "" }) };
}

function choiceField(spec) {
  const name = freshId("choice");
  const options = spec.options.map(([value, label]) => {
    const input = el("input", { type: "radio", name, value });
    return el("label", { class: "live-option" }, input, el("span", {}, label));
  });
  const element = el("fieldset", { class: "live-answer" }, el("legend", { class: "live-announce" }, "Choose one"), ...options);
  return { element, read: () => element.querySelector("input:checked")?.value ?? "" };
}

function codeField(spec, check, draft, edited) {
  const kept = drawer.get(draft);
  const made = editor("Your code", kept ?? spec.stub, (text) => drawer.put(draft, text), check);
  const reset = () => {
    made.set(spec.stub);
    drawer.put(draft, null);
    edited();
  };
  const extra = el("button", { type: "button", onclick: reset }, "Start over");
  return { element: made.element, extra, read: () => made.area.value };
}

// Verdicts that name no cause: what a wrong answer gave, or why it could not be judged.
const UNNAMED = new Set(["wrong-result", "input", "exception", "crash", "not-a-list", "not-a-number", "syntax", "stub"]);

const FIELDS = { number: numberField, choice: choiceField, function: codeField };

/** Hints, each shown on request after the one before it: where they appear, and the button that asks for the next. */
function hintBox(hints) {
  const list = el("div", { class: "live-hints" });
  if (!hints.length) return [list];
  let shown = 0;
  const more = el("button", { type: "button", class: "live-text" });
  const label = () => {
    more.textContent = shown ? `Next hint (${shown + 1} of ${hints.length})` : "Hint";
    if (shown === hints.length) more.remove();
  };
  more.addEventListener("click", () => {
    const hint = el("div", { class: "live-hint", tabindex: -1 });
    hint.innerHTML = hints[shown];
    hint.prepend(el("p", { class: "live-hint-count" }, `Hint ${shown + 1} of ${hints.length}`));
    shown += 1;
    list.append(hint);
    label();
    hint.focus({ preventScroll: true });
  });
  label();
  return [list, more];
}

function solutionBox(html) {
  const body = el("div");
  body.innerHTML = html;
  return el("details", {}, el("summary", {}, "Solution"), body);
}

export class Exercise {
  constructor(root, data, runtime) {
    const name = `${data.stem}:${data.key}`;
    // a page runs what a reader wrote apart from the book's own Python; a kernel does so by itself
    const answers = data.spec.kind === "function" ? runtime.learner ?? runtime : runtime;
    Object.assign(this, { root, data, runtime: answers, done: `done:${name}` });
    this.status = statusLine(answers);
    this.message = el("p", { class: "live-message", role: "status" });
    this.tick = el("span", { class: "live-done", hidden: true }, "✓ done");
    const field = FIELDS[data.spec.kind];
    if (field) this.field = field(data.spec, () => this.check(), `draft:${name}`, () => this.edited());
    this.layOut();
    keepKeys(root);
  }

  layOut() {
    const { root, data } = this;
    const { minutes, short } = data.spec;
    const prompt = root.querySelector(".live-prompt");
    const title = root.querySelector(".live-title");
    if (short) title.append(" ", el("span", { class: "live-short" }, "short path"));
    title.append(" ", this.tick, el("span", { class: "live-long" }, `${minutes} minute${minutes === 1 ? "" : "s"}`));
    this.finish(drawer.get(this.done));
    const [hints, ...more] = hintBox(data.spec.hints);
    const parts = [title, prompt, ...(this.field ? this.answering(more) : this.reading(more))];
    root.querySelector(".live-static").replaceWith(...parts, hints, solutionBox(data.spec.solution));
    root.setAttribute("role", "group");
    root.setAttribute("aria-label", data.spec.title);
    root.dataset.mounted = "";
  }

  /** Whether this reader has answered it rightly, now or before. */
  finish(done) {
    this.tick.hidden = !done;
    this.root.toggleAttribute("data-done", Boolean(done));
  }

  answering(more) {
    this.button = el("button", { type: "button", class: "live-main", onclick: () => this.check() }, "Check");
    this.field.element.addEventListener("focusin", () => this.status.touch(), { once: true });
    for (const kind of ["input", "change"]) this.field.element.addEventListener(kind, () => this.edited());
    const buttons = [this.button, ...[this.field.extra ?? []].flat(), ...more];
    this.field.row?.append(...buttons); // beside what it checks, where that is short
    const row = this.field.row ? [] : [el("div", { class: "live-buttons" }, ...buttons)];
    return [this.field.element, ...row, this.status.element, this.message];
  }

  /** What cannot run in a page is shown to be done elsewhere. */
  reading(more) {
    const { stub, command } = this.data.spec;
    const shown = (words) => el("pre", { tabindex: 0 }, el("code", {}, words));
    return [shown(stub), el("p", { class: "live-told" }, "Check it with"), shown(command),
      el("div", { class: "live-buttons" }, ...more)];
  }

  /** A verdict stands beside the answer it judged, and no other. */
  edited() {
    if (!this.busy && this.changed()) this.say("");
  }

  /** Whether the answer is another than the one last checked: not every event of a field is an edit. */
  changed() {
    return JSON.stringify(this.field.read()) !== this.checked;
  }

  async check() {
    if (this.busy) return;
    const answer = this.field.read();
    if (answer === "" && this.data.spec.kind === "choice") {
      this.say("Choose one of the answers first.");
      return;
    }
    Object.assign(this, { busy: true, checked: JSON.stringify(answer) });
    this.status.touch();
    this.button.setAttribute("aria-busy", "true");
    this.say(el("span", { "aria-hidden": "true" }, "Checking…")); // seen; the verdict alone is read out
    const { stem, key, spec, seconds, stopped } = this.data;
    const limit = spec.kind === "function" ? { seconds, stopped } : {};
    const result = await this.runtime.call("check", { stem, key, answer }, limit);
    this.button.removeAttribute("aria-busy");
    this.busy = false;
    if (result.failed) this.say(""); // the status line says why
    else if (this.changed()) this.say("The answer has changed since then: check it again.");
    else this.tell(result);
  }

  /** A message. With `named` its first sentence says the cause, and stands out where more follow. */
  say(words, ok = false, named = false) {
    const [, cause, rest] = (named && /^([^\n]+?(?<!\.\.)[.!?])(\s+[\p{Lu}(].*)$/su.exec(words)) || [];
    this.message.replaceChildren(...(cause ? [el("strong", {}, cause), rest] : [words]));
    this.message.dataset.ok = ok;
  }

  tell(result) {
    const ok = result.ok === true;
    this.say(String(result.error ?? result.message), ok, ok || (result.slip && !UNNAMED.has(result.slip)));
    if (!ok) return;
    drawer.put(this.done, true);
    this.finish(true);
  }
}
