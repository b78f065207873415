"""The check of grammars in a process of its own, which can be ended: llguidance has no limit of time or of depth.

A short grammar may take minutes, such as a number that is a multiple of a large one, or many patterns at once.
"""

from __future__ import annotations

import json
import subprocess
import sys
from threading import Lock
from typing import Any, Final, final

_SCRIPT: Final = """
import json, resource, sys, threading, time
from llguidance import LLMatcher, LLParserLimits, LLTokenizer

def check():
    tokens = LLTokenizer("byte")
    for line in sys.stdin:
        source, given, seconds = json.loads(line)
        hard = resource.getrlimit(resource.RLIMIT_CPU)[1]
        resource.setrlimit(resource.RLIMIT_CPU, (int(time.process_time() + seconds) + 1, hard))
        limits = LLParserLimits(**given)
        found = LLMatcher.validate_grammar_with_warnings(source, limits=limits)
        if not found[0]:
            LLMatcher(tokens, source, log_level=0, limits=limits).compute_bitmask()  # for its time only
        print(json.dumps(found[1][0] if found[0] else None), flush=True)

threading.stack_size(1 << 21)  # what compiles it later has four times as much
print("ready", flush=True)
thread = threading.Thread(target=check)
thread.start()
thread.join()
"""


@final
class Checker:
    """Checks grammars, one at a time, in a process that is started for the first one.

    Args:
        limits: arguments of ``LLParserLimits``.
        seconds: a check that computes longer is ended. Other work on the machine does not count.
    """

    def __init__(self, limits: dict[str, Any], *, seconds: int = 1) -> None:
        self._limits = limits
        self._seconds = seconds
        self._lock = Lock()
        self._process: subprocess.Popen[str] | None = None

    def error(self, source: str) -> str | None:
        """Why a grammar cannot be used; None if it can."""
        with self._lock:
            process = self._started()
            assert process.stdin is not None
            assert process.stdout is not None
            try:
                process.stdin.write(json.dumps([source, self._limits, self._seconds]) + "\n")
                process.stdin.flush()
                answer = process.stdout.readline()
            except BrokenPipeError:
                answer = ""
            if not answer:
                self._process = None
                process.kill()
                process.communicate()
                return f"it is nested too deeply, or its check takes longer than {self._seconds} s"
        reason: str | None = json.loads(answer)
        return reason

    def _started(self) -> subprocess.Popen[str]:
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _SCRIPT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                encoding="utf-8",
            )
            assert self._process.stdout is not None
            self._process.stdout.readline()
        return self._process
