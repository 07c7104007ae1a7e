# SPDX-License-Identifier: Apache-2.0
"""Completion scripts for bash, zsh and fish, with every word in them: a Tab starts no Python."""

from __future__ import annotations

from dataclasses import dataclass

from veldt.errors import ConfigurationError

SHELLS = ("bash", "zsh", "fish")
_PLAIN = {
    "list": ("--json", "--help"),
    "evaluate": ("--episodes", "--seed", "--policy", "--video", "--json", "--help"),
    "watch": ("--port", "--help"),
    "compare": (
        "--env",
        "--out",
        "--architectures",
        "--seeds",
        "--max-seconds",
        "--total-env-steps",
        "--target-return",
        "--backend",
        "--help",
    ),
    "claims": ("--only", "--out", "--list", "--quick", "--help"),
    "completion": SHELLS,
}


@dataclass(frozen=True)
class Words:
    """What the command line offers: its commands, and the options of `train` by architecture."""

    commands: list[str]
    options: dict[str, list[str]]


def script(shell: str, words: Words) -> str:
    """The script of one shell; zsh reads bash's through its own translation."""
    if shell not in SHELLS:
        raise ConfigurationError(f"unknown shell '{shell}'; use {', '.join(SHELLS)}")
    if shell == "fish":
        return _fish(words)
    return ("autoload -U +X bashcompinit && bashcompinit\n" if shell == "zsh" else "") + _bash(
        words
    )


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
    from veldt.options import ENCODERS, RunOptions
    from veldt.options.fields import choices

    offered = {**choices(RunOptions), "network": ENCODERS}
    words = {f"--{name.replace('_', '-')}": list(values) for name, values in offered.items()}
    return {**words, "--format": ["text", "mermaid"], "--env": environment_ids()}


def _bash(words: Words) -> str:
    values = "\n".join(
        f'    {option}) COMPREPLY=($(compgen -W "{" ".join(offered)}" -- "$word")); return;;'
        for option, offered in value_words().items()
    )
    options = "\n".join(
        f'        {name}) words="{" ".join(own)} $extra";;' for name, own in words.options.items()
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
    words="{" ".join(words.commands)} --help --version"
  else case "$command" in
{plain}
    train|describe)
      [ "$command" = describe ] && extra="--format"
      if [ "$COMP_CWORD" -eq 2 ]; then words="{" ".join(words.options)}"
      else case "${{COMP_WORDS[2]}}" in
{options}
      esac; fi;;
  esac; fi
  COMPREPLY=($(compgen -W "$words" -- "$word"))
  case "$command" in evaluate|watch|resume) COMPREPLY+=($(compgen -d -- "$word"));; esac
}}
complete -F _veldt veldt"""


def _fish(words: Words) -> str:
    lines = ["complete -c veldt -f"]
    lines.append(f'complete -c veldt -n __fish_use_subcommand -a "{" ".join(words.commands)}"')
    for name, offered in _PLAIN.items():
        seen = f"__fish_seen_subcommand_from {name}"
        lines.append(f'complete -c veldt -n "{seen}" -a "{" ".join(offered)}"')
    folders = "(__fish_complete_directories)"
    with_folder = "__fish_seen_subcommand_from evaluate watch resume"
    lines.append(f'complete -c veldt -n "{with_folder}" -a "{folders}"')
    both = "__fish_seen_subcommand_from train describe"
    names = " ".join(words.options)
    unnamed = f"{both}; and not __fish_seen_subcommand_from {names}"
    lines.append(f'complete -c veldt -n "{unnamed}" -a "{names}"')
    values = value_words()
    for name, own in words.options.items():
        seen = f"{both}; and __fish_seen_subcommand_from {name}"
        for word in own:
            choices = f' -x -a "{" ".join(values[word])}"' if word in values else ""
            lines.append(f'complete -c veldt -n "{seen}" -l {word.removeprefix("--")}{choices}')
    return "\n".join(lines)
