"""One message and its answer, as for one prompt of ``draftwood generate``."""

from __future__ import annotations

from draftwood.cli.chat_settings import ChatDisplay, before, limits_of
from draftwood.cli.settings import DisplayOptions, Settings
from draftwood.cli.single import OneText, write_one
from draftwood.core.checks import is_unicode
from draftwood.core.errors import ConfigError
from draftwood.core.settings import Method


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
    pair, decoder, sampling = settings.open()
    pair.special_tokens_in_content = display.special_tokens_in_content
    messages = [*before(display.system), {"role": "user", "content": message}]
    plain = pair.decoder(Method(method="ar"), temperature=sampling.temperature) if display.compare else None
    write_one(
        OneText(
            decoder=decoder,
            plain=plain,
            request=pair.chat_request(
                messages, limits_of(pair, settings), settings.seed, chat_template_kwargs=display.variables
            ),
            sampling=sampling,
            display=DisplayOptions(show=display.show, compare=display.compare),
            shown_before="",
            head={},
            method=pair.method(settings.method, temperature=sampling.temperature),
            dtype=str(pair.model.dtype),
            quiet=display.quiet,
        )
    )
