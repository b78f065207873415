"""Progress where standard error is no terminal."""

from draftwood.cli.progress import Lines


def test_lines_say_what_is_left_and_are_few(capsys):
    now = [0.0]
    lines = Lines("check", clock=lambda: now[0])
    for step in range(1, 201):  # one second each
        now[0] = float(step)
        lines("texts", step / 200)
    written = capsys.readouterr().err.splitlines()
    assert written[0] == "check: texts, 2% done, about 3 min left"
    assert written[-1] == "check: texts, 93% done, about 14 s left"
    assert len(written) == 10


def test_a_short_command_writes_no_progress(capsys):
    now = [0.0]
    lines = Lines("check", clock=lambda: now[0])
    for step in range(1, 4):
        now[0] = step
        lines("texts", step / 4)
    lines("texts", 0.0)
    assert not capsys.readouterr().err
