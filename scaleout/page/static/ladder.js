// How far this reader has come, on each rung of the ladder: from the exercises that are done, in this browser alone.

import { drawer } from "./status.js";

/** What is done on a rung, in words; "" where nothing is. `every` and `short` are keys of its exercises. */
export function progress(stem, every, short, isDone) {
  const done = every.filter((key) => isDone(`done:${stem}:${key}`));
  if (!done.length) return "";
  if (done.length === every.length) return "✓ all exercises done";
  const path = short.length && short.every((key) => done.includes(key)) ? "✓ short path, " : "";
  return `${path}${done.length} of ${every.length} exercises done`;
}

/** Write it under each rung that has exercises. */
export function markLadder(root) {
  for (const rung of root.querySelectorAll(".rung[data-every]")) {
    const { stem, every, short } = rung.dataset;
    const words = progress(stem, every.split(" "), short.split(" ").filter(Boolean), drawer.get);
    if (!words) continue;
    rung.querySelector(".rung-progress").textContent = words;
    rung.toggleAttribute("data-done", words.startsWith("✓"));
  }
}
