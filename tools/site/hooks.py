"""Hooks of MkDocs: what the site has beside the Markdown of docs/.

A picture that a page shows (`![…](images/x.svg)`) is put into the page, so that it has the colours of the theme; each
operation of the language gets the picture of its example; each tutorial gets a notebook; files outside of docs/ that a
page links to are copied.
"""

from __future__ import annotations

import os
import posixpath
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from tools.site.operations import drawn
from tools.site.svg import GROUND

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
LINK = re.compile(r"(?<!!)\[([^\]\n]+)\]\(([^)\s#:]+)((?:#[^)\s]*)?)\)")
IMAGE = re.compile(r"^!\[([^\]]*)\]\(([^)\s:]+\.svg)\)$", re.MULTILINE)
OPERATION = re.compile(r"^## ([\w.]+)\n(?:(?!^## ).*\n)*", re.MULTILINE)
FENCE = re.compile(r"^(```|~~~).*?^\1$", re.MULTILINE | re.DOTALL)
TUTORIAL = re.compile(r"tutorials/\d")
NOTEBOOK = '\n\n<a class="md-button" href="notebooks/{name}.ipynb" download>Take this page as a notebook</a>\n\n'
BESIDE = "beside"  # the site's folder for files outside of docs/


def slug(text: str, separator: str) -> str:
    """An anchor as code hosts make it: lower case, spaces to dashes, punctuation left out."""
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", separator)


def outside(text: str, page: str) -> Iterator[str]:
    """The files outside of docs/ that a page links to, relative to the root of the repository."""
    for found in LINK.finditer(FENCE.sub("", text)):
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), found[2]))
        if not path.startswith("docs/") and (ROOT / path).is_file():
            yield path


def on_files(files: Any, config: Any) -> Any:
    """Add the files outside of docs/ that pages link to."""
    found = {
        target
        for page in list(files.documentation_pages())
        for target in outside(Path(page.abs_src_path).read_text("utf-8"), page.src_uri)
    }
    for target in sorted(found):
        text = (ROOT / target).read_text("utf-8")
        if target.endswith(".md"):  # as text: its own links are those of another folder
            text = f"# {target}\n\n{text.partition(chr(10))[2]}"
        name = f"{BESIDE}/{target}" if not target.endswith(".md") else f"{BESIDE}/{target[:-3]}.txt"
        files.append(File.generated(config, name, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrite a page for the site."""
    where = page.file.src_uri
    text = _links(markdown, where)
    if TUTORIAL.match(where):
        text = text.replace("\n", NOTEBOOK.format(name=Path(where).stem), 1)
    if where.startswith("language/"):
        text = OPERATION.sub(_with_picture, text)
    return IMAGE.sub(lambda found: _inlined(found, where), text)


def on_post_build(config: Any) -> None:
    """Make the notebooks, in a process of their own: they run code."""
    folder = Path(config.site_dir) / "tutorials/notebooks"
    command = [sys.executable, "-m", "tools.site.notebooks", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise PluginError(f"a notebook fails:\n{done.stdout}{done.stderr}")


def _links(text: str, page: str) -> str:
    """Links to files outside of docs/ lead to their copies."""

    def copy(found: re.Match[str]) -> str:
        here = posixpath.dirname(page)
        path = posixpath.normpath(posixpath.join("docs", here, found[2]))
        if path.startswith("docs/") or not (ROOT / path).is_file():
            return found[0]
        name = f"{path[:-3]}.txt" if path.endswith(".md") else path
        return f"[{found[1]}]({posixpath.relpath(f'{BESIDE}/{name}', here or '.')})"

    return LINK.sub(copy, text)


def _with_picture(section: re.Match[str]) -> str:
    try:
        picture = drawn(section[1])
    except AttributeError:  # a heading that is no operation
        return section[0]
    return (
        section[0]
        if picture is None
        else f"{section[0]}{_figure(picture.rendered(ground=False))}\n\n"
    )


def _inlined(found: re.Match[str], page: str) -> str:
    path = DOCS / os.path.dirname(page) / found[2]
    ground = re.compile(
        rf'<rect width="[^"]*" height="[^"]*" fill="{re.escape(GROUND.partition(",")[0])}[^/]*/>'
    )
    return _figure(ground.sub("", path.read_text("utf-8")), found[1])


def _figure(svg: str, alt: str = "") -> str:
    """An element without empty lines, which would end it for Markdown."""
    body = re.sub(r"\n+", "", svg)
    return f'<figure class="drawn" data-search-exclude aria-label="{alt}">{body}</figure>'
