"""A local server with the part of S3 that an archive needs: whole and multipart objects, ranges, listings."""

from __future__ import annotations

import hashlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.objects: dict[str, bytes] = {}
        """Contents of the objects by bucket/key."""
        self.uploads: dict[str, dict[int, bytes]] = {}
        self.lock = threading.Lock()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    def __enter__(self) -> Server:
        threading.Thread(target=self.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: Server
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        pass

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).strip("/")

    @property
    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, keep_blank_values=True).items()}

    def _body(self) -> bytes:
        if (self.headers.get("Transfer-Encoding") or "").lower() == "chunked":
            data = b""
            while size := int(self.rfile.readline(), 16):
                data += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return _unchunked(data) if "aws-chunked" in (self.headers.get("Content-Encoding") or "") else data

    def _answer(self, code: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(code)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", headers.get("length", str(len(body))))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _xml(self, text: str) -> None:
        self._answer(200, f'<?xml version="1.0" encoding="UTF-8"?>{text}'.encode(), Content_Type="application/xml")

    def do_PUT(self) -> None:
        body, query = self._body(), self._query
        tag = hashlib.md5(body).hexdigest()
        with self.server.lock:
            if "uploadId" in query:
                self.server.uploads[query["uploadId"]][int(query["partNumber"])] = body
            else:
                self.server.objects[self._key] = body
        self._answer(200, ETag=f'"{tag}"')

    def do_POST(self) -> None:
        self._body()
        query, key = self._query, self._key
        bucket, _, name = key.partition("/")
        where = f"<Bucket>{bucket}</Bucket><Key>{escape(name)}</Key>"
        with self.server.lock:
            if "uploads" in query:
                upload = str(len(self.server.uploads))
                self.server.uploads[upload] = {}
                text = f"<InitiateMultipartUploadResult>{where}<UploadId>{upload}</UploadId>"
                self._xml(f"{text}</InitiateMultipartUploadResult>")
            else:
                parts = self.server.uploads[query["uploadId"]]
                self.server.objects[key] = b"".join(parts[number] for number in sorted(parts))
                self._xml(f"<CompleteMultipartUploadResult>{where}<ETag>x</ETag></CompleteMultipartUploadResult>")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        if "/" not in self._key:
            self._list(self._key)
            return
        with self.server.lock:
            found = self.server.objects.get(self._key)
        if found is None:
            self._answer(404)
            return
        wanted = self.headers.get("Range")
        modified = "Mon, 16 Nov 2026 08:00:00 GMT"
        if self.command == "HEAD":
            self._answer(200, length=str(len(found)), Last_Modified=modified, ETag="x")
        elif wanted is None:
            self._answer(200, found, Last_Modified=modified, ETag="x")
        else:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            part = found[int(first) : int(last) + 1]
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(found)}"
            self._answer(206, part, Content_Range=span, Last_Modified=modified, ETag="x")

    def _list(self, bucket: str) -> None:
        prefix, delimiter = self._query.get("prefix", ""), self._query.get("delimiter", "")
        with self.server.lock:
            sizes = {key.partition("/")[2]: len(data) for key, data in self.server.objects.items()}
        text = ""
        inner = set()
        for key in sorted(key for key in sizes if key.startswith(prefix)):
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                inner.add(prefix + rest.partition(delimiter)[0] + delimiter)
                continue
            text += f"<Contents><Key>{escape(key)}</Key><Size>{sizes[key]}</Size>"
            text += "<LastModified>2026-11-16T08:00:00.000Z</LastModified></Contents>"
        text += "".join(f"<CommonPrefixes><Prefix>{escape(each)}</Prefix></CommonPrefixes>" for each in sorted(inner))
        head = f"<Name>{bucket}</Name><Prefix>{escape(prefix)}</Prefix><IsTruncated>false</IsTruncated>"
        self._xml(f"<ListBucketResult>{head}{text}</ListBucketResult>")


def _unchunked(data: bytes) -> bytes:
    """Decodes a chunked body with a trailing checksum."""
    whole = b""
    at = 0
    while True:
        line = data.index(b"\r\n", at)
        size = int(data[at:line].split(b";")[0], 16)
        if not size:
            return whole
        whole += data[line + 2 : line + 2 + size]
        at = line + 2 + size + 2
