"""The command line. No torch work before a command runs."""

from __future__ import annotations

import click

from draftwood import __version__
from draftwood.cli.group import Commands


@click.group(
    cls=Commands,
    homes={
        "generate": ("draftwood.cli.generate:command", "Continue a prompt, or every prompt of a file."),
        "chat": ("draftwood.cli.chat:command", "Talk with a chat model."),
        "serve": ("draftwood.cli.serve:command", "Serve a model over HTTP, as OpenAI does."),
        "translate": ("draftwood.cli.translate:command", "Translate a text, or a file line by line."),
        "trace": ("draftwood.cli.trace:command", "Show every round of a text: trees, probabilities, verdicts."),
        "info": ("draftwood.cli.info:command", "Show versions, the device, profiles and methods."),
        "models": ("draftwood.cli.models:command", "List bundled pairs, short names and GGUF files."),
        "pull": ("draftwood.cli.models:pull", "Download a model from the hub."),
        "tune": ("draftwood.cli.tune:command", "Find the fastest method of a pair on this machine, and store it."),
        "check": ("draftwood.cli.check:command", "Test whether the output follows the target's distribution."),
        "ray": ("draftwood.cli.ray:group", "Serve or write texts with several processes, on a cluster of Ray."),
        "adapt": ("draftwood.cli.adapt:command", "Train a model's drafter further on your own texts."),
        "train": ("draftwood.cli.train:group", "Train a small language model, or a drafter for a model."),
    },
    elsewhere={
        "run": "'draftwood chat --target NAME' talks with a model, 'draftwood generate' continues a text",
        **dict.fromkeys(("list", "ls"), "'draftwood models' lists short names, and 'hf cache ls' downloaded models"),
        "ps": "A server says what it serves at GET /v1/models; 'draftwood serve' starts one",
        "rm": "'hf cache rm' removes downloaded models",
    },
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, prog_name="draftwood")
@click.option("--debug", is_flag=True, envvar="DRAFTWOOD_DEBUG", show_envvar=True, help="Show where an error came from.")
def main(debug: bool) -> None:
    """Faster text from Hugging Face language models, with exactly the model's own distribution.

    \b
    draftwood generate "Once upon a time"
    draftwood generate --compare --temperature 0 "Once upon a time"
    draftwood generate --input prompts.jsonl --output texts.jsonl
    draftwood chat
    draftwood translate "Wo ist der Bahnhof?"
    """
