# SPDX-License-Identifier: Apache-2.0
"""Completion scripts for bash, zsh and fish, with every word in them: a Tab starts no Python."""

from __future__ import annotations

from veldt.architectures import ARCHITECTURES
from veldt.errors import ConfigurationError

SHELLS = ("bash", "zsh", "fish")
_PLAIN = {
    "list": ("--json", "--help"),
    "evaluate": ("--episodes", "--seed", "--video", "--json", "--help"),
    "completion": SHELLS,
}


def script(shell: str) -> str:
    """The script of one shell; zsh reads bash's through its own translation."""
    if shell not in SHELLS:
        raise ConfigurationError(f"unknown shell '{shell}'; use {', '.join(SHELLS)}")
    if shell == "fish":
        return _fish()
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + _bash()


def option_words(architecture: str) -> list[str]:
    """Every option of `veldt train` for one architecture."""
    from veldt.cli import run_parser

    actions = run_parser("train", architecture)._actions
    return [text for action in actions for text in action.option_strings if text != "-h"]


def environment_ids() -> list[str]:
    """The newest version of each registered Gymnasium id that needs no further module."""
    import gymnasium

    newest: dict[str, tuple[int, str]] = {}
    for name, spec in gymnasium.registry.items():
        if spec.namespace is None:
            version = spec.version or 0
            newest[spec.name] = max(newest.get(spec.name, (-1, "")), (version, name))
    return sorted(name for _, name in newest.values())


def value_words() -> dict[str, list[str]]:
    """Option -> the values that can be offered for it."""
    from veldt.options import CHOICES

    words = {f"--{name.replace('_', '-')}": list(values) for name, values in CHOICES.items()}
    return {**words, "--format": ["text", "mermaid"], "--env": environment_ids()}


def _commands() -> list[str]:
    from veldt.cli import COMMANDS

    return list(COMMANDS)


def _bash() -> str:
    values = "\n".join(
        f'    {option}) COMPREPLY=($(compgen -W "{" ".join(words)}" -- "$word")); return;;'
        for option, words in value_words().items()
    )
    own = "\n".join(
        f'        {name}) words="{" ".join(option_words(name))} $extra";;' for name in ARCHITECTURES
    )
    plain = "\n".join(f'    {name}) words="{" ".join(ws)}";;' for name, ws in _PLAIN.items())
    return f"""_veldt() {{
  local word="${{COMP_WORDS[COMP_CWORD]}}" before="${{COMP_WORDS[COMP_CWORD-1]}}"
  local command="${{COMP_WORDS[1]}}" words="" extra=""
  case "$before" in
    --run-dir) COMPREPLY=($(compgen -d -- "$word")); return;;
{values}
  esac
  if [ "$COMP_CWORD" -eq 1 ]; then
    words="{" ".join(_commands())} --help --version"
  else case "$command" in
{plain}
    train|describe)
      [ "$command" = describe ] && extra="--format"
      if [ "$COMP_CWORD" -eq 2 ]; then words="{" ".join(ARCHITECTURES)}"
      else case "${{COMP_WORDS[2]}}" in
{own}
      esac; fi;;
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  if [ "$command" = evaluate ]; then COMPREPLY+=($(compgen -d -- "$word")); fi
}}
complete -F _veldt veldt"""


def _fish() -> str:
    lines = ["complete -c veldt -f"]
    lines.append(
        f'complete -c veldt -n __fish_use_subcommand -a "{" ".join(_commands())}"'
    )
    for name, words in _PLAIN.items():
        lines.append(f'complete -c veldt -n "__fish_seen_subcommand_from {name}" -a "{" ".join(words)}"')
    lines.append(
        'complete -c veldt -n "__fish_seen_subcommand_from evaluate" -a "(__fish_complete_directories)"'
    )
    both = "__fish_seen_subcommand_from train describe"
    names = " ".join(ARCHITECTURES)
    lines.append(f'complete -c veldt -n "{both}; and not __fish_seen_subcommand_from {names}" -a "{names}"')
    values = value_words()
    for name in ARCHITECTURES:
        seen = f"{both}; and __fish_seen_subcommand_from {name}"
        for word in option_words(name):
            offered = f' -x -a "{" ".join(values[word])}"' if word in values else ""
            lines.append(f'complete -c veldt -n "{seen}" -l {word.removeprefix("--")}{offered}')
    return "\n".join(lines)
