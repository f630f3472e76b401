"""The words of the field in the code and its pages: former words stay out, and the glossary names code that exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import tessera
from tessera.config.optimizations import FORMER_NAMES

ROOT = Path(tessera.__file__).parent.parent
GLOSSARY = ROOT / "docs" / "glossary.md"

FORMER = {
    "team": "warp role; of people: group",
    "turner": "transpose role",
    "turning": "transposing; of a program that goes on: becoming",
    "copy engine": "TMA unit",
    "tensor engine": "TMA unit",
    "byte barrier": "mbarrier",
    "async arrive": "async copy mbarrier arrive",
    "twin": "fallback variant",
    "roomy": "occupancy met",
    "squeezed": "raise occupancy",
    "turn op": "ping-pong",
    "next turn": "next parity",
    "flexible": "rematerialisable",
    "meeting": "acquire; of threads: barrier",
    "running on": "asynchronous accumulation",
    "delayable": "shiftable, of a stage shift",
    "sum of products": "accumulator, or dot",
    "summed product": "accumulated dot",
    "on demand": "lazily",
    "scaled sum": "scaled accumulator",
    "side buffer": "memoised buffer",
    "deferred sum": "K-unroll",
    "defer dot": "unroll k",
    "fetched ahead": "prefetched",
    "heard": "notify listener",
    "assumes apart": "assumes no alias",
    "amid": "in",
    "now and then": "from time to time, or every n-th",
}
"""Words that mean something else to readers of the manuals, and what to write instead. Plurals count, as do parts of
identifiers: `team` stands for `teams`, `Team`, `_team_of` and `TEAMS`."""


def _sources() -> list[Path]:
    pages = [*(ROOT / "docs").rglob("*.md"), ROOT / "README.md"]
    return sorted([*(ROOT / "tessera").rglob("*.py"), *pages])


def parts(text: str) -> str:
    """The text in lower case with identifiers taken apart: `RingOfTeams` and `ring_of_teams` are `ring of teams`."""
    apart = re.sub(r"([a-z0-9])([A-Z])", r"\1 \2", text).replace("_", " ")
    return re.sub(r"[ \n]+", " ", apart).lower()


def found_in(text: str, word: str) -> int:
    return len(re.findall(rf"\b{word}s?\b", parts(text)))


@pytest.mark.parametrize("word", FORMER)
def test_former_words_stay_out(word: str) -> None:
    former_names = re.compile("|".join(re.escape(f'"{n}"') for n in FORMER_NAMES))
    found = [
        f"{path.relative_to(ROOT)}: {count} of {word!r}, write {FORMER[word]!r}"
        for path in _sources()
        if (count := found_in(former_names.sub("", path.read_text()), word))
    ]
    assert not found, "\n".join(found)


def test_former_words_are_seen() -> None:
    for word in FORMER:
        snake, title = word.replace(" ", "_"), word.title().replace(" ", "")
        for text in (
            f"a {word}, here",
            f"_{snake}s = 1",
            f"class {title}:",
            f"{snake.upper()} = 1",
        ):
            assert found_in(text, word) == 1, text
    assert found_in("steam returning", "team") == found_in("steam returning", "turning") == 0


# --- sentences -----------------------------------------------------------------------------------------------------
SAYS = re.compile(
    r"(?:[A-Z][a-z]+s|Check|Decide|Order|Move|Divide|Simplify)\b"
    r"|(?!What|Which|Whether|How)[`A-Za-z][^:]*\b(?:is|are|has|holds|says?|finds?|runs|makes|lowers|shows|reads|implement"
    r"|registers|transform)\b"
)
PLURALS = {
    "Barriers",
    "Blocks",
    "Boxes",
    "Buffers",
    "Classes",
    "Clocks",
    "Kernels",
    "Layouts",
    "Loops",
    "Ops",
}
PLURALS |= {"Programs", "Rows", "Rules", "Tests", "Tiles", "Values"}


def is_sentence(text: str) -> bool:
    """Whether a module's docstring begins with what the module does: `Lowers scans along an axis.`"""
    first = re.split(r"[.:](?:\s|$)", text, maxsplit=1)[0]
    return SAYS.match(first) is not None and text.split()[0] not in PLURALS


def test_modules_say_what_they_do() -> None:
    found: list[str] = []
    for path in sorted((ROOT / "tessera").rglob("*.py")):
        # Those of the drop-in package name what they stand for.
        stands_for_triton = "compat/path" in path.as_posix()
        text = ast.get_docstring(ast.parse(path.read_text()))
        if text is not None and not stands_for_triton and not is_sentence(text):
            found.append(f"{path.relative_to(ROOT)}: {text.splitlines()[0]}")
    assert not found, "\n".join(found)


def test_noun_phrases_are_seen() -> None:
    for text in (
        "Reduction within each thread.",
        "Loops with MMAs: two loops of each.",
        "64-bit indexing: arithmetic is done in int64.",
        "Canonical form: constants folded.",
        "What the launch knows.",
    ):
        assert not is_sentence(text), text
    assert is_sentence("Lowers reductions.") and is_sentence("The runtime is the host side.")


# --- the glossary -----------------------------------------------------------------------------------------------
ROW = re.compile(
    r"^\| (?P<term>[^|]+) \| (?P<meaning>[^|]+) \| (?P<where>[^|]+) \| (?P<manual>[^|]+) \|$"
)
PLACE = re.compile(r"`([\w/.-]+)(?:::(\w+))?`")


def rows() -> dict[str, dict[str, str]]:
    """The rows of all tables of the glossary by term."""
    matches = [ROW.match(line) for line in GLOSSARY.read_text().splitlines()]
    found = [m.groupdict() for m in matches if m is not None]
    return {r["term"]: r for r in found if r["term"] != "term" and not r["term"].startswith("---")}


def test_the_glossary_has_the_words_to_write_instead() -> None:
    terms = " ".join(rows()).lower()
    assert len(rows()) >= 60
    for word in (
        "warp role",
        "transpose role",
        "tma unit",
        "mbarrier",
        "fallback variant",
        "ping-pong",
        "lazy evaluation",
        "sink",
        "memoised buffer",
        "prepacking along k",
    ):
        assert word in terms, word


@pytest.mark.parametrize("term", rows())
def test_a_term_has_a_meaning_a_place_and_a_manual(term: str) -> None:
    row = rows()[term]
    assert row["meaning"].endswith(".") and " " in row["meaning"], "the meaning is no sentence"
    assert row["manual"].strip(), "no manual, nor –"
    places = PLACE.findall(row["where"])
    assert places, "no place in the code"
    for path, name in places:
        file = ROOT / path
        assert file.is_file(), path
        if name:
            assert re.search(rf"^\s*(class|def) {name}\b|^{name}\b", file.read_text(), re.M), name


def test_every_manual_is_introduced() -> None:
    known = re.findall(r"\*\*(\w+)\*\*", GLOSSARY.read_text())
    others = ("CUDA", "CUTLASS", "Nsight")
    for row in rows().values():
        name = re.split(r"[ ,]", row["manual"])[0]
        assert name in (*known, *others, "–"), row["manual"]
