"""A server of the S3 protocol on this machine, and a proxy before it that counts requests and makes faults.

client ──► Proxy, in the process of the tests ──► moto, in a process of its own
"""

import http.client
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

_SERVER = """
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
print(server.server_port, flush=True)
server.serve_forever()
"""
#: What a client needs to know of this server.
WHO = {"AWS_ACCESS_KEY_ID": "tests", "AWS_SECRET_ACCESS_KEY": "tests", "AWS_DEFAULT_REGION": "us-east-1"}
_PIECE = 64 << 10
_DRIPS = 20  # pieces of an answer that drips


@dataclass
class Request:
    method: str
    path: str  # with its bucket, and what is asked behind a question mark
    range: str | None
    connection: int  # the client's port


#: What becomes of a request: a status instead of an answer, or a status and the fault's name in S3; "cut" in the middle
#: of its body, "slow": it comes after `Proxy.pause`, "drip": its body a piece at a time, with pauses between, "lost":
#: it is done, and the answer is 500; or None.
Fault = Callable[[Request], int | tuple[int, str] | str | None]


@dataclass
class Seen:
    """Requests that a proxy has seen since it was last cleared."""

    requests: list[Request] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)  # by method, and `bytes read` and `bytes written`


class Proxy(ThreadingHTTPServer):
    """Hands requests on; `fault` says which fail."""

    daemon_threads = True

    def __init__(self, port: int):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.behind = port
        self.seen = Seen()
        self.fault: Fault = lambda request: None
        self.pause = 0.05  # seconds

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_: object) -> None:
        """A client that goes away is no news."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Proxy

    def _hand_on(self) -> None:
        body = self._body()
        request = Request(self.command, self.path, self.headers.get("Range"), self.client_address[1])
        seen = self.server.seen
        seen.requests.append(request)
        seen.counts[self.command] += 1
        seen.counts["bytes written"] += len(body)
        fault = self.server.fault(request)
        if isinstance(fault, int | tuple):
            status, code = (fault, "") if isinstance(fault, int) else fault
            told = f'<?xml version="1.0"?>\n<Error><Code>{code}</Code></Error>'.encode() if code else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(told)))
            self.end_headers()
            self.wfile.write(b"" if self.command == "HEAD" else told)
            return
        if fault == "slow":
            time.sleep(self.server.pause)
        behind = http.client.HTTPConnection("127.0.0.1", self.server.behind, timeout=60)
        headers = {name: value for name, value in self.headers.items() if name.lower() != "transfer-encoding"}
        behind.request(self.command, self.path, body, {**headers, "Content-Length": str(len(body))})
        answer = behind.getresponse()
        data = answer.read()
        behind.close()
        self.send_response(500 if fault == "lost" else answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in ("transfer-encoding", "connection", "date", "server"):
                self.send_header(name, value)
        if answer.getheader("Content-Length") is None:
            self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if fault == "cut":
            self.wfile.write(data[: len(data) // 2])
            self.close_connection = True
            return
        seen.counts["bytes read"] += len(data)
        piece = max(1, len(data) // _DRIPS) if fault == "drip" else _PIECE
        for start in range(0, len(data), piece):
            self.wfile.write(data[start : start + piece])
            time.sleep(self.server.pause if fault == "drip" else 0)

    def _body(self) -> bytes:
        if self.headers.get("Expect") == "100-continue":
            self.send_response_only(100)
            self.end_headers()
        if self.headers.get("Transfer-Encoding") == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _hand_on

    def log_message(self, *_: object) -> None:
        """Requests are counted, and not printed."""


@contextmanager
def store_server() -> Iterator[Proxy]:
    """The server with the proxy before it."""
    process = subprocess.Popen([sys.executable, "-c", _SERVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert process.stdout is not None
    try:
        proxy = Proxy(int(process.stdout.readline()))
        Thread(target=proxy.serve_forever, daemon=True).start()
        yield proxy
        proxy.shutdown()
        proxy.server_close()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


@dataclass
class Bucket:
    """A bucket of its own, seen from behind the proxy."""

    name: str
    proxy: Proxy
    _client: Any = None

    def __post_init__(self) -> None:
        import boto3  # not where tests run with less

        names = {"aws_access_key_id": "tests", "aws_secret_access_key": "tests", "region_name": "us-east-1"}
        self._client = boto3.client("s3", endpoint_url=f"http://127.0.0.1:{self.proxy.behind}", **names)
        self._client.create_bucket(Bucket=self.name)

    @property
    def address(self) -> str:
        return f"s3://{self.name}"

    def put(self, key: str, data: bytes) -> None:
        self._client.put_object(Bucket=self.name, Key=key, Body=data)

    def put_folder(self, folder: Path, prefix: str) -> str:
        """All files of a folder; the address of the prefix."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return f"{self.address}/{prefix}"

    def delete(self, key: str) -> None:
        self._client.delete_object(Bucket=self.name, Key=key)

    def clear(self) -> None:
        for name in self.names():
            self.delete(name)

    def names(self, prefix: str = "") -> list[str]:
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return [item["Key"] for page in pages for item in page.get("Contents", ())]

    def read(self, key: str) -> bytes:
        data: bytes = self._client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return data

    def files(self, prefix: str) -> dict[str, bytes]:
        """Bytes of all objects below a folder, by their names in it."""
        return {key[len(prefix) + 1 :]: self.read(key) for key in self.names(f"{prefix}/")}

    def seen(self) -> Seen:
        """Return the requests that the proxy saw since the last call."""
        seen, self.proxy.seen = self.proxy.seen, Seen()
        return seen
