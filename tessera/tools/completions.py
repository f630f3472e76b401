"""Implements the command `completions`: scripts that complete commands, their words and files in a shell."""

from __future__ import annotations

import argparse
import re

from tessera.tools.commands import COMMANDS

WORDS = {  # subcommands and what else has no dash
    "cache": "info list prune clear export import",
    "completions": "bash zsh fish",
}
_BASH = """\
_tessera() {{
    local word="${{COMP_WORDS[COMP_CWORD]}}"
    if [ "$COMP_CWORD" -eq 1 ]; then
        COMPREPLY=($(compgen -W "{names} --help --version" -- "$word"))
        return
    fi
    case "${{COMP_WORDS[1]}}" in
{cases}
    esac
    if [ "${{COMP_WORDS[1]}}" = completions ]; then return; fi
    COMPREPLY+=($(compgen -f -- "$word"))
}}
complete -o filenames -F _tessera tessera
"""


def completions(args: list[str]) -> int:
    """`completions bash | zsh | fish`."""
    parser = argparse.ArgumentParser(
        "tessera completions",
        description="print completions; for bash: source <(tessera completions bash)",
    )
    parser.add_argument("shell", choices=("bash", "zsh", "fish"))
    print({"bash": bash, "zsh": zsh, "fish": fish}[parser.parse_args(args).shell](), end="")
    return 0


def words_of(name: str) -> list[str]:
    """Return the options and subcommands of a command, as its usage names them."""
    options = re.findall(r"(?<![\w-])--[a-z]+", COMMANDS[name].form)
    return [*WORDS.get(name, "").split(), *options, "--help"]


def bash() -> str:
    cases = [
        f'        {name}) COMPREPLY=($(compgen -W "{" ".join(words_of(name))}" -- "$word"));;'
        for name in COMMANDS
    ]
    return _BASH.format(names=" ".join(COMMANDS), cases="\n".join(cases))


def zsh() -> str:
    # A configuration without zsh's own completions has no `compdef`, which `complete` of bashcompinit calls.
    start = "(( $+functions[compdef] )) || { autoload -Uz compinit && compinit -i }"
    return f"{start}\nautoload -U +X bashcompinit && bashcompinit\n{bash()}"


def fish() -> str:
    lines = [
        "complete -c tessera -f -n '__fish_use_subcommand; or __fish_seen_subcommand_from completions'"
    ]
    for name, command in COMMANDS.items():
        what = command.what.replace("'", "\\'")
        lines.append(f"complete -c tessera -n __fish_use_subcommand -a {name} -d '{what}'")
        for word in words_of(name):
            form = f"-l {word[2:]}" if word.startswith("--") else f"-a {word}"
            lines.append(f"complete -c tessera -n '__fish_seen_subcommand_from {name}' {form}")
    return "\n".join(lines) + "\n"
