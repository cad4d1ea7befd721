"""`mpload serve` as users start and stop it."""

import os
import re
import signal
import subprocess
import sys
from contextlib import ExitStack, closing
from http.client import HTTPConnection
from pathlib import Path
from socket import gethostname
from urllib.parse import urlsplit

import psutil
import pytest

from mpload.client.protocol import DATASET_HEADER, Description
from tests.support.batches import numbers_index
from tests.support.programs import REPOSITORY, mpload
from tests.support.running_servers import wanted

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="worker pools need Linux"),
    pytest.mark.processes,
]
_SECONDS = 100
_MODULE = """
import numpy as np
from mpload import MPDataset

def decode(data):
    return np.frombuffer(data, np.int64)

def dataset():
    return MPDataset("100.txt", decode=decode, batch_size=4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_server_prints_its_url_serves_a_dataset_of_a_module_and_ends_when_asked(
    tmp_path: Path, number: signal.Signals
) -> None:
    numbers_index(tmp_path, 100)
    (tmp_path / "mydata.py").write_text(_MODULE)
    command = [sys.executable, "-m", "mpload", "serve", "mydata:dataset", "--port", "0", "--workers", "2"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "MPLOAD_TOKEN": "secret"}
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as server:
        assert server.stdout is not None
        line = server.stdout.readline()
        found = re.fullmatch(rf"serving mydata:dataset at (http://{re.escape(gethostname())}:\d+)\n", line)
        assert found, line
        headers = {"Authorization": "Bearer secret"}
        with closing(HTTPConnection("127.0.0.1", urlsplit(found[1]).port, timeout=_SECONDS)) as client:
            client.request("GET", "/v1/dataset", headers=headers)
            description = Description.decode(client.getresponse().read())
            headers[DATASET_HEADER] = description.digest
            client.request("POST", "/v1/samples", wanted([7]).encode(), headers)
            response = client.getresponse()
            assert (response.status, response.read()[-8:]) == (200, (7).to_bytes(8, "little"))
        processes = psutil.Process(server.pid).children(recursive=True)
        assert len(processes) >= 3
        server.send_signal(number)
        assert server.wait(_SECONDS) == 0
        assert server.stdout.read() == ""
    assert not psutil.wait_procs(processes, timeout=_SECONDS)[1]


@pytest.mark.slow
def test_a_server_has_more_connections_than_files_may_usually_be_open(tmp_path: Path) -> None:
    index, environment = numbers_index(tmp_path, 8), {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, "-m", "mpload", "serve", str(index), "--port=0", "--workers=1"]
    limited = ["prlimit", "--nofile=128:4096", *command]
    with subprocess.Popen(limited, env=environment, stdout=subprocess.PIPE, text=True) as server, ExitStack() as stack:
        stack.callback(server.kill)
        assert server.stdout is not None
        address = urlsplit(server.stdout.readline().split()[-1]).netloc
        for _ in range(200):
            client = stack.enter_context(closing(HTTPConnection(address, timeout=_SECONDS)))
            client.request("GET", "/healthz")
            assert client.getresponse().read()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["nothing:here"], "No module named 'nothing'"),
        (["missing.txt"], "missing.txt"),
        (["json:dumps", "--decode", "json:loads"], "has a decoder of its own"),
        (["json:JSONEncoder", "--port", "0"], "an MPDataset"),
        (["100.txt", "--host", "0.0.0.0"], "without a token"),
        (["100.txt", "--no-token", "--token", "x"], "--no-token"),
        (["100.txt", "--memory", "much"], "much"),
        (["100.txt", "--cert", "cert.pem"], "both"),
        (["100.txt", "--cert", "cert.pem", "--key", "key.pem"], "cert.pem: No such file"),
        (["100.txt", "--socket", "server.sock", "--port", "9000"], "Leave out --port"),
        (["100.txt", "--socket", "a b.sock"], "plain text without spaces"),
    ],
)
def test_wrong_arguments_are_refused_in_a_line(tmp_path: Path, arguments: list[str], why: str) -> None:
    numbers_index(tmp_path, 100)
    ran = mpload("serve", *arguments, cwd=tmp_path)
    assert ran.returncode in {1, 2}
    assert ran.stdout == ""
    assert why in ran.stderr
    assert ran.stderr.count("\n") == 1
