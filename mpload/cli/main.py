"""The app. It reports each error as one line on stderr and an exit code."""

import errno
import os
import sys
import warnings
from typing import Annotated, Any

import typer

import mpload
from mpload.cli.commands import CommandGroup
from mpload.cli.streams import prepare_streams
from mpload.errors import ArgumentError, MploadError
from mpload.units import printable

__all__ = ["app", "main"]

_FAILURE, _USAGE, _INTERRUPTED, _BROKEN_PIPE = 1, 2, 130, 141
_NO_THREAD = "can't start new thread"
_NO_PROCESSES = (
    "the limit of processes and threads is reached, so no more can be started. Raise it (ulimit -u, or pids.max of the "
    "container), or use fewer: --workers 1"
)


class _Commands(CommandGroup):
    """The commands. The group reports every error that a user can correct in one line."""

    def invoke(self, ctx: Any) -> Any:
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()
        except BrokenPipeError:  # `mpload inspect x | head -1`: the reader has closed the pipe
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            sys.exit(_BROKEN_PIPE)
        except KeyboardInterrupt:
            _print_error("interrupted")
            sys.exit(_INTERRUPTED)
        except typer.BadParameter as error:
            error.message = _plain_reason(error)
            raise
        except ArgumentError as error:
            _print_error(str(error))
            sys.exit(_USAGE)
        except MploadError as error:
            _print_error(str(error))
            sys.exit(_FAILURE)
        except OSError as error:
            reason = error.strerror or str(error)
            if isinstance(error, BlockingIOError) and reason == os.strerror(errno.EAGAIN):  # of a fork
                reason = _NO_PROCESSES
            _print_error(f"{error.filename}: {reason}" if error.filename else reason)
            sys.exit(_FAILURE)
        except RuntimeError as error:
            if _NO_THREAD not in str(error):
                raise
            _print_error(_NO_PROCESSES)
            sys.exit(_FAILURE)
        return result


def _plain_reason(error: typer.BadParameter) -> str:
    """Return why a value was refused, with the value in it: `'x' should be a valid integer`.

    Typer validates values with pydantic, and passes on messages such as `Input should be a valid integer, unable to
    parse string as an integer` and `Value error, 'zip' is not one of 'tar', 'lmdb'.`
    """
    problems: list[dict[str, Any]] = getattr(error.__cause__, "errors", list)()
    if not problems:
        return error.message
    reason = str(problems[0]["msg"]).removeprefix("Value error, ").partition(", unable to parse")[0]
    return reason.replace("Input", repr(problems[0]["input"]), 1)


app = typer.Typer(
    cls=_Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        print(f"mpload {mpload.__version__}")
        raise typer.Exit


@app.callback()
def options(
    *,
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Index image datasets, and stream them into PyTorch in constant memory.

    Exit codes: 0 success, 1 findings or a failure, 2 wrong usage, 130 interrupted.
    """


def main() -> None:
    """Run the command line."""
    prepare_streams()
    warnings.showwarning = _warn  # type: ignore[assignment]  # shows the message only
    app(prog_name="mpload")


def _warn(message: Warning | str, *_: object) -> None:
    _print_error(f"warning: {message}")


def _print_error(message: str) -> None:
    print(f"mpload: {printable(' '.join(message.split()))}", file=sys.stderr)


if __name__ == "__main__":
    main()
