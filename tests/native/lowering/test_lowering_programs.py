"""Native code == interpreter on random tile programs, lifted whole and cut into regions.

NEURON_EAGER_TEST_PROGRAMS sets how many are made (a sweep uses 5000).
"""
from __future__ import annotations

import os
import random

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from neuron_eager.native import compile as native
from neuron_eager.native.values import Bail

COUNT = int(os.environ.get("NEURON_EAGER_TEST_PROGRAMS", "40"))


@settings(max_examples=COUNT, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_random_program(programs, rng):
    made = programs.make(rng)
    if made is not None:
        assert not programs.disagreement(*made)


@settings(max_examples=COUNT // 2, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.randoms(use_true_random=False))
def test_random_program_in_regions(programs, rng):
    made = programs.make(rng)
    if made is not None:
        with whole_refused():
            assert not programs.disagreement(*made)


@pytest.mark.slow
@pytest.mark.parametrize("block", range(50))
def test_many_programs(programs, block):
    """5,000 programs; most of them must have a native form."""
    unsupported = total = 0
    for seed in range(100 * block, 100 * block + 100):
        made = programs.make(random.Random(seed))
        if made is not None:
            found = programs.disagreement(*made)
            assert not found, (seed, found)
            total, unsupported = total + 1, unsupported + (found is None)
    assert unsupported <= total * 0.05


class whole_refused:
    """No program is lifted whole for the duration of a block."""

    def __enter__(self):
        self.before = native.lower_whole

        def refuse(program):
            raise Bail("regions are wanted")
        native.lower_whole = refuse

    def __exit__(self, *exc):
        native.lower_whole = self.before
