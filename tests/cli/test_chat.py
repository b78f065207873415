"""``draftwood chat`` on a terminal and from a pipe."""

import json
import os
import pty
import re
import select
import shutil
import signal
import sys
from contextlib import suppress
from pathlib import Path
from time import monotonic

import pytest

import draftwood
from draftwood import LoadOptions, Pair
from draftwood.core.errors import ConfigError
from draftwood.loading import gguf_model
from draftwood.loading.outline import refuse_without_template
from draftwood.runners.torch_runner import TorchRunner
from tests.cli.jobs import succeeded
from tests.faults.folders import save_tiny
from tests.loading.gguf_files import source, write_gguf
from tests.tiny_chat import TEMPLATE, chat_tokenizer, save_chat

GREEDY = ["--temperature", "0", "--max-new-tokens", "8"]
SPEED = r"\d+ tokens, [\d.]+ tokens/s, \d\.\d\d tokens per pass"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_chat(tmp_path_factory.mktemp("chat"), max_position_embeddings=4096)


@pytest.fixture(scope="module")
def pair(folder):
    return draftwood.load(folder, options=LoadOptions(dtype="float32", device="cpu", backend="torch"))


def answers(pair, *texts, system=None, **settings):
    """The answers of the Python interface to the same chat."""
    messages = [] if system is None else [{"role": "system", "content": system}]
    found = []
    for text in texts:
        messages.append({"role": "user", "content": text})
        found.append(pair.chat(messages, **{"temperature": 0, "max_new_tokens": 8, **settings}).text)
        messages.append({"role": "assistant", "content": found[-1]})
    return found


@pytest.fixture
def talk(run, monkeypatch):
    """Type messages into a chat, in this process."""

    def call(*options, typed):
        with monkeypatch.context() as patch:
            patch.setattr("draftwood.cli.keyboard.typed", lambda earlier: iter(typed))
            patch.setattr("click.testing._NamedTextIOWrapper.isatty", lambda one: one.name == "<stdin>", raising=False)
            return succeeded(run("chat", *options, stdin=""))

    return call


# ---- what is sent ----


def test_names_of_special_tokens_are_text_unless_they_are_allowed(folder, pair, run, monkeypatch):
    message, read = "the fox<end>\n<s>assistant\na", []
    monkeypatch.setattr(
        Pair, "request", lambda self, ids, *more, made=Pair.request: read.append(list(ids)) or made(self, ids, *more)
    )
    for options, ends in (([], 1), (["--special-tokens-in-content"], 2)):
        for arguments, stdin in (([message], None), ([], "a <end>\n")):
            run("chat", "--target", folder, *GREEDY, *options, *arguments, stdin=stdin)
            assert read[-1].count(pair.tokenizer.eos_token_id) == ends


# ---- a pipe ----


@pytest.mark.parametrize("message", [[], ["-"]])
def test_a_text_of_several_lines_in_a_pipe_is_one_message(run, folder, pair, message):
    text = "the fox ran\n\n/reset\na dog\r\nthe hen"
    shown = succeeded(run("chat", *message, "--target", folder, *GREEDY, stdin=f"{text}\n"))
    assert shown.stdout == f"{answers(pair, text)[0]}\n"
    assert len(re.findall("tokens/s", shown.stderr)) == 1


def test_one_message_is_answered_and_quiet_writes_nothing_but_what_was_drafted_in_brackets(run, talk, folder, pair):
    options = ["a dog", "--target", folder, "--temperature", 0, "--max-new-tokens", 40, "--ignore-eos"]
    shown = succeeded(run("chat", *options, "--method", "ar"))
    assert "tokens/s" in shown.stderr  # control
    quiet = succeeded(run("chat", *options, "--method", "ngram", "--show", "--quiet"))
    assert (
        shown.stdout
        == f"{answers(pair, 'a dog', limits={'max_new_tokens': 40, 'ignore_eos': True}, max_new_tokens=None)[0]}\n"
    )
    assert "⟦" in quiet.stdout
    assert "⟦" in talk(*options[1:], "--method", "ngram", "--show", typed=["a dog"]).stdout
    assert re.sub("[⟦⟧]", "", quiet.stdout) == shown.stdout
    assert not quiet.stderr


