// A reader's own run: the JSON file that a lab wrote, dropped on a view or chosen. It is read here and sent nowhere.

import { el } from "./controls.js";
import { chooser, textOf } from "./file.js";

const LARGEST = 20e6; // bytes; Records are a few hundred kilobytes at most

async function parse(file) {
  const text = await textOf(file, LARGEST, "a Record");
  try {
    return JSON.parse(text);
  } catch {
    throw new Error(`${file.name} is not JSON: labs write their Records as labs/results/…/….json.`);
  }
}

/** Take files on `root`: `given(record, name)` hears of what was read, `wrong(words)` of what could not be. */
export function records(root, given, wrong) {
  const take = async (file) => {
    if (!file) return;
    try {
      given(await parse(file), file.name);
    } catch (error) {
      wrong(error.message);
    }
  };
  const input = chooser(take);
  const hover = (on) => (event) => {
    if (![...event.dataTransfer.types].includes("Files")) return;
    event.preventDefault();
    root.toggleAttribute("data-drop", on);
  };
  root.addEventListener("dragover", hover(true));
  root.addEventListener("dragleave", hover(false));
  root.addEventListener("drop", (event) => {
    hover(false)(event);
    take(event.dataTransfer.files[0]);
  });
  const help = "Draws your own run from the Record that a lab wrote (run the lab with --save). The file stays on "
    + "your machine.";
  const button = el("button", { type: "button", class: "live-plain", title: help, onclick: () => input.click() },
    "Add your run…");
  return el("span", { class: "live-records" }, button, input);
}
