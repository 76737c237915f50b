// The worker that runs the book's Python: Pyodide from the site itself, and the same files as the package.

async function start() {
  const { loadPyodide } = await import("../pyodide/pyodide.mjs");
  const [python, answer] = await Promise.all([
    loadPyodide({ indexURL: new URL("../pyodide/", import.meta.url).href }),
    fetch(new URL("scaleout.zip", import.meta.url)),
  ]);
  if (!answer.ok) throw new Error(`scaleout.zip: ${answer.status}`);
  const home = "/book";
  python.FS.mkdir(home);
  python.unpackArchive(await answer.arrayBuffer(), "zip", { extractDir: home });
  python.runPython(`import sys; sys.path.insert(0, "${home}")`);
  return python.pyimport("scaleout.page.live").call_json;
}

// The page's end of the line comes with the first message. It is kept out of reach of the Python that runs here: what
// code posts by the worker's own postMessage, or by one that it changed, is heard by nobody.
const port = await new Promise((resolve) => {
  addEventListener("message", ({ data }) => resolve(data), { once: true });
});
const send = port.postMessage.bind(port);

// A WebAssembly file that cannot be fetched Pyodide leaves to nobody, or, once it is about to compile, to a warning in
// the console; and then it waits for ever.
const lost = (reason) => send({ failed: String(reason) });
const unhandled = (event) => {
  event.preventDefault();
  lost(event.reason);
};
const compile = WebAssembly.instantiateStreaming;
WebAssembly.instantiateStreaming = (...given) => {
  const compiled = compile(...given);
  compiled.catch(lost);
  return compiled;
};

addEventListener("unhandledrejection", unhandled);
try {
  const call = await start();
  removeEventListener("unhandledrejection", unhandled);
  port.onmessage = ({ data: { id, method, args } }) => {
    try {
      send({ id, result: call(method, args) });
    } catch (error) {
      send({ id, broken: String(error) }); // Python errors come back as results; this is Python itself
    }
  };
  send({ ready: true });
} catch (error) {
  send({ failed: String(error) });
}
