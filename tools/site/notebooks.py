"""Makes a notebook of each tutorial, with the output of its cells: `python -m tools.site.notebooks FOLDER [NAME...]`.

The source is the page. Text becomes cells of Markdown, pictures included; code becomes cells of code, which IPython
runs here, so that a notebook that does not run is not written. A block that is a file becomes a cell that writes it, a
block of shell one that runs it.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import re
import sys
import tempfile
from pathlib import Path
from typing import Any

from IPython.core.interactiveshell import InteractiveShell
from IPython.utils.capture import capture_output

from tools.site.code import FENCE, NEEDS, ROOT, Block, blocks, can_run

TUTORIALS = ROOT / "docs/tutorials"
IMAGE = re.compile(r"!\[([^\]]*)\]\(images/([^)]+\.svg)\)")
HEAD = """\
*This notebook is made from a page of tessera's documentation. It needs `tessera-lang`, and Jupyter's Python with it.*
"""


class CellError(RuntimeError):
    """A cell of a notebook fails where its page expects no error."""


def notebook(page: Path) -> dict[str, Any]:
    """The notebook of a page, its cells run in the current folder."""
    cells = [_text(HEAD)]
    # A shell of its own: what one page defines is not there in the next.
    InteractiveShell.clear_instance()
    shell = InteractiveShell.instance()
    shell.run_line_magic("colors", "nocolor")
    for part in parts(page.read_text("utf-8")):
        if isinstance(part, str):
            cells.append(_text(part, page.parent / "images"))
        else:
            cells.append(_code(part, shell))
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    return {"cells": cells, "metadata": {"kernelspec": kernel}, "nbformat": 4, "nbformat_minor": 5}


def parts(text: str) -> list[str | Block]:
    """Text and code of a page, in order; the outputs that the page shows are left out."""
    found: list[str | Block] = []
    code = {block.line: block for block in blocks(text)}
    end = 0
    for match in FENCE.finditer(text):
        between = text[end : match.start()]
        block = code.get(text.count("\n", 0, match.start()) + 2)
        runs = block is not None and (block.language == "python" or can_run(block))
        is_output = match[1] == "text"
        if not runs and not is_output:
            continue  # stays part of the text
        found += [between] if between.strip() else []
        found += [block] if block is not None and runs else []
        end = match.end()
    return [*found, text[end:]] if text[end:].strip() else found


def _text(text: str, images: Path | None = None) -> dict[str, Any]:
    attached: dict[str, dict[str, str]] = {}

    def attach(found: re.Match[str]) -> str:
        assert images is not None
        data = (images / found[2]).read_bytes()
        attached[found[2]] = {"image/svg+xml": base64.b64encode(data).decode()}
        return f"![{found[1]}](attachment:{found[2]})"

    source = IMAGE.sub(attach, text.strip())
    return {"cell_type": "markdown", "metadata": {}, "source": source} | (
        {"attachments": attached} if attached else {}
    )


def _code(block: Block, shell: InteractiveShell) -> dict[str, Any]:
    source = block.code.rstrip()
    if block.title.endswith(".py"):
        source = f"%%writefile {block.title}\n{source}"
    elif block.language == "sh":
        source = "\n".join(f"!{line}" for line in source.splitlines())
    cell: dict[str, Any] = {
        "cell_type": "code", "metadata": {}, "source": source, "execution_count": None, "outputs": []
    }  # fmt: skip
    if block.title in NEEDS and not NEEDS[block.title]():
        return cell
    with capture_output() as captured:
        done = shell.run_cell(source)
    error = done.error_in_exec or done.error_before_exec
    if error is not None and block.output is None:
        raise CellError(f"{block.line}: {source}\n{captured.stdout}") from error
    printed = captured.stdout.replace(f"{os.getcwd()}/", "")
    if error is not None:  # without the frames of IPython and of the launch
        printed = printed.partition("-" * 75)[0]
        cell["metadata"] = {"tags": ["raises-exception"]}
        text = f"{type(error).__name__}: {error}"
        cell["outputs"] = [
            {
                "output_type": "error",
                "ename": type(error).__name__,
                "evalue": str(error),
                "traceback": text.splitlines(),
            }
        ]
    if printed.strip():
        cell["outputs"].insert(0, {"output_type": "stream", "name": "stdout", "text": printed})
    return cell


def main(args: list[str]) -> int:
    """Write the notebooks of the tutorials, all or those named."""
    folder = Path(args[0]).resolve()
    names = args[1:] or [path.stem for path in sorted(TUTORIALS.glob("[0-9]*.md"))]
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["PYTHONPATH"] = f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH', '')}".rstrip(
        os.pathsep
    )
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    for name in names:
        with tempfile.TemporaryDirectory() as work, contextlib.chdir(work):
            os.environ["TESSERA_CACHE_DIR"] = f"{work}/cache"
            made = notebook(TUTORIALS / f"{name}.md")
        (folder / f"{name}.ipynb").write_text(
            json.dumps(made, indent=1, ensure_ascii=False), encoding="utf-8"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
