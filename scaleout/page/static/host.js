// On a page with no server: find the widgets, and answer them with Python in a worker once one is touched.

import { mount } from "./mount.js";
import { Learner, Python } from "./python.js";

const address = new URL("worker.js", import.meta.url);
const python = new Python(address);
python.learner = new Learner(address, python);

for (const root of document.querySelectorAll(".live-widget:not([data-mounted])")) {
  const made = mount(root, python);
  made.restore?.();
}
