// The worker that runs the book's Python: Pyodide from the site itself, and the same files as the package.

async function start() {
  const { loadPyodide } = await import("../pyodide/pyodide.mjs");
  const archive = fetch(new URL("scaleout.zip", import.meta.url));
  const python = await loadPyodide({ indexURL: new URL("../pyodide/", import.meta.url).href });
  const answer = await archive;
  if (!answer.ok) throw new Error(`scaleout.zip: ${answer.status}`);
  const home = "/book";
  python.FS.mkdir(home);
  python.unpackArchive(await answer.arrayBuffer(), "zip", { extractDir: home });
  python.runPython(`import sys; sys.path.insert(0, "${home}")`);
  return python.pyimport("scaleout.live").call_json;
}

try {
  const call = await start();
  self.onmessage = ({ data }) => postMessage({ result: call(data.method, data.args) });
  postMessage({ ready: true });
} catch (error) {
  postMessage({ failed: String(error) });
}