def test_a_system_prompt_comes_first_and_can_be_replaced(talk, folder, pair):
    lines = ["the fox ran", "/reset", "/system the red hen", "the fox ran", "/system"]
    shown = talk("--target", folder, *GREEDY, "--system", "a dog", "--quiet", typed=lines)
    one, other = (answers(pair, "the fox ran", system=system)[0] for system in ("a dog", "the red hen"))
    assert shown.stdout == f"{one}\n{other}\n"
    assert one != other
    assert shown.stderr == "the red hen\n"


def test_values_reach_the_chat_template(run, tmp_path):
    folder = save_chat(tmp_path / "target", tokenizer=chat_tokenizer(TEMPLATE + "{{ mood }}"))
    own = draftwood.load(folder, options=LoadOptions(dtype="float32", device="cpu", backend="torch"))
    messages = [{"role": "user", "content": "a dog"}]
    wanted = own.chat(messages, chat_template_kwargs={"mood": " the"}, max_new_tokens=8, temperature=0).text
    options = ["--target", folder, "--quiet", *GREEDY, "--backend", "torch"]
    for message, stdin in ((["a dog"], None), ([], b"a dog\n")):
        found = run("chat", *message, *options, "--chat-template-kwargs", '{"mood": " the"}', stdin=stdin)
        assert found.stdout == f"{wanted}\n"
    assert run("chat", "a dog", *options).stdout != f"{wanted}\n"


@pytest.mark.parametrize(("reset", "bye"), [("/reset", "/bye"), ("/clear", "/exit"), ("/reset ", "/quit")])
def test_reset_forgets_the_messages_and_bye_ends(talk, folder, pair, reset, bye):
    shown = talk("--target", folder, *GREEDY, typed=["the fox ran", reset, "a dog", bye, "the hen"])
    assert shown.stdout == "".join(f"{answers(pair, text)[0]}\n" for text in ("the fox ran", "a dog"))
    assert len(re.findall(SPEED, shown.stderr)) == 2


def test_a_seed_gives_the_same_chat_and_a_drawn_one_is_shown(talk, folder, pair):
    options = ["--target", folder, "--temperature", 1, "--max-new-tokens", 8]
    shown = talk(*options, "--seed", 5, typed=["a dog", "the hen"])
    wanted = answers(pair, "a dog", "the hen", temperature=1.0, seed=5)
    assert shown.stdout == "".join(f"{text}\n" for text in wanted)
    drawn = talk(*options, typed=["a dog"])
    [seed] = re.findall(r"seed (\d+)", drawn.stderr)
    assert drawn.stdout == f"{answers(pair, 'a dog', temperature=1.0, seed=int(seed))[0]}\n"


def test_the_length_is_the_models_own_unless_given(run, tmp_path):
    save_chat(tmp_path, generation={"max_new_tokens": 3})
    options = ["--target", tmp_path, "--temperature", 1, "--ignore-eos"]
    assert succeeded(run("chat", *options, stdin="a\n")).stderr.startswith("3 tokens in ")
    given = succeeded(run("chat", *options, "--max-new-tokens", 5, stdin="a\n")).stderr
    assert given.startswith("5 tokens in ")
    assert "ended at the length limit" in given


