// Bring the HTML form of a widget to life.

import { Exercise } from "./exercise.js";
import { Stored } from "./stored.js";
import { View } from "./view.js";

export const FORMS = { view: View, exercise: Exercise };

/** The live view or exercise of an element; `runtime` is what answers its calls. */
export function mount(root, runtime) {
  const data = JSON.parse(root.querySelector(".live-data").textContent);
  const made = new FORMS[data.form](root, data, data.every ? new Stored(data, runtime) : runtime);
  root.live = made; // for tests, and for the curious in a console
  return made;
}
