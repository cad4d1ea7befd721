"""An S3 endpoint of a bucket with very many empty names, which can only be listed.

    python -m tests.support.listed_bucket NUM_FOLDERS NUM_FILES

Prints its port, and counts the pages and the keys that it has sent: any other request gets them as JSON.
"""

import json
import sys
import threading
from bisect import bisect_right
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

_PAGE_KEYS = 1000
_FACTS = "<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>x</ETag><Size>1</Size>"
_ENTRY = f"<Contents><Key>%s</Key>{_FACTS}</Contents>"


class _Bucket(ThreadingHTTPServer):
    def __init__(self, num_folders: int, num_files: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.folders = [f"train/{folder:04d}/" for folder in range(num_folders)]
        self.keys = [f"{folder}{file:05d}.jpg" for folder in self.folders for file in range(num_files)]
        self.sent = {"pages": 0, "keys": 0, "folders": 0}
        self.lock = threading.Lock()

    def count(self, what: str, number: int) -> None:
        with self.lock:
            self.sent["pages"] += 1
            self.sent[what] += number


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Bucket

    def do_GET(self) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        if "list-type" not in query:
            self.answer(json.dumps(self.server.sent))
        elif query.get("delimiter"):
            self.page(query, self.server.folders, "folders", "<CommonPrefixes><Prefix>%s</Prefix></CommonPrefixes>")
        else:
            self.page(query, self.server.keys, "keys", _ENTRY)

    def page(self, query: dict[str, str], names: list[str], what: str, entry: str) -> None:
        first = bisect_right(names, query.get("continuation-token") or query.get("start-after") or "")
        page = [name for name in names[first : first + _PAGE_KEYS] if name.startswith(query.get("prefix", ""))]
        self.server.count(what, len(page))
        more = first + _PAGE_KEYS < len(names)
        token = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if more and page else ""
        entries = "".join(entry % name for name in page)
        self.answer(
            f"<ListBucketResult><Name>photos</Name><KeyCount>{len(page)}</KeyCount>"
            f"<IsTruncated>{str(bool(token)).lower()}</IsTruncated>{entries}{token}</ListBucketResult>"
        )

    def answer(self, text: str) -> None:
        data = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None: ...


if __name__ == "__main__":
    with _Bucket(int(sys.argv[1]), int(sys.argv[2])) as server:
        print(server.server_port, flush=True)
        server.serve_forever()