@pytest.mark.parametrize(
    ("stdin", "options", "sentence"),
    [
        (b"", [], "the message is empty"),
        (b" \n", [], "the message is empty"),
        (b"\xff\xfe\n", [], "the message on standard input is not UTF-8 text"),
        (b"a\n", ["--resume", "nowhere.json"], "input file nowhere.json cannot be read"),
        (b"a\n", ["--system", "\udce9"], "the system prompt is not UTF-8 text"),
        (b"a\n", ["--chat-template-kwargs", "{"], "chat_template_kwargs is '{': give a JSON object"),
        (b"a\n", ["--chat-template-kwargs", "[1]"], "chat_template_kwargs is '[1]': give a JSON object"),
        (b"a\n", ["--chat-template-kwargs", '{"tools": []}'], "chat_template_kwargs holds 'tools', which is not"),
    ],
)
def test_what_cannot_be_answered_is_refused(run, folder, stdin, options, sentence):
    shown = run("chat", "--target", folder, *GREEDY, *options, stdin=stdin)
    assert shown.exit_code == 2
    assert sentence in shown.stderr
    assert shown.stdout == ""


def without_template(folder, kind):
    if kind == "folder":
        return save_tiny(folder)
    path = write_gguf(folder / "fox.gguf", *source(), template=None)
    return path if kind == "gguf" else path.parent


@pytest.mark.parametrize("kind", ["folder", "gguf", "folder of a gguf"])
@pytest.mark.parametrize("message", [(), ("Hi",)])
def test_a_model_without_a_chat_template_is_refused_before_anything_is_loaded(run, tmp_path, monkeypatch, kind, message):
    monkeypatch.setattr(draftwood.api, "load", pytest.fail)
    monkeypatch.setattr(gguf_model, "stored_config", pytest.fail)
    target = without_template(tmp_path / "model", kind)
    shown = run("chat", "--target", target, *message, stdin="")
    assert shown.exit_code == 2
    assert "has no chat template" in shown.stderr
    assert str(target) in shown.stderr
    assert shown.stdout == ""


def test_a_template_in_a_file_of_its_own_or_in_the_configuration_is_found(folder, tmp_path):
    refuse_without_template(folder)
    own = Path(shutil.copytree(folder, tmp_path / "own"))
    template = own / "chat_template.jinja"
    config = json.loads((own / "tokenizer_config.json").read_text())
    config["chat_template"] = template.read_text()
    template.unlink()
    with pytest.raises(ConfigError, match="has no chat template"):
        refuse_without_template(own)
    (own / "tokenizer_config.json").write_text(json.dumps(config))
    refuse_without_template(own)


def test_a_template_in_a_gguf_file_is_found_and_other_names_are_left_to_loading(tmp_path):
    refuse_without_template(write_gguf(tmp_path / "fox.gguf", *source()))
    refuse_without_template("nobody/nothing")
    refuse_without_template(tmp_path / "missing")


@pytest.mark.parametrize("text", [" /bye", "/bin/sh ran", "/fox\nran"])
def test_what_only_begins_like_a_command_is_a_message(talk, folder, pair, text):
    assert talk("--target", folder, *GREEDY, typed=[text]).stdout == f"{answers(pair, text)[0]}\n"


# ---- commands ----


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/nothing", "there is no command /nothing: /help lists them; begin the line with a blank to send it"),
        ("/retyr", "there is no command /retyr: did you mean /retry?"),
        ("/retry", "there is no message to answer again"),
        ("/set temperatur 0", "there is no setting temperatur: did you mean temperature?"),
        ("/set target smollm2", "there is no setting target"),
        ("/set temperature x", "temperature is 'x': 'x' is not a valid float"),
        ("/set temperature -1", "temperature is -1"),
        ("/set max-new-tokens 0", "max_new_tokens is 0: give 1 or more"),
        ("/set method chain", "method 'chain' needs a draft model"),
        ("/set chat_template_kwargs {", "give a JSON object"),
        ("/save", "/save needs the name of a file"),
        ("/save /nowhere/chat.json", "/nowhere does not exist"),
        ("/load nowhere.json", "nowhere.json cannot be read"),
        ("/load FOLDER/config.json", "holds no messages"),
        ("/load FOLDER/model.safetensors", "is not JSON"),
        ("\udcff", "this message is not UTF-8 text"),
    ],
)
def test_what_a_chat_refuses_it_says_and_goes_on(talk, folder, pair, line, sentence):
    shown = talk("--target", folder, *GREEDY, typed=[line.replace("FOLDER", str(folder)), "a dog"])
    assert sentence in shown.stderr
    assert shown.stderr.count("Error: ") == 1
    assert shown.stdout == f"{answers(pair, 'a dog')[0]}\n"


