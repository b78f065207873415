"""``draftwood serve``."""

from __future__ import annotations

import tomllib
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, final

import click

from draftwood.cli.adapt import in_background, is_new
from draftwood.cli.options import Sectioned, Sections, pick
from draftwood.cli.progress import loading_libraries
from draftwood.cli.settings import Models, check_fit, load_session
from draftwood.core.errors import ConfigError, needs
from draftwood.core.settings import LoadOptions, Method
from draftwood.loading.names import check_models
from draftwood.serve.http.log import start_log
from draftwood.serve.http.settings import ServeOptions, Targets, read_keys

SECTIONS: Sections = {
    "Server": (ServeOptions,),
    "Models": (Targets, LoadOptions),
    "Drafting": (Method,),
}
VARIABLES: Final = {name: f"DRAFTWOOD_{name.upper()}" for name in ("target", "host", "port", "config")}


def _configured(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    """Take the options of a file as defaults: the command line and the environment have the last word."""
    if path is None:
        return
    try:
        found = {name.replace("-", "_"): value for name, value in tomllib.loads(path.read_text(encoding="utf-8")).items()}
    except (OSError, ValueError) as error:
        raise ConfigError(f"--config {path} cannot be read: {error}; give a file of TOML") from error
    options = {option.name: option for option in ctx.command.params if option.expose_value}
    for name, value in found.items():
        if (option := options.get(name)) is None:
            raise ConfigError(f"{path} has the key {name!r}: its keys are options of draftwood serve, such as port = 8000")
        if isinstance(value, dict) or (isinstance(value, list) and not option.multiple):
            wanted = "a text, or a list of texts" if option.multiple else "one value"
            raise ConfigError(f"{path} has {name} = {value!r}: give {wanted}")
        found[name] = [value] if option.multiple and not isinstance(value, list) else value
    ctx.default_map = found


def _say(sentence: str) -> None:
    click.echo(sentence, err=True)


@final
class _Commas(click.types.StringParamType):
    """A text of which a variable of the environment may hold several, with commas between them."""

    envvar_list_splitter = ","


@click.command(name="serve", cls=Sectioned, sections=SECTIONS, leave_out=("beta", "tau"))
@click.option(
    "--config",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=_configured,
    help="file of TOML whose keys are these options, such as port = 8000",
)
def command(**options: Any) -> None:
    """Serve models over HTTP with OpenAI's interface: chats, completions, streams.

    Requests share a model: their texts are written together, each with its own settings, and none depends on the others.
    Of several targets each is loaded when a request names it, and goes when none has come for --keep-alive.
    SIGTERM or Ctrl-C ends the server in order: running texts get --drain seconds to end; a second signal ends them as they
    are, and a third one waits for nothing.
    """
    settings, given, method = pick(ServeOptions, options), pick(Targets, options), pick(Method, options)
    loading = pick(LoadOptions, options)
    keys = read_keys(settings.api_key_file)
    models = given.models
    for target, draft in models.values():
        check_fit(Models(target=target, draft=draft), method, 1.0)
        check_models("language", target, draft)
    if given.several and (settings.name or settings.adapt):
        raise ConfigError("there are several targets: name each as --target NAME=TARGET, without --name and --adapt")
    learnt = settings.adapt if settings.adapt and is_new(target, draft, settings.adapt, _say) else None
    try:
        with loading_libraries():
            from draftwood.loading.models import quiet_loading
            from draftwood.serve.registry import Registry
            from draftwood.serve.run import serve
            from draftwood.serve.service import Service
    except ModuleNotFoundError as error:
        raise ConfigError(needs("the server", str(error.name), "serve")) from error
    if given.several:
        quiet_loading()
        registry = Registry(models, loading, settings, method)
    else:
        [name] = models
        pair = load_session("language", Models(target=target, draft=draft), loading)
        registry = Registry.of(Service(pair, settings, name=name, method=method))
    start_log(settings.log)
    with ExitStack() as stack:
        if learnt is not None:
            stack.enter_context(in_background(target, learnt, _say))
        serve(registry, keys, _say)


for _option in command.params:
    _option.envvar = VARIABLES.get(str(_option.name))
    if _option.name == "target":
        _option.type = _Commas()
