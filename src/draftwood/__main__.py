"""``python -m draftwood``, and the entry point of the command ``draftwood``."""

from __future__ import annotations

import gc
import sys

_INTERRUPTED = 130  # exit status after Ctrl-C
_NEW = 100_000  # objects after which garbage is looked for: a start makes twice as many, which stay


def main() -> None:
    """Run the command line. Ctrl-C during its import ends it without a traceback."""
    gc.set_threshold(_NEW)
    try:
        from draftwood.cli import main as command

        command(prog_name="draftwood")
    except KeyboardInterrupt:
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