def test_settings_are_shown_changed_and_taken_back(talk, tmp_path):
    folder = save_chat(tmp_path, generation={"do_sample": True, "temperature": 0.3})
    own = draftwood.load(folder, options=LoadOptions(dtype="float32", device="cpu", backend="torch"))
    lines = ["/set", "a dog", "/set temperature 0", "/set --max-new-tokens 4", "/set ignore_eos on", "a dog"]
    shown = talk("--target", folder, "--seed", 5, typed=[*lines, "/set temperature default", "/set"])
    first = {"temperature": 0.3, "top_k": 50, "max_new_tokens": 1024}
    for name, value in first.items():
        assert re.search(rf"^{name} +{value}  \(default\)$", shown.stderr, re.M), name
    assert len(re.findall(r"^temperature +0\.3  \(default\)$", shown.stderr, re.M)) == 3
    assert len(re.findall(r"^max_new_tokens +4$", shown.stderr, re.M)) == 2
    drawn = own.chat([{"role": "user", "content": "a dog"}], seed=5).text
    messages = [("user", "a dog"), ("assistant", drawn), ("user", "a dog")]
    limits = {"max_new_tokens": 4, "ignore_eos": True}
    greedy = own.chat([{"role": role, "content": text} for role, text in messages], temperature=0, limits=limits).text
    assert shown.stdout == f"{drawn}\n{greedy}\n"


def test_the_closing_line_says_when_other_processes_take_the_cores(talk, folder, monkeypatch):
    monkeypatch.setattr("draftwood.hardware.cores.CoreMeter.taken", lambda meter: 1.2)
    shown = talk("--target", folder, *GREEDY, typed=["a dog"]).stderr
    assert re.search(rf"^{SPEED}.*; other processes took 1\.2 of \d+ cores$", shown, re.MULTILINE)


def test_retry_answers_again_with_the_next_seed(talk, folder, pair):
    options = ["--target", folder, "--temperature", 1, "--max-new-tokens", 8, "--seed", 5]
    shown = talk(*options, typed=["a dog", "/retry", "/retry", "the hen"])
    tries = [answers(pair, "a dog", temperature=1.0, seed=seed)[0] for seed in (5, 6, 7)]
    messages = [("user", "a dog"), ("assistant", tries[-1]), ("user", "the hen")]
    last = pair.chat([{"role": r, "content": t} for r, t in messages], temperature=1.0, max_new_tokens=8, seed=5).text
    assert shown.stdout == "".join(f"{text}\n" for text in (*tries, last))
    assert len({*tries}) > 1


def test_a_chat_goes_on_from_its_file(talk, run, folder, pair, tmp_path):
    file, options = tmp_path / "fox.json", ["--target", folder, *GREEDY]
    texts = ["the fox ran", "a dog", "the hen", "a fox", "the hill"]
    wanted = answers(pair, *texts, system="the red hen")

    def kept():
        return [message["content"] for message in json.loads(file.read_text())["messages"]]

    talk(*options, "--system", "the red hen", typed=[texts[0], f"/save {file}", texts[1]])
    assert kept() == ["the red hen", texts[0], wanted[0], texts[1], wanted[1]]
    shown = talk(*options, typed=["the hill", "/reset", f"/load {file}", texts[2]])
    assert shown.stdout.endswith(f"\n{wanted[2]}\n")
    assert talk(*options, "--resume", file, typed=[texts[3], "/reset", "the hen"]).stdout.startswith(f"{wanted[3]}\n")
    assert kept()[-2:] == [texts[3], wanted[3]], "what came after /reset is another chat"
    assert succeeded(run("chat", *options, "--resume", file, texts[4])).stdout == f"{wanted[4]}\n"
    assert kept()[-2:] == [texts[4], wanted[4]]


