"""A web server of the files of a folder, on the loopback interface, that delays its answers: see object_server.c.

    python benchmarks/object_server.py FOLDER [--delay-ms 50] [--slow-fraction 0.01 --slow-ms 200]

Run by hand, it prints its URL, and when standard input ends (Ctrl-D), what was requested.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from xml.sax.saxutils import escape

__all__ = ["Counts", "Delays", "ObjectServer", "compile_server", "list_bucket", "serving"]

SOURCE = Path(__file__).with_name("object_server.c")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delays:
    """How long the server waits before it answers, and how fast it sends."""

    delay_ms: float = 0.0
    """Milliseconds from the arrival of a request until its answer is sent."""
    slow_fraction: float = 0.0
    """The fraction of requests, drawn at random, that take `slow_ms` longer."""
    slow_ms: float = 0.0
    bytes_per_second: int = 0
    """The bandwidth that all connections share; 0: no limit."""
    seed: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Counts:
    """What the server has counted since it was started."""

    requests: int
    bytes: int
    slow: int
    """The number of requests that took `slow_ms` longer."""
    connections: int
    most_waiting: int
    """The largest number of requests that waited for their answers at the same time since the last look."""

    def since(self, earlier: "Counts") -> "Counts":
        """Return what was counted after `earlier`."""
        return Counts(
            requests=self.requests - earlier.requests,
            bytes=self.bytes - earlier.bytes,
            slow=self.slow - earlier.slow,
            connections=self.connections - earlier.connections,
            most_waiting=self.most_waiting,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectServer:
    """A running server."""

    url: str
    """The URL of the folder, without a slash at the end. It is also an S3 endpoint: subfolders are its buckets."""
    pid: int

    def counts(self) -> Counts:
        """Ask for the counts; this request is not counted."""
        with urllib.request.urlopen(f"{self.url}/-/counts", timeout=10) as answer:
            return Counts(**json.load(answer))

    def s3_environment(self) -> dict[str, str]:
        """Return the environment variables with which S3 clients find the server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_REGION": "us-east-1",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }


def compile_server(folder: Path) -> Path:
    """Compile the server; return the path of the program."""
    program = folder / "object_server"
    subprocess.run(["cc", "-O2", "-o", program, SOURCE], check=True)
    return program


@contextmanager
def serving(folder: Path, delays: Delays, *, program: Path | None = None) -> Iterator[ObjectServer]:
    """Serve the files below `folder`.

    Args:
        folder: root of the URLs.
        delays: how slow the server is.
        program: what `compile_server` made; by default, it is compiled for this server.
    """
    with tempfile.TemporaryDirectory() as name:
        command = [str(program or compile_server(Path(name))), str(folder)]
        command += [str(round(delays.delay_ms * 1000)), str(delays.slow_fraction), str(round(delays.slow_ms * 1000))]
        command += [str(delays.bytes_per_second), str(delays.seed)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                port = process.stdout.readline().strip()
                if not port:
                    raise SystemExit("the server of objects did not start; see above")
                yield ObjectServer(url=f"http://127.0.0.1:{port}", pid=process.pid)
            finally:
                process.terminate()


def list_bucket(bucket: Path, pattern: str = "**/*") -> None:
    """Write the answer to a request for the list of a bucket's objects: those that match `pattern`."""
    contents = "".join(
        f"<Contents><Key>{escape(path.relative_to(bucket).as_posix())}</Key>"
        f"<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>&quot;0&quot;</ETag>"
        f"<Size>{path.stat().st_size}</Size><StorageClass>STANDARD</StorageClass></Contents>"
        for path in sorted(bucket.glob(pattern))
        if path.is_file()
    )
    bucket.with_suffix(".xml").write_text(
        '<?xml version="1.0" encoding="UTF-8"?><ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">'
        f"<Name>{escape(bucket.name)}</Name><IsTruncated>false</IsTruncated>{contents}</ListBucketResult>",
        encoding="utf-8",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--delay-ms", type=float, default=0.0)
    parser.add_argument("--slow-fraction", type=float, default=0.0)
    parser.add_argument("--slow-ms", type=float, default=0.0)
    parser.add_argument("--bytes-per-second", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    options = vars(parser.parse_args())
    with serving(options.pop("folder"), Delays(**options)) as server:
        print(server.url, flush=True)
        sys.stdin.read()
        print(json.dumps(asdict(server.counts())))


if __name__ == "__main__":
    main()
