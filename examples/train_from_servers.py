"""Train on samples that two servers make, kill one of them in the middle of an epoch, and get the same batches.

python examples/train_from_servers.py
"""

import os
import secrets
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from photos import make_photos

import mpload


@contextmanager
def server(index: Path, token: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Start a server, as another machine would, and yield its URL."""
    command = [sys.executable, "-m", "mpload", "serve", str(index), "--port=0", "--host=127.0.0.1", "--workers=1"]
    environment = os.environ | {"MPLOAD_TOKEN": token}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        assert process.stdout is not None
        yield process.stdout.readline().split()[-1], process  # it prints: serving INDEX at URL
        process.kill()


def labels_of(
    index: Path, *, urls: list[str], token: str, kill: subprocess.Popen[str] | None = None
) -> list[list[int]]:
    """Return the labels of each batch of an epoch."""
    dataset = mpload.MPDataset(index, decode=mpload.RandomResizedCrop(224), batch_size=8, shuffle=True)
    servers = mpload.Servers(urls=urls, token=token) if urls else None
    found = []
    with mpload.MPLoader(dataset, servers=servers, num_workers=2) as loader:
        for images, labels in loader:
            found.append([*labels.tolist(), int(images.sum())])
            if kill is not None and len(found) == 2:
                kill.kill()
        timings = loader.stats().timings
        print(f"{timings.num_served} of {timings.num_samples} samples made by {len(urls)} servers")
    return found


def main() -> None:
    warnings.simplefilter("ignore", mpload.MploadWarning)  # that a server was lost
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        folder, token = Path(name), secrets.token_hex(16)
        make_photos(folder / "train", num_images=64)
        index = mpload.build_index(folder / "train", folder / "train.txt")
        started = [stack.enter_context(server(index, token)) for _ in range(2)]
        urls = [url for url, _ in started]
        alone = labels_of(index, urls=[], token=token)
        assert labels_of(index, urls=urls, token=token) == alone
        assert labels_of(index, urls=urls, token=token, kill=started[0][1]) == alone
        print("the same batches, with servers and without, and after the death of one")


if __name__ == "__main__":
    main()
