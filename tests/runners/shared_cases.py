"""What a pair writes, in a process of its own or as rank 0 of several, which are started as ``torchrun`` starts them."""

import atexit
import json
import multiprocessing
import os
import socket
import sys
import time

import torch

import draftwood
from draftwood import Limits, LoadOptions, Method, Request
from draftwood.cli import main
from draftwood.core.errors import CacheError, ModelError
from draftwood.core.methods import METHODS
from draftwood.core.verifiers import VERIFIERS
from draftwood.loading import shared
from draftwood.runners.torch_runner import TorchRunner
from draftwood.sampling.settings import Sampling

PROMPTS = ["the fox", "a hen and a cow and", "an owl", "the the the a the the the a", "b"]
TOO_LARGE = 13  # a root that the broken process refuses
SOME = ("chain", "rsd-s", "adaptive")
CHAT = [{"role": "user", "content": "the fox"}]


def loaded(folder, draft="draft", **more):
    options = {"dtype": "float64", "backend": "torch", "profile": "none", "threads": 1, **more}
    return draftwood.load(folder / "target", folder / draft, options=LoadOptions(**options))


def texts(pair, names=METHODS):
    """Token ids by what made them."""
    found = {}
    for name, spec in METHODS.items():
        if name in names and spec.needs != "block":
            drawn = [one for one in spec.verifiers if not VERIFIERS[one].greedy_only]
            ways = [("auto", 0.0), *((verifier, 1.0) for verifier in drawn)]
            for verifier, temperature in ways:
                method = Method(method=name, verifier=verifier)
                made = pair.generate(PROMPTS[0], method=method, seed=3, temperature=temperature, max_new_tokens=7)
                found[f"{name} {verifier} {temperature}"] = made.token_ids
    for method in (Method(method="rsd-s", shape="2x3"), Method(method="shared-noise", nodes=6)):
        results = pair.generate(PROMPTS, method=method, seed=5, temperature=1.0, max_new_tokens=7)
        found[f"batch {method.method}"] = [one.token_ids for one in results]
    found |= come_and_go(pair)
    return found


def come_and_go(pair):
    """Rows that end at different times, and prompts that are read in parts while others go on; chats; a prompt's scores."""
    prompts = [pair.encode(text * (20 if i == 2 else 1)) for i, text in enumerate(PROMPTS)]
    requests = [Request(prompt=ids, seed=i, limits=Limits(max_new_tokens=3 + 4 * i)) for i, ids in enumerate(prompts)]
    decoder = pair.decoder(Method(method="chain", shape="3"), temperature=1.0)
    written = {}
    with decoder.batch(rows=2, chunk=8) as batch:
        for request in requests:
            batch.add(request, Sampling(temperature=1.0))
        while len(batch):
            for piece in batch.step():
                written.setdefault(piece.row, []).extend(piece.tokens)
    chat, answers = list(CHAT), []
    for _ in range(2):
        answers.append(pair.chat(chat, max_new_tokens=8, temperature=0.0, method="adaptive"))
        chat += [{"role": "assistant", "content": answers[-1].text}, *CHAT]
    scores = [one.logprob for one in pair.prompt_logprobs("a hen and a cow") if one is not None]
    try:
        pair.generate("the fox " * 300, max_new_tokens=4)
        refused = "nothing"
    except CacheError as error:
        refused = str(error)
    return {
        "rows": [written[row] for row in sorted(written)],
        "chats": [one.token_ids for one in answers],
        "scores": [round(score, 6) for score in scores],
        "refused": refused,
    }


def said(call):
    try:
        call()
    except ModelError as error:
        return str(error)
    return "nothing"


def lead(folder):
    """All cases; then errors, of which the last ends the other process."""
    options = {"backend": "auto", "tensor_parallel": True}
    found = {"load": said(lambda: loaded(folder, **options))}
    pair = loaded(folder, **options)
    found |= {"engine": pair.target.engine, "texts": texts(pair)}
    found["hidden"] = texts(loaded(folder, "hidden", **options), SOME)
    found["direct"] = said(lambda: pair.model(torch.tensor([[1, 2]])))
    ids = [1, 2, TOO_LARGE]
    found["broken"] = [said(lambda: pair.generate(ids, method="ar", max_new_tokens=2)) for _ in range(2)]
    print(json.dumps(found))


def follow(folder):
    """Fail in the first loading, and when a certain root comes."""
    load, extend, calls = shared._load_part, TorchRunner.extend, []

    def part(*arguments):
        calls.append(arguments)
        if len(calls) == 1:
            raise ModelError("no such file here")
        return load(*arguments)

    def refuse(self, tokens, *more):
        if int(tokens[0, 0]) == TOO_LARGE and tokens.shape[1] == 1 and len(self._rows.rows[0].tokens) == 3:
            raise MemoryError
        return extend(self, tokens, *more)

    shared._load_part, TorchRunner.extend = part, refuse
    loaded(folder, tensor_parallel=True, backend="auto")


class Started:
    """Two processes that call ``function(*arguments)``, or several; imports are done once for all."""

    def __init__(self, folder, function, *arguments, size=2):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__, "draftwood.cli.single"])
        named = {"WORLD_SIZE": str(size), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "OMP_NUM_THREADS": "1"}
        self.outputs = [folder / f"{rank}.out" for rank in range(size)]
        self.processes = [
            context.Process(
                target=_run, args=({**named, "RANK": str(rank), "LOCAL_RANK": str(rank)}, out, function, arguments)
            )
            for rank, out in enumerate(self.outputs)
        ]
        for process in self.processes:
            process.start()

    def wait(self, seconds):
        """Status, output and errors of each; the status of one that hangs is None."""
        end = time.monotonic() + seconds
        for process in self.processes:
            process.join(max(0.0, end - time.monotonic()))
        found = [process.exitcode for process in self.processes]
        for process in self.processes:
            process.kill()
        texts = [[path.with_suffix(kind).read_text("utf-8") for kind in (".out", ".err")] for path in self.outputs]
        return [(status, *both) for status, both in zip(found, texts, strict=True)]


def _run(environment, out, function, arguments):
    os.environ.update(environment)
    for number, kind in ((1, ".out"), (2, ".err")):
        file = out.with_suffix(kind).open("w")
        os.dup2(file.fileno(), number)
    sys.stdout, sys.stderr = open(1, "w"), open(2, "w")  # noqa: SIM115
    try:
        function(*arguments)
    finally:
        atexit._run_exitfuncs()
        sys.stdout.flush()


def command(*arguments):
    """The command line."""
    main(arguments, prog_name="draftwood")


def commands(lines):
    """Several command lines in turn."""
    for line in lines:
        main(line, standalone_mode=False)


def both(folder):
    """:func:`lead` or :func:`follow`."""
    (lead if os.environ["RANK"] == "0" else follow)(folder)
