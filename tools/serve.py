"""Serve a built site on this machine and print its address.

    .venv/bin/python tools/serve.py _build/html [--port 8000]

Takes the next free port when the port is in use. Missing pages get the site's own 404.html, as on
GitHub Pages.
"""

from __future__ import annotations

import argparse
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

TRIES = 20


class Handler(SimpleHTTPRequestHandler):
    """Static files, with the types that modules and WebAssembly need and no line for each request."""

    extensions_map = SimpleHTTPRequestHandler.extensions_map | {
        ".mjs": "text/javascript",
        ".js": "text/javascript",
        ".wasm": "application/wasm",
    }

    def log_message(self, *args) -> None:
        pass

    def send_error(self, code, message=None, explain=None) -> None:
        page = Path(self.directory) / "404.html"
        if code != 404 or not page.is_file():
            super().send_error(code, message, explain)
            return
        body = page.read_bytes()
        self.send_response(404)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


class Server(ThreadingHTTPServer):
    """A server on which a reader may close a page while it is still loading."""

    daemon_threads = True

    def handle_error(self, request, client_address) -> None:
        pass


def server(folder: Path, port: int = 0, handler: type[Handler] = Handler) -> Server:
    """A server of `folder` on the loopback address; port 0 takes any free one.

    Raises ValueError when the folder holds no site or no port is free.
    """
    if not (folder / "index.html").is_file():
        raise ValueError(f"{folder} holds no site: run make site first")
    answering = partial(handler, directory=str(folder))
    for candidate in range(port, port + TRIES if port else 1):
        try:
            return Server(("127.0.0.1", candidate), answering)
        except OSError:
            continue
    raise ValueError(f"ports {port} to {port + TRIES - 1} are in use: choose another with --port")


def main() -> int:
    """Serve until interrupted; the exit code."""
    parser = argparse.ArgumentParser(description="Serve a built site on this machine.")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--port", type=int, default=8000, help="first port to try (default 8000)")
    options = parser.parse_args()
    if not 0 < options.port <= 65_000:
        parser.error(f"port {options.port}: use a number from 1 to 65000")
    try:
        site = server(options.folder, options.port)
    except ValueError as error:
        print(f"serve: {error}", file=sys.stderr)
        return 2
    print(f"The book is at http://127.0.0.1:{site.server_port}/  (Ctrl-C stops)", flush=True)
    try:
        site.serve_forever()
    except KeyboardInterrupt:
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
