// On a page with no server: find the widgets, and answer them with Python in a worker once one is touched.

import { mount } from "./mount.js";
import { Python } from "./python.js";

const python = new Python(new URL("worker.js", import.meta.url));

for (const root of document.querySelectorAll(".live-widget:not([data-mounted])")) {
  const made = mount(root, python);
  made.restore?.();
}
