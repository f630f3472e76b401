"""docs/pipeline.md shows what the passes do today."""

from __future__ import annotations

from collections import Counter

from tessera.tools.pipeline_page import NOTES, OLDER_NOTES, change, shortened, walk


def test_there_is_a_note_for_each_run_of_each_pass():
    steps = list(walk(90))
    assert Counter(s.name for s in steps[1:]) == Counter({k: len(v) for k, v in NOTES.items()})
    assert {s.name for s in walk(80) if s.before != s.after} >= OLDER_NOTES.keys()


def test_names_stay_where_nothing_changes():
    steps = list(walk(90))
    unchanged = [s.name for s in steps if s.before == s.after]
    assert {"unroll", "while-to-for", "schedule-loops"} <= set(unchanged)
    assert {"pointer-to-tma", "schedule-roles", "barriers"}.isdisjoint(unchanged)


def test_a_change_shows_what_is_around_it():
    before = ["a", "b", "c", "d", "e", "f"]
    assert change(before, before) == []
    assert change(before, ["a", "b", "x", "d", "e", "f"]) == ["⋮", "  b", "- c", "+ x", "  d"]
    lines = [f"- {i}" for i in range(9)]
    assert shortened(lines, 4) == ["- 0", "- 1", "- 2", "- … 5 more", "- 8"]
    assert shortened(lines[:5], 4) == lines[:5]
