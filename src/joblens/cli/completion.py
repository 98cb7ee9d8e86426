from __future__ import annotations

import argparse
import re

from joblens.cli.grammar import Command, Option, read_grammar
from joblens.cli.table import write

EXAMPLE = """example:
  joblens completion bash > ~/.local/share/bash-completion/completions/joblens
  joblens completion zsh > ~/.zfunc/_joblens        # with fpath+=~/.zfunc before compinit
  joblens completion fish > ~/.config/fish/completions/joblens.fish"""

SHELLS = ("bash", "zsh", "fish")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, help="the shell")


def run(options: argparse.Namespace) -> int:
    render = {"bash": render_bash, "zsh": render_zsh, "fish": render_fish}[options.shell]
    write(render(read_grammar()))
    return 0


def render_bash(grammar: list[Command]) -> str:
    words = "\n".join(f"    {_pattern(it)}) words={_quoted(' '.join(_words(it)))} ;;" for it in grammar)
    values = "\n".join(_bash_values(it) for it in grammar if _valued(it))
    return f"""# bash completion of joblens, written by: joblens completion bash
_joblens() {{
  local current=${{COMP_WORDS[COMP_CWORD]}} previous=${{COMP_WORDS[COMP_CWORD-1]}} route= words= word
  for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
    if [[ $word == -- ]]; then  # joblens run -- COMMAND
      [[ $previous == -- ]] && mapfile -t COMPREPLY < <(compgen -c -- "$current")
      return
    fi
    case "$route $word" in
    {_joined(grammar)}) route="$route $word" ;;
    esac
  done
  case "$route $previous" in
{values}
  esac
  case "$route" in
{words}
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$current")
}}
complete -o default -F _joblens joblens
"""


def _bash_values(command: Command) -> str:
    lines = []
    for option in _valued(command):
        patterns = "|".join(_quoted("".join(f" {word}" for word in (*command.path, f))) for f in option.flags)
        if option.choices:
            reply = f'mapfile -t COMPREPLY < <(compgen -W {_quoted(" ".join(option.choices))} -- "$current")'
        else:
            reply = 'mapfile -t COMPREPLY < <(compgen -f -- "$current")'
        lines.append(f"  {patterns}) {reply}; return ;;")
    return "\n".join(lines)


def _joined(grammar: list[Command]) -> str:
    return "|".join(_pattern(it) for it in grammar if it.path)


def _pattern(command: Command) -> str:
    return _quoted("".join(f" {word}" for word in command.path))


def _words(command: Command) -> list[str]:
    flags = [flag for option in command.options for flag in option.flags]
    return [*command.subcommands, *(c for it in command.positionals for c in _choices(it)), *flags]


def _choices(option: Option) -> tuple[str, ...]:
    """Return the choices of a positional, or the literal words of a metavar such as `ID|last`."""
    return option.choices or tuple(word for word in option.value.split("|") if word.islower())


def _valued(command: Command) -> list[Option]:
    return [option for option in command.options if option.value]


def render_zsh(grammar: list[Command]) -> str:
    cases = "\n".join(_zsh_case(it) for it in grammar)
    return f"""#compdef joblens
# zsh completion of joblens, written by: joblens completion zsh
_joblens() {{
  local route= word
  local -a described
  for word in "${{(@)words[2,CURRENT-1]}}"; do
    if [[ $word == -- ]]; then  # joblens run -- COMMAND
      _normal -p joblens
      return
    fi
    case "$route $word" in
    ({_joined(grammar)}) route="$route $word" ;;
    esac
  done
  case "$route ${{words[CURRENT-1]}}" in
{chr(10).join(_zsh_values(it) for it in grammar if _valued(it))}
  esac
  case "$route" in
{cases}
  esac
}}
if [[ $funcstack[1] == _joblens ]]; then _joblens "$@"; else compdef _joblens joblens; fi
"""


def _zsh_values(command: Command) -> str:
    lines = []
    for option in _valued(command):
        patterns = "|".join(_quoted("".join(f" {word}" for word in (*command.path, f))) for f in option.flags)
        reply = f"compadd -- {' '.join(map(_quoted, option.choices))}" if option.choices else "_files"
        lines.append(f"  ({patterns}) {reply}; return ;;")
    return "\n".join(lines)


def _zsh_case(command: Command) -> str:
    named = list(command.subcommands.items())
    named += [(word, it.help) for it in command.positionals for word in _choices(it)]
    named += [(flag, option.help) for option in command.options for flag in option.flags]
    described = " ".join(_quoted(f"{name.replace(':', chr(92) + ':')}:{_line(what)}") for name, what in named)
    files = "" if command.subcommands else "; _files"
    return f"  ({_pattern(command)}) described=({described}); _describe joblens described{files} ;;"


def render_fish(grammar: list[Command]) -> str:
    lines = ["# fish completion of joblens, written by: joblens completion fish"]
    for command in grammar:
        seen = "; and ".join(f"__fish_seen_subcommand_from {word}" for word in command.path)
        others = " ".join(command.subcommands)
        first = f"{seen}; and " if seen else ""
        fresh = f"{first}not __fish_seen_subcommand_from {others}" if others else seen
        named = list(command.subcommands.items())
        named += [(word, it.help) for it in command.positionals for word in _choices(it)]
        lines += [_fish(fresh, f"-f -a {_quoted(name)}", what) for name, what in named]
        own = seen or fresh  # without a command these are the options of joblens itself
        lines += [_fish(own, _fish_option(option), option.help) for option in command.options]
    return "\n".join(lines) + "\n"


def _fish(condition: str, what: str, help: str) -> str:
    return f"complete -c joblens -n {_quoted(condition)} {what} -d {_quoted(_line(help))}"


def _fish_option(option: Option) -> str:
    words = [f"-l {flag[2:]}" if flag.startswith("--") else f"-s {flag[1:]}" for flag in option.flags]
    if option.choices:
        words.append(f"-x -a {_quoted(' '.join(option.choices))}")
    elif option.value:
        words.append("-r")
    return " ".join(words)


def _line(text: str) -> str:
    return re.sub(r"\s+", " ", text)[:70]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"
