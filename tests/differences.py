"""Differences that a NaN cannot pass: ``max(0.0, nan)`` is 0.0, so tests compare floats with nothing else."""

import math


def difference(found, wanted):
    """The largest absolute difference of two tensors; equal infinities do not differ.

    Raises:
        AssertionError: a NaN among them.
    """
    gaps = (found.double() - wanted.double()).abs().masked_fill(found == wanted, 0.0)
    return largest([float(gaps.detach().max())])


def largest(values):
    """The largest absolute value.

    Raises:
        AssertionError: a NaN among them.
    """
    sizes = [abs(float(value)) for value in values]
    assert not any(map(math.isnan, sizes)), "a NaN among the differences"
    return max(sizes)
