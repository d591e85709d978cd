"""`LaunchSource`: a command that starts a run, with its options and the files that it names."""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from profiles.errors import DocumentError, UnknownNameError
from shardwright_frameworks.configs.collected import Collected
from shardwright_frameworks.configs.command_options import Options, read_options, whole
from shardwright_frameworks.configs.hydra_defaults import hydra_parts
from shardwright_frameworks.configs.interpolation import Key, Open
from shardwright_frameworks.configs.keyed_file import KeyedFile, read_keyed
from shardwright_frameworks.configs.python_evaluation import Made
from shardwright_frameworks.frameworks import accelerate, hf_trainer, maxtext, nemo, trainer_program
from shardwright_frameworks.reading.consistency import Variables
from shardwright_frameworks.reading.keyed_frameworks import collect_deepspeed_file
from shardwright_frameworks.reading.launch import Launch
from shardwright_frameworks.reading.read_file import (
    collect_keyed,
    collect_program,
    collect_python,
    objects_of_program,
)
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.script_reading import ScriptReading
from shardwright_frameworks.shell.text_marks import (
    Place,
    Word,
    unknown_numbers,
    without_place_marks,
)

_HYDRA = re.compile(r"^@hydra(?:\.main|_runner)\(([^)]*)\)", re.M)
_KEYWORD = re.compile(r"(config_\w+)=[\"']([^\"']*)")
FILE = re.compile(r".*\.(ya?ml|json|toml|py)$", re.I)
"""Pattern of the names of files that can be configurations."""


def missing_file(launch: Launch, folder: ConfigFolder) -> str | None:
    """The first YAML or TOML file named in a command that is not in the folder."""
    named = [word.plain.rpartition("=")[2] for word in launch.arguments]
    files = [text for text in named if text.endswith((".yaml", ".yml", ".toml"))]
    return next((t for t in files if folder.find(t, near=launch.command.script) is None), None)


