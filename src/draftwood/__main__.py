"""``python -m draftwood``, and the entry point of the command ``draftwood``."""

from __future__ import annotations

import sys

_INTERRUPTED = 130  # exit status after Ctrl-C


def main() -> None:
    """Run the command line. Ctrl-C during its import ends it without a traceback."""
    try:
        import draftwood.hardware.cores  # noqa: F401  # it measures what other processes take from here on
        from draftwood.cli import main as command

        command(prog_name="draftwood")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
