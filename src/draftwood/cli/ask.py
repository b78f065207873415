"""One message and its answer, as for one prompt of ``draftwood generate``."""

from __future__ import annotations

from draftwood.api import Pair
from draftwood.cli.chat_settings import ChatDisplay, before
from draftwood.cli.settings import Opened, Settings
from draftwood.cli.single import OneText, write_one
from draftwood.core.checks import is_unicode
from draftwood.core.errors import ConfigError


def ask(settings: Settings, display: ChatDisplay, message: str) -> None:
    """Answer a message and print the answer.

    Raises:
        ConfigError: a blank message, or one that is no Unicode text.
        DraftwoodError: what :meth:`draftwood.Pair.chat` raises.
    """
    if not is_unicode(message):
        raise ConfigError("the message is not UTF-8 text: convert it, for example with iconv -t utf-8")
    if not message.strip():
        raise ConfigError("the message is empty: write one, or leave it out to talk line by line")
    opened: Opened[Pair] = settings.open()
    pair = opened.session
    pair.special_tokens_in_content = display.special_tokens_in_content
    messages = [*before(display.system), {"role": "user", "content": message}]
    request = pair.chat_request(
        messages, settings.limits_from(pair.chat_limits), settings.seed, chat_template_kwargs=display.variables
    )
    write_one(OneText(opened=opened, request=request, display=settings.display, quiet=display.quiet))