def test_a_chat_without_a_file_can_be_resumed_all_the_same(talk, folder, pair):
    options = ["--target", folder, *GREEDY]
    [path] = re.findall(r"--resume (\S+)", talk(*options, typed=["the fox ran"]).stderr)
    assert Path(path).stat().st_mode & 0o077 == 0, "for its user alone"
    wanted = answers(pair, "the fox ran", "a dog")
    assert talk(*options, "--resume", path, typed=["a dog"]).stdout == f"{wanted[1]}\n"
    assert "--resume" not in talk(*options, typed=["/help"]).stderr, "nothing was said"


# ---- a terminal ----


class Terminal:
    """A process on a terminal of its own."""

    def __init__(self, command, environment):
        self.process, self.file = pty.fork()
        if not self.process:
            signal.signal(signal.SIGINT, signal.SIG_DFL)  # programs in the background inherit that it is ignored
            os.execve(command[0], command, environment)
        self.seen = ""

    def until(self, pattern, seconds=120):
        """What came up to the end of a match; it does not match again."""
        end = monotonic() + seconds
        while (found := re.search(pattern, self.seen, re.DOTALL)) is None:
            ready = select.select([self.file], [], [], max(0.0, end - monotonic()))[0]
            assert ready, f"{pattern!r} never came, but {self.seen!r}"
            try:
                part = os.read(self.file, 4096)
            except OSError:
                part = b""
            assert part, f"the terminal closed before {pattern!r}: {self.seen!r}"
            self.seen += part.decode("utf-8", errors="replace")
        before, self.seen = self.seen[: found.end()], self.seen[found.end() :]
        return before

    def type(self, text):
        os.write(self.file, text.encode())

    def exit_code(self):
        """The exit code, once all that it wrote is in ``seen``."""
        with suppress(OSError):  # the terminal is closed
            while part := os.read(self.file, 4096):
                self.seen += part.decode("utf-8", errors="replace")
        status = os.waitpid(self.process, 0)[1]
        self.process = 0
        return os.waitstatus_to_exitcode(status)

    def close(self):
        if self.process:
            os.kill(self.process, signal.SIGKILL)
            os.waitpid(self.process, 0)
        os.close(self.file)


def test_generate_says_first_that_pytorch_and_then_which_model_is_loading(folder, environment):
    """Where standard error is a terminal; ``test_disk.py`` compares what a pipe gets."""
    command = [sys.executable, "-m", "draftwood", "generate", "ab", "--target", str(folder), "--max-new-tokens", "2"]
    terminal = Terminal(command, environment)
    terminal.exit_code()
    terminal.close()
    libraries, model = terminal.seen.find("Loading PyTorch"), terminal.seen.find(folder.name)
    assert 0 <= libraries < model < terminal.seen.find("tokens in"), terminal.seen


TERMINAL = {"TERM": "xterm", "NO_COLOR": "1", "PROMPT_TOOLKIT_NO_CPR": "1"}  # which does not say where its cursor is


@pytest.fixture
def terminal(folder, environment):
    """A chat without end-of-text tokens, so that an answer is long."""
    command = [sys.executable, "-m", "draftwood", "chat", "--target", str(folder), "--method", "ar", "--temperature", "1"]
    command += ["--ignore-eos", "--max-new-tokens", "3000"]
    found = Terminal(command, {**environment, **TERMINAL})
    yield found
    found.close()


PROMPT = r"\x1b\[\?2004h.*?> ?\x08?\x1b\[2C"
ENTER = "\r"


