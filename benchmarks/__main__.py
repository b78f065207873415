"""``python -m benchmarks``, from a checkout. Nothing heavy is imported before a benchmark runs."""

from __future__ import annotations

import click

from draftwood.cli.group import Commands


@click.group(
    cls=Commands,
    homes={
        "generate": ("benchmarks.generate:command", "Compare methods and other programs on the same prompts."),
        "clients": ("benchmarks.clients:command", "Run the examples of real clients against the server."),
        "never-slower": ("benchmarks.commands:never_slower", "Compare auto with plain decoding, text by text."),
        "cost": ("benchmarks.commands:cost", "Time forwards of the target."),
        "divergence": ("benchmarks.commands:divergence", "Measure what inputs of 8 bits change in a file's model."),
        "start": ("benchmarks.commands:start", "Measure time to the first token, and memory."),
        "edits": ("benchmarks.commands:edits", "Write files again with a renamed symbol, as agents edit."),
        "schemas": ("benchmarks.commands:schemas", "Hold grammars against JSON Schema's official test suite."),
        "serve-load": ("benchmarks.serving.commands:load", "Measure the server's speed and latencies under load."),
        "serve-soak": ("benchmarks.serving.commands:soak", "Account for many requests with clients that leave."),
        "serve-fuzz": ("benchmarks.serving.commands:fuzz", "Send bodies that are nearly right."),
        "serve-prefix": ("benchmarks.serving.commands:prefix", "Measure the second turn of a chat, and new chats."),
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
def main() -> None:
    """Measure Draftwood. Results go into a folder, as JSON and as a report; `draftwood tune` needs no checkout.

    `python -m benchmarks.gpu` checks and measures everything on a CUDA machine in one call.
    """


if __name__ == "__main__":
    main(prog_name="python -m benchmarks")
