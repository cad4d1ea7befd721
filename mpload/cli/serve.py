"""`mpload serve`: make samples for the loaders of other machines."""

import resource
from pathlib import Path
from typing import Annotated, Any

import typer

from mpload.cli.loading import decoder_of, named_dataset, names_object, opened
from mpload.errors import ArgumentError
from mpload.servers.limits import ServerLimits
from mpload.units import parse_bytes

__all__ = ["serve"]


def serve(
    context: typer.Context,
    path: Annotated[
        str,
        typer.Argument(metavar="MODULE:DATASET|INDEX", help="Your own MPDataset, or the path or URL of an index."),
    ],
    *,
    port: Annotated[int, typer.Option(min=0, max=65535, help="TCP port; 0 lets the system choose one.")] = 8000,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on.  [default: all; without a token, this machine alone]"),
    ] = None,
    socket: Annotated[
        Path | None,
        typer.Option(help="Unix socket to listen on, instead of a port, for jobs of the same user on this machine."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Worker processes.  [default: one per core]")] = None,
    memory: Annotated[
        str | None, typer.Option(help="Memory for samples and workers, such as 4GiB.  [default: half of the free]")
    ] = None,
    token: Annotated[
        str | None,
        typer.Option(envvar="MPLOAD_TOKEN", help="What loaders must send to get samples.", show_default=False),
    ] = None,
    no_token: Annotated[
        bool, typer.Option("--no-token", help="Let everybody who reaches the port have samples.")
    ] = False,
    cert: Annotated[Path | None, typer.Option(help="File with a certificate, to encrypt connections (TLS).")] = None,
    key: Annotated[Path | None, typer.Option(help="File with the certificate's private key.")] = None,
    client_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time for a client to send a request or to read an answer.")
    ] = 60.0,
    stop_seconds: Annotated[
        float, typer.Option(min=0.1, help="Time for the requests under way when asked to stop.")
    ] = 30.0,
    decode: Annotated[
        str | None,
        typer.Option(metavar="MODULE:OBJECT", help="Decoder for an INDEX.  [default: RandomResizedCrop(224)]"),
    ] = None,
) -> None:
    """Make samples for the loaders of other machines.

    Prints the URL, which loaders take as MPLoader(dataset, servers=[URL]). Their dataset must have the same index and
    decoders. Ends on Ctrl-C or SIGTERM, after the requests under way.
    """
    if no_token and token is not None:
        raise ArgumentError("--no-token: a token is set. Leave out --token, and unset MPLOAD_TOKEN")
    source = context.get_parameter_source("port")
    has_port = source is not None and source.name != "DEFAULT"
    if socket is not None and (has_port or any(option is not None for option in (host, cert, key))):
        raise ArgumentError("--socket listens on no port. Leave out --port, --host, --cert and --key")
    budget = "auto" if memory is None else parse_bytes(memory)
    dataset = _dataset(path, decode=decode)
    from mpload.servers.serving import serve as serve_dataset  # noqa: PLC0415  imports torch

    _allow_many_connections()
    serve_dataset(
        dataset,
        port=port,
        host=host,
        socket_file=socket,
        token=token,
        is_open=no_token,
        num_workers=workers,
        memory_budget=budget,
        cert=cert,
        key=key,
        limits=ServerLimits(client_seconds=client_seconds, stop_seconds=stop_seconds),
        on_ready=lambda url: print(f"serving {path} at {url}", flush=True),
    )


def _allow_many_connections() -> None:
    """Raise the limit of open files as far as the system allows. Each worker of a loader keeps some connections."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


def _dataset(path: str, *, decode: str | None) -> Any:
    """Return the dataset to serve. Imports torch."""
    if names_object(path):
        if decode is not None:
            raise ArgumentError(f"{path} has a decoder of its own. Leave out --decode")
        return named_dataset(path)
    index = opened(path)
    from mpload.loader.dataset import MPDataset  # noqa: PLC0415

    return MPDataset(index, decode=decoder_of(decode), batch_size=1)
