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
  return python.pyimport("scaleout.live").call_json;
}

// Pyodide leaves some of its failures (a WebAssembly file that cannot be fetched) to nobody, and waits for ever.
const lost = (event) => {
  event.preventDefault();
  postMessage({ failed: String(event.reason) });
};

addEventListener("unhandledrejection", lost);
try {
  const call = await start();
  removeEventListener("unhandledrejection", lost);
  self.onmessage = ({ data }) => {
    try {
      postMessage({ result: call(data.method, data.args) });
    } catch (error) {
      postMessage({ broken: String(error) }); // Python errors come back as results; this is Python itself
    }
  };
  postMessage({ ready: true });
} catch (error) {
  postMessage({ failed: String(error) });
}
