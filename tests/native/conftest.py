"""Instruction sets of the native engine."""

import pytest

from draftwood.native.library import instruction_sets, library


@pytest.fixture(params=instruction_sets())
def isa(request):
    """Each instruction set of this processor in turn."""
    library().use(request.param.encode())
    yield request.param
    library().use(instruction_sets()[-1].encode())
