"""What requests may choose of the server's drafting."""

from __future__ import annotations

from dataclasses import asdict
from typing import final

from draftwood.core.checks import short_repr
from draftwood.core.methods import METHODS
from draftwood.core.settings import Method
from draftwood.engine.pipeline import PLAIN
from draftwood.serve.errors import bad
from draftwood.serve.schemas import Speculative


@final
class Drafting:
    """The drafting of a server, which all texts share.

    Args:
        method: the server's method, without ``auto``.
    """

    def __init__(self, method: Method) -> None:
        self._method = method

    @property
    def methods(self) -> list[str]:
        """What ``speculative.method`` may be: the server's own, and plain decoding."""
        return list(dict.fromkeys([self._method.method, PLAIN]))

    @property
    def nodes(self) -> int | None:
        """The most nodes of a tree, of which a request may choose fewer; None without a draft."""
        spec, shape = METHODS[self._method.method], self._method.shape
        return self._method.nodes or (spec.nodes if shape is None else spec.parse(shape).nodes)

    def of(self, given: bool | Speculative | None) -> tuple[str | None, int | None]:
        """The method of a request's texts and the most nodes of their trees: None is the server's own.

        Raises:
            ApiError: what cannot be honoured.
        """
        if given is False:
            return PLAIN, None
        if not isinstance(given, Speculative):
            return None, None
        if given.nodes is not None and PLAIN in (given.method, self._method.method):
            why = f"method {PLAIN!r} drafts nothing: leave it out"
            raise bad(f"speculative.nodes is {given.nodes}, but {why}", param="speculative.nodes")
        if given.method == PLAIN:
            return PLAIN, None
        self._check_own(given)
        return None, given.nodes

    def _check_own(self, given: Speculative) -> None:
        """Refuse what all texts share, and is another one here."""
        own = asdict(self._method)
        for name in ("method", "verifier", "shape"):
            value = getattr(given, name)
            if value is not None and value not in (own[name], "auto"):
                raise bad(
                    f"speculative.{name} is {short_repr(value)}, but all texts of this server share "
                    f"{short_repr(own[name])}: leave it out, send false for plain decoding, or start another server",
                    param=f"speculative.{name}",
                )
