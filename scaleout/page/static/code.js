// The box for a reader's Python: line numbers, Tab that indents, and a way out for keyboards.

import { el, freshId } from "./controls.js";

const INDENT = "    ";

/** Replace the selection so that undo still works. */
function type(area, words) {
  if (document.execCommand("insertText", false, words)) return;
  area.setRangeText(words, area.selectionStart, area.selectionEnd, "end");
  area.dispatchEvent(new Event("input"));
}

function lineStart(area) {
  return area.value.lastIndexOf("\n", area.selectionStart - 1) + 1;
}

function indent(area) {
  const column = area.selectionStart - lineStart(area);
  type(area, INDENT.slice(column % INDENT.length));
}

function dedent(area) {
  const start = lineStart(area);
  const spaces = area.value.slice(start).match(/^ {0,4}/)[0].length;
  if (!spaces) return;
  const caret = Math.max(start, area.selectionStart - spaces);
  area.setSelectionRange(start, start + spaces);
  type(area, "");
  area.setSelectionRange(caret, caret);
}

function newline(area) {
  const line = area.value.slice(lineStart(area), area.selectionStart);
  const deeper = line.trimEnd().endsWith(":") ? INDENT : "";
  type(area, `\n${line.match(/^ */)[0]}${deeper}`);
}

/** What a key does in the box; true when the key is used up. */
function press(area, event, state, run) {
  if (event.key === "Escape") {
    state.leaving = true; // the next Tab leaves the box, as it does everywhere else
    return false;
  }
  if (event.key === "Tab" && !state.leaving) {
    if (event.shiftKey) dedent(area);
    else indent(area);
    return true;
  }
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
    run();
    return true;
  }
  if (event.key === "Enter") {
    newline(area);
    return true;
  }
  return false;
}

/** A box for code, whose keys do what keys do to code: `run` hears of Ctrl+Enter. `passed`: Tab goes on to what
 * follows until something is typed, so that whoever walks through a page by keyboard walks past. */
export function codeArea(props, run, passed = false) {
  const area = el("textarea", {
    spellcheck: "false", autocapitalize: "off", autocomplete: "off", wrap: "off", ...props,
  });
  const state = { leaving: passed };
  area.addEventListener("keydown", (event) => {
    if (press(area, event, state, run)) event.preventDefault();
  });
  area.addEventListener("blur", () => {
    state.leaving = passed;
  });
  area.addEventListener("input", () => {
    state.leaving = false;
  });
  return area;
}

/** An editor with its label: {element, area, set}. `changed` hears of edits, `run` of Ctrl+Enter. */
export function editor(label, text, changed, run) {
  const id = freshId("code");
  const area = codeArea({ id, "aria-describedby": `${id}-help` }, run);
  const gutter = el("div", { class: "live-gutter", "aria-hidden": "true" });
  const resize = () => {
    const lines = area.value.split("\n").length;
    area.rows = Math.max(3, lines);
    gutter.textContent = Array.from({ length: area.rows }, (_, line) => line + 1).join("\n");
  };
  area.addEventListener("input", () => {
    resize();
    changed(area.value);
  });
  const set = (words) => {
    area.value = words;
    resize();
  };
  set(text);
  const help = el("p", { class: "live-help", id: `${id}-help` },
    "Tab indents; press Esc and then Tab to leave the box. Ctrl+Enter runs it.");
  const box = el("div", { class: "live-editor" }, gutter, area);
  const element = el("div", { class: "live-control live-code" }, el("label", { for: id }, label), box, help);
  return { element, area, set };
}
