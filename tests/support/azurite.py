"""Azurite, Microsoft's emulator of Azure's blob storage, in its own process on the loopback interface.

It is a package of npm: `npm install --global azurite`. Tests that need it are skipped if it is not on the PATH.
"""

import base64
import hashlib
import hmac
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from email.utils import formatdate
from urllib.request import Request, urlopen

import pytest

__all__ = ["azurite"]

_ACCOUNT = "devstoreaccount1"
_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="  # it is public
_VERSION = "2021-08-06"


@contextmanager
def azurite(objects: Mapping[str, bytes]) -> Iterator[None]:
    """Run the emulator with a container `photos` that holds `objects`; the environment points to it."""
    pytest.importorskip("obstore")
    program = shutil.which("azurite-blob")
    if program is None:
        pytest.skip("azurite-blob is not installed: npm install --global azurite")
    with socket.create_server(("127.0.0.1", 0)) as found:
        port = found.getsockname()[1]
    options = ["--inMemoryPersistence", "--skipApiVersionCheck", "--disableTelemetry", "--silent"]
    command = [program, "--blobHost", "127.0.0.1", "--blobPort", str(port), *options]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server, pytest.MonkeyPatch.context() as patch:
        try:
            _wait_for(port)
            patch.setenv("AZURE_STORAGE_USE_EMULATOR", "true")
            patch.setenv("AZURITE_BLOB_STORAGE_URL", f"http://127.0.0.1:{port}")
            _put(port, "photos", b"", resource="restype:container")
            for key, data in objects.items():
                _put(port, f"photos/{key}", data)
            yield
        finally:
            server.kill()


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 0.2).close()
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.1)
        else:
            return


def _put(port: int, path: str, data: bytes, *, resource: str = "") -> None:
    """Make a container or a blob, with a request signed as Azure demands."""
    headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _VERSION}
    if data:
        headers["x-ms-blob-type"] = "BlockBlob"
    signed_headers = "".join(f"{name}:{headers[name]}\n" for name in sorted(headers))
    kind = "application/octet-stream"
    text = f"PUT\n\n\n{len(data) or ''}\n\n{kind}\n\n\n\n\n\n\n{signed_headers}/{_ACCOUNT}/{_ACCOUNT}/{path}"
    text += f"\n{resource}" if resource else ""
    signature = base64.b64encode(hmac.digest(base64.b64decode(_KEY), text.encode(), hashlib.sha256)).decode()
    headers |= {"Authorization": f"SharedKey {_ACCOUNT}:{signature}", "Content-Type": kind}
    query = f"?{resource.replace(':', '=')}" if resource else ""
    url = f"http://127.0.0.1:{port}/{_ACCOUNT}/{path}{query}"
    urlopen(Request(url, data=data, headers=headers, method="PUT"), timeout=10).close()