@dataclass(kw_only=True)
class LaunchSource:
    """A command to be read into `collected`.

    variables  variables of the script that starts it
    """

    launch: Launch
    reading: ScriptReading
    folder: ConfigFolder
    collected: Collected
    variables: Variables

    @cached_property
    def options(self) -> Options:
        """The options of the program."""
        return read_options(self.launch.arguments, self.reading.unknowns)

    def options_as_file(self) -> KeyedFile:
        """The options as a keyed file, with places in the script."""
        values, lines = dict[Key, Any](), dict[Key, int]()
        for option in self.options.given:
            lines[(option.key,)] = option.place.line
            reported = Collected()
            known = self.options.value_of(option, reported) if option.values else True
            many = " ".join(word.plain for word in option.values)
            values[(option.key,)] = (
                Open(reported.unresolved[0].why)
                if known is None
                else many
                if len(option.values) > 1
                else known
            )
        return KeyedFile(name=self.launch.place.file, values=values, lines=lines)

    @cached_property
    def keys(self) -> set[str]:
        """Names of the options."""
        return {option.key for option in self.options.given}

    @cached_property
    def pairs(self) -> set[str]:
        """Names of the `key=value` arguments."""
        return set(
            maxtext.given_by_words(self.launch.arguments, self.reading.unknowns, Collected())
        )

    @cached_property
    def hydra(self) -> nemo.Values:
        """Hydra overrides by path."""
        return nemo.values_of_words(self.launch.arguments, self.reading.unknowns, self.collected)

    @cached_property
    def chosen(self) -> Mapping[str, str]:
        """The arguments `group=option`."""
        pairs = (word.plain.partition("=") for word in self.launch.arguments)
        return {key: text.strip("'\"") for key, equals, text in pairs if equals and key[:1] != "-"}

    @property
    def program(self) -> str:
        """Name of the program in lower case."""
        return self.launch.program.lower()

    def find(self, path: str) -> str | None:
        """The file of the folder that a path in the command refers to."""
        return self.folder.find(path, near=self.launch.command.script)

    def variable(self, name: str) -> str | None:
        """The known text of a variable."""
        found = self.variables.get(name)
        if found is None or found.words is not None or unknown_numbers(found.text):
            return None
        return without_place_marks(found.text).strip() or None

    def report_missing(self, option: str, why: str, place: Place | None = None) -> None:
        """Report a missing file with values of the run."""
        self.collected.report_missing(option, why, place or self.launch.place)

    def report_missing_config(self) -> None:
        """Report a configuration of Hydra that the command names and no file is of."""
        option, name = self.options.last("config_name"), self.options.file("config_name")
        stems = {Path(each).stem for each in self.named}
        if option is not None and Path(name or "").stem not in stems:
            why = f"{name!r} is not in the folder" if name else "its value is unknown"
            self.report_missing("--config-name", why, option.place)

    @cached_property
    def named(self) -> list[str]:
        """The files of the folder named in arguments, accelerate's first."""
        found: list[str] = []
        words = [word for option in self.launch.launcher.given for word in option.values]
        words += list(self.launch.arguments)
        config, folder = self.options.text("config_name"), self.options.text("config_path") or ""
        config, folder = (config, folder) if config is not None else self._of_hydra()
        if config:
            ending = "" if config.endswith((".yaml", ".yml")) else ".yaml"
            words.append(Word(f"{folder}/{config}{ending}", self.launch.place))
        for word in words:
            text = word.plain.rpartition("=")[2]
            if FILE.match(text):
                name = self.find(text)
                if name is not None and name not in found and name != self.launch.program:
                    found.append(name)
        return found

    def _of_hydra(self) -> tuple[str, str]:
        """The configuration in `@hydra.main(config_path="conf", config_name="train")` of the
        program, and its folder; "" for other programs."""
        name = self.program_file or ""
        found = _HYDRA.search(self.text)
        given = dict(_KEYWORD.findall(found[1])) if found is not None else {}
        near = posixpath.join(posixpath.dirname(name), given.get("config_path", ""))
        return given.get("config_name", ""), posixpath.normpath(near)

    def files_in_program(self) -> list[str]:
        """The configurations of the folder that are named in the program's text."""
        name = self.find(self.launch.program)
        if name is None or not name.endswith(".py"):
            return []
        try:
            tree = ast.parse(self.folder.text(name) or "")
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            return []
        found: list[str] = []
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                plain = node.value if FILE.fullmatch(node.value) else ""
                one = self.folder.find(plain, near=name) if plain and len(plain) < 200 else None
                if one is not None and one not in found and not one.endswith(".py"):
                    found.append(one)
        return found

    def collect_python(self, name: str, function: str, overrides: list[nemo.Values]) -> bool:
        """Collect the configuration returned by a function of a Python file; returns whether the
        file has a function of that name."""
        try:
            found = collect_python(
                name, self.folder, self.collected, requested=function, overrides=overrides
            )
        except UnknownNameError:
            return False
        return found is not None

    @property
    def _arguments(self) -> dict[str, tuple[Any, Place]]:
        """The values of the options by their keys."""
        options, arguments = self.options_as_file(), dict[str, tuple[Any, Place]]()
        for (key, *_), value in options.values.items():
            number = whole(value) if isinstance(value, str) else None
            read = {"true": True, "false": False}.get(str(value).lower(), value)
            arguments[key] = (read if number is None else number, options.place((key,)))
        return arguments

    def _parsed_as(self, name: str) -> str:
        """`transformers` for the file that is the only argument of a program with its parser."""
        alone = [self.find(word) for word in self._words] == [name]
        parses = alone and re.search(r"\b(HfArgumentParser|TrlParser)\b", self.text)
        return "transformers" if parses else ""

    @property
    def text(self) -> str:
        """The program's text."""
        return self.folder.text(self.program_file or "") or ""

    @property
    def _words(self) -> list[str]:
        return [word.plain for word in self.launch.arguments]

    def defaults_of_program(self) -> tuple[hf_trainer.Given, bool, list[Made]]:
        """The defaults that the program has for options that are not given, whether it parses them
        by `argparse`, and the objects that it makes."""
        try:
            made, defaults, unread = objects_of_program(
                self.program_file or "", self.folder, self._arguments, self._words
            )
        except DocumentError:
            return [], False, []
        given, is_own = trainer_program.given_by_parser(made, defaults)
        return [each for each in given if each[0] not in self.keys | unread], is_own, made

    @property
    def program_file(self) -> str | None:
        """The program's file; `-m` names a module, of the folder or its `src`."""
        name = self.launch.program
        if not name.endswith(".py"):
            name = f"{name.replace('.', '/')}.py"
            return self.find(name) or self.find(f"src/{name}")
        return self.find(name)

    def collect_program(self, name: str, overrides: nemo.Values) -> str | None:
        """Collect a program of the folder that sets up the Trainer itself, with its options."""
        try:
            framework = collect_program(
                name, self.folder, self.collected, self._arguments, overrides, self._words
            )
        except DocumentError:
            return None
        if framework == "transformers":  # its other options
            others = Collected()
            given = hf_trainer.given_by_options(self.options, others)
            hf_trainer.collect_trainer(given, others, defaults=False)
            with self.collected.overriding_files():
                self.collected.take(others)
        return framework

    def values_of_file(self, name: str) -> nemo.Values:
        """The values of a file and of those in its `defaults`, which all count as read."""
        file = read_keyed(name, self.folder)
        read = hydra_parts(file, self.folder, self.chosen)
        self.collected.files += [part.name for _, part in read.parts]
        for why in read.missing:
            self.report_missing("defaults", why, file.place(("defaults",)))
        return nemo.values_of_files(read.parts)

    def collect_deepspeed(self, named: str, place: Place | None = None) -> None:
        """Collects DeepSpeed's file."""
        script, place = self.launch.command.script, place or self.launch.place
        collect_deepspeed_file(named, self.folder, self.collected, place, script)

    def collect_files(self, names: list[str], overrides: nemo.Values | None = None) -> str | None:
        """Collect files, with overrides of the command; returns their framework."""
        framework, collected, precision = None, self.collected, None
        accelerated = any("accelerate" in word for word in self.launch.words)
        for name in names:
            try:
                if name.endswith(".py"):
                    placed = collect_python(
                        name, self.folder, collected, requested=None, overrides=[]
                    )
                else:
                    of_file = Collected()
                    placed = collect_keyed(
                        name, self.folder, of_file, self.chosen, overrides, self._parsed_as(name)
                    )
                    if placed == "deepspeed":
                        collected.open_keys -= of_file.placed.keys()
                        collected.take(of_file)
                    else:
                        if accelerated and placed != "accelerate":
                            precision = of_file.placed.pop("precision", precision)
                        with collected.overriding_files():
                            collected.take(of_file)
            except DocumentError as error:
                collected.report_unresolved(name, str(error), self.launch.place)
                continue
            if placed and (framework is None or framework in ("accelerate", "deepspeed")):
                framework = placed
        launcher = self.launch.launcher
        if accelerated:
            accelerate.collect_launch_options(launcher, collected)
            own, path = launcher.last("config_file"), launcher.file("config_file")
            if own is not None and (path is None or self.find(path) is None):
                why = f"{path!r} is not in the folder" if path else "its value is unknown"
                collected.leave_open("zero_stage", own.name, why, own.place)
                collected.open_keys.add("precision")
            config = launcher.last("deepspeed_config_file")
            written = launcher.value_of(config, collected) if config is not None else None
            if config is not None and written and written not in names:
                self.collect_deepspeed(written, config.place)
            if precision is not None:  # the Trainer's replaces accelerate's
                with collected.overriding_files():
                    collected.set("precision", precision.value, precision.place, precision.option)
        return framework
