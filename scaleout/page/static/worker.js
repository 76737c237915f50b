// The worker that runs the book's Python: Pyodide from the site itself, and the same files as the package.
//
// The first to start leaves an image: the memory of a Python that has the book's modules, and WebAssembly compiled.
// The ones after it begin there, and are ready about five times sooner.

// The page's end of the line comes with the first message. It is kept out of reach of the Python that runs here: what
// code posts by the worker's own postMessage, or by one that it changed, is heard by nobody.
const { port, image } = await new Promise((resolve) => {
  addEventListener("message", ({ data }) => resolve(data), { once: true });
});
const send = port.postMessage.bind(port);

async function start() {
  const { loadPyodide } = await import("../pyodide/pyodide.mjs");
  const [python, answer] = await Promise.all([
    loadPyodide({
      indexURL: new URL("../pyodide/", import.meta.url).href,
      _loadSnapshot: image ? image.memory : undefined,
      _makeSnapshot: image === null,
    }),
    fetch(new URL("scaleout.zip", import.meta.url)),
  ]);
  if (!answer.ok) throw new Error(`scaleout.zip: ${answer.status}`);
  python.unpackArchive(await answer.arrayBuffer(), "zip", { extractDir: "/book" }); // files are in no image
  if (!image) python.runPython('import sys; sys.path.insert(0, "/book"); import scaleout.page.live');
  const left = image === null ? imageOf(python) : null;
  return [python.pyimport("scaleout.page.live"), left];
}

/** What the next worker begins from; null where there is none, and the next begins as this one did. */
function imageOf(python) {
  try {
    return compiled && { memory: python.makeMemorySnapshot(), compiled };
  } catch {
    return null;
  }
}

// A WebAssembly file that cannot be fetched Pyodide leaves to nobody, or, once it is about to compile, to a warning in
// the console; and then it waits for ever.
const lost = (reason) => send({ failed: String(reason) });
const unhandled = (event) => {
  event.preventDefault();
  lost(event.reason);
};
const compile = WebAssembly.instantiateStreaming;
let compiled = null;
WebAssembly.instantiateStreaming = async (source, imports) => {
  try {
    if (image) return { module: image.compiled, instance: await WebAssembly.instantiate(image.compiled, imports) };
    const made = await compile(source, imports);
    compiled = made.module;
    return made;
  } catch (error) {
    lost(error);
    throw error;
  }
};

addEventListener("unhandledrejection", unhandled);
try {
  const [live, left] = await start();
  removeEventListener("unhandledrejection", unhandled);
  let settled = false;
  port.onmessage = ({ data: { id, method, args } }) => {
    try {
      send({ id, result: live.answer(method, args) });
      live.collect();
      if (!settled) live.settle(); // the first answer has loaded what the next ones need
      settled = true;
    } catch (error) {
      send({ id, broken: String(error) }); // Python errors come back as results; this is Python itself
    }
  };
  send({ ready: true, image: left });
} catch (error) {
  send({ failed: String(error) });
}