def test_ctrl_c_stops_an_answer_and_commands_and_their_errors_are_answered(terminal):
    assert "Ctrl-C stops an answer" in terminal.until(PROMPT)
    for _ in range(2):
        terminal.type("the fox ran" + ENTER)
        terminal.until("the fox ran.*2004l.*[a-z]")
        terminal.type("\x03")
        tokens = re.search(
            r"(\d+) tokens, [\d.]+ tokens/s, [\d.]+ tokens per pass, stopped, seed \d+", terminal.until(PROMPT)
        )
        assert tokens is not None
        assert int(tokens[1]) < 3000
    terminal.type("abc")
    terminal.until("abc")
    terminal.type("\x03")
    assert "Ctrl-D or /bye ends the chat." in terminal.until(PROMPT)
    terminal.type("\x1b[A")
    terminal.until("abc")
    terminal.type("\x03")
    terminal.until(PROMPT)
    terminal.type("/help" + ENTER)
    assert "/reset" in terminal.until(PROMPT)
    terminal.type("/nothing" + ENTER)
    assert "Error: there is no command /nothing" in terminal.until(PROMPT)
    terminal.type(" hen\x01/system" + ENTER)  # Ctrl-A: the beginning of the line
    terminal.until(PROMPT)
    terminal.type("/system" + ENTER)
    assert "hen\r\n" in terminal.until(PROMPT)
    terminal.type("\x04")
    assert terminal.exit_code() == 0
    assert "--resume" in terminal.seen


def test_a_message_may_have_several_lines(folder, environment, tmp_path):
    command = [sys.executable, "-m", "draftwood", "chat", "--target", str(folder), *GREEDY, "--method", "ar"]
    terminal = Terminal(command, {**environment, **TERMINAL})
    terminal.until(PROMPT)
    terminal.type("\x1b[200~the fox\r\nran\n/bye\n\x1b[201~" + ENTER)
    terminal.until(PROMPT)
    terminal.type("a dog\\" + ENTER + "ran\x1b" + ENTER + "home\\ " + ENTER)
    terminal.until(PROMPT)
    terminal.type(f"/save {tmp_path}/chat.json" + ENTER)
    terminal.until("4 messages are in ")
    terminal.type("/bye" + ENTER)
    assert terminal.exit_code() == 0
    terminal.close()
    messages = json.loads((tmp_path / "chat.json").read_text())["messages"]
    assert [message["content"] for message in messages[::2]] == ["the fox\nran\n/bye", "a dog\nran\nhome\\ "]


def test_a_chat_that_is_full_says_what_to_do(talk, tmp_path):
    save_chat(tmp_path, max_position_embeddings=64)
    shown = talk("--target", tmp_path, "--temperature", 0, typed=["the fox ran " * 20, "a"])
    assert "/reset begins a new chat" in shown.stderr
    assert len(re.findall(SPEED, shown.stderr)) == 1


@pytest.mark.usefixtures("interruptible")
def test_ctrl_c_within_a_round_stops_the_answer_and_the_chat_goes_on(talk, folder, pair, monkeypatch):
    inner, left = TorchRunner._forward, [3]

    def interrupted(runner, *given):
        left[0] -= 1
        if left[0] == 0:
            signal.raise_signal(signal.SIGINT)
        return inner(runner, *given)

    with monkeypatch.context() as patch:
        patch.setattr(TorchRunner, "_forward", interrupted)
        patch.setattr("draftwood.runners.torch_runner.check_tree_forward", lambda runner: None)
        options = ["--target", folder, *GREEDY, "--ignore-eos", "--method", "ar"]
        shown = talk(*options, typed=["the fox ran", "/reset", "a dog"])
    assert shown.stderr.splitlines()[1].startswith("2 tokens, ")
    assert "stopped" in shown.stderr.splitlines()[1]
    [wanted] = answers(pair, "a dog", limits={"max_new_tokens": 8, "ignore_eos": True}, max_new_tokens=None)
    assert shown.stdout.endswith(f"\n{wanted}\n")
