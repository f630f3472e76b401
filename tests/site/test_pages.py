"""The code of the pages for users runs, and prints what the pages say."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.site.code import ROOT, PageError, blocks, can_run, run_page

DOCS = ROOT / "docs"
PAGES = [
    DOCS / "start.md",
    DOCS / "language/basics.md",
    *sorted((DOCS / "tutorials").glob("[0-9]*.md")),
    *sorted(page for page in (DOCS / "how-to").glob("*.md") if page.name != "README.md"),
    *sorted((DOCS / "migration").glob("*.md")),
]
TORCH_ALONE = {
    "08-compiled-model",
    "custom-operations",
}  # all of their code needs torch: `make test-graph` runs it


@pytest.mark.parametrize("page", PAGES, ids=lambda p: str(p.relative_to(DOCS))[:-3])
def test_the_code_of_a_page(page: Path, tmp_path: Path) -> None:
    ran = run_page(page, tmp_path)
    if not ran:
        assert page.stem in TORCH_ALONE
        pytest.skip("needs torch")


PAGE = """
```python title="twice.py"
print(2 * 21)
```

```sh
python twice.py
```

```text
42
```

```python
print("a", 1)
1 / 0
```

```text
a ...
division by zero
```

```sh
rm -rf everything
```
"""


def test_blocks(tmp_path: Path) -> None:
    found = blocks(PAGE)
    assert [b.language for b in found] == ["python", "sh", "python", "sh"]
    assert [b.output for b in found] == [None, "42\n", "a ...\ndivision by zero\n", None]
    assert [b.title for b in found] == ["twice.py", "", "", ""]
    assert [can_run(b) for b in found] == [True, True, True, False]
    assert PAGE.splitlines()[found[0].line - 1] == "print(2 * 21)"
    page = tmp_path / "page.md"
    page.write_text(PAGE)
    assert run_page(page, tmp_path) == 3


@pytest.mark.parametrize(
    ("before", "after"), [("42\n", "43\n"), ("a ...\n", "b ...\n"), ("by zero", "by one")]
)
def test_a_page_that_is_wrong(before: str, after: str, tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(PAGE.replace(before, after))
    with pytest.raises(PageError, match="the page says"):
        run_page(page, tmp_path)
    run_page(page, tmp_path, write=True)
    assert run_page(page, tmp_path) == 3


def test_an_error_that_the_page_does_not_say(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("```python\n1 / 0\n```\n")
    with pytest.raises(PageError, match="ZeroDivisionError"):
        run_page(page, tmp_path)
