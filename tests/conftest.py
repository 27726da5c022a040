"""Pytest, for the tests of exercises: each begins as if nothing had been answered."""

import sys

import pytest


@pytest.fixture(autouse=True)
def no_earlier_answers():
    exercises = sys.modules.get("tpviz.exercises")
    if exercises is not None:
        exercises._wrong_answers.clear()
