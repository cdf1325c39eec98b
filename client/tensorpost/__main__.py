"""The command line's entry point: `tensorpost`, or `python -m tensorpost`. See `command_line/cli.py`."""

from __future__ import annotations

import sys
from importlib.util import find_spec

from .values.extras import install_command

__all__ = ["main"]


def main() -> None:
    """Run the command line; without its libraries say how to install them, and exit with status 1.

    Ctrl+C ends it with status 130 (128 and SIGINT, as shells count), while it loads too.
    """
    try:
        _main()
    except KeyboardInterrupt:
        sys.exit(130)


def _main() -> None:
    if sys.argv[1:] == ["--version"]:  # without the libraries of the commands
        from . import __version__

        sys.stdout.write(f"tensorpost {__version__}\n")
        return
    try:
        from .command_line import cli as _cli

        if find_spec("rich") is None:  # tables and bars load it later, since it takes long
            raise ModuleNotFoundError("No module named 'rich'", name="rich")  # handled with the others
    except ModuleNotFoundError as missing:
        package = (missing.name or "").partition(".")[0]
        if package not in ("click", "rich", "typer"):
            raise
        sys.exit(
            f"error: the command line needs the package {package}, which is not installed\n"
            f"  install it with: {install_command('cli')}\n"
            f"  or with the server: {install_command('server')}"
        )
    _cli.app(prog_name="tensorpost")


if __name__ == "__main__":
    main()
