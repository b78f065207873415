"""Files of chats: one JSON object with ``messages``, as a request to ``/v1/chat/completions`` has them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from draftwood.core.errors import ConfigError
from draftwood.core.files import check_readable, check_writable, replacing
from draftwood.hardware.machine import cache_folder


def last_chat() -> Path:
    """The file of a chat that has none of its own, until the next one."""
    return cache_folder() / "last-chat.json"


def read_chat(path: Path) -> list[dict[str, Any]]:
    """The messages in a file; they are not checked.

    Raises:
        ConfigError: the file cannot be read, or holds no list of messages.
    """
    check_readable(path)
    wanted = 'give a file that /save wrote: {"messages": [{"role": "user", "content": "Hello"}]}'
    try:
        found = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{path} is not JSON ({error}): {wanted}") from error
    messages = found.get("messages") if isinstance(found, dict) else None
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise ConfigError(f"{path} holds no messages: {wanted}")
    return messages


def write_chat(path: Path, messages: Sequence[dict[str, Any]], mode: int = 0o666) -> None:
    """Replace a file by these messages; ``mode`` is that of the file, as of ``open``.

    Raises:
        ConfigError: no such folder, or no permission.
        OSError: from a full disk and the like.
    """
    check_writable(path, "file")
    with replacing(path) as part:
        part.touch(mode)
        part.write_text(json.dumps({"messages": list(messages)}, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def keep_chat(messages: Sequence[dict[str, Any]]) -> None:
    """Write a chat that has no file of its own, readable for its user alone. A cache that cannot be written is no error."""
    path = last_chat()
    with suppress(OSError, ConfigError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_chat(path, messages, 0o600)
