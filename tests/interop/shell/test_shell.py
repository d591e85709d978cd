"""The shell's rules, against the shell where one is here and by hand: what a script would start."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from interop.shell.arithmetic import ArithmeticFault, evaluate
from interop.shell.folder import ConfigFolder
from interop.shell.script import read_script
from interop.shell.script_reading import ScriptReading
from interop.shell.text_places import hole_numbers


def read(folder: Path, **files: str) -> ScriptReading:
    for name, text in files.items():
        (folder / f"{name}.sh").write_text(text)
    return read_script("main.sh", ConfigFolder(root=folder), header=lambda name, text: {})


def started(reading: ScriptReading) -> list[list[str]]:
    return [[word.plain for word in command.words] for command in reading.commands]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash itself is the oracle")
@pytest.mark.parametrize(
    "script",
    [
        'A="x y"; run $A "$A" ${A}z',
        'A=(1 "2 3" 4); run ${A[@]} "${A[@]}" ${#A[@]} ${A[1]} "${A[*]}"',
        "N=8; M=$((N*4/3)); run $M $((N>4 ? N%3 : 0)) $((2**5)) $(( (N-1) & 6 ))",
        "run ${X:-d} ${X-e} ${Y:=f} $Y ${Y:+g} ${Y#f} ${#Y}",
        "P=a/b/c.tar.gz; run ${P##*/} ${P%.*} ${P%%.*} ${P/b/Z} ${P//a/Q} ${P:2:3} ${P^^}",
        "for i in 1 2 3; do run $i; done",
        "for ((i=0; i<3; i++)); do run $i; done",
        "f() { run $1 $#; }; f a b; f c",
        "case 7B in 1B) run no;; 7*) run yes;; *) run other;; esac",
        'if [ "$U" = 1 ]; then run a; elif [[ 3 -gt 2 && x == x* ]]; then run b; else run c; fi',
        "A='q w'\nrun '$A' \"\\$A $A\" \\\n  --more `echo 5`",
        "A=1\nA+=2\nB=(a)\nB+=(b c)\nrun $A ${B[@]} ${B[-1]}",
        "i=0; while [ $i -lt 3 ]; do run $i; i=$((i+1)); done",
        "declare -A T=([a]=1 [b]=2); K=b; run ${T[$K]} ${T[a]}",
        "V=NAME; NAME=hello; run ${!V}",
        "false && run no; true || run no; false || run yes",
        "run $(dirname /a/b/c) $(basename x/y.sh .sh) $(expr 3 + 4) $(seq 2 4)",
        'set -- p q r; shift; run $1 $2 "$@"',
        "eval 'run one two'; W='run three'; $W",
        "( Z=1; run $Z ); run ${Z:-gone}",
        "read -r A B <<< 'k l m'; run $A $B",
    ],
)
def test_the_same_words_as_bash(tmp_path: Path, script: str) -> None:
    ours = [words[1:] for words in started(read(tmp_path, main=script)) if words[0] == "run"]
    tool = 'run() { printf "%s\\036" "$@"; printf "\\035"; }\n'
    done = subprocess.run(
        ["bash", "-c", tool + script], capture_output=True, text=True, timeout=20, check=False
    )
    theirs = [one.split("\x1e")[:-1] for one in done.stdout.split("\x1d")[:-1]]
    assert ours == theirs


@settings(max_examples=60, deadline=None)
@given(
    st.recursive(
        st.integers(0, 999).map(str),
        lambda inner: st.tuples(inner, st.sampled_from("+-*"), inner).map(
            lambda t: f"({t[0]} {t[1]} {t[2]})"
        ),
        max_leaves=12,
    )
)
def test_arithmetic_is_pythons_on_whole_numbers(text: str) -> None:
    plain = "".join(word.lstrip("0") or "0" if word.isdigit() else word for word in text.split(" "))
    assert evaluate(plain, {}.__getitem__) == eval(plain)


@pytest.mark.parametrize("text", ["1/0", "3 +", "2**999", "1.5*2", "((1)", "a b"])
def test_what_is_no_number(text: str) -> None:
    with pytest.raises(ArithmeticFault):
        evaluate(text, lambda name: 1)


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    reading = read(
        tmp_path, main=f"X=$(touch {mark}; echo 4)\ntouch {mark}\ntrain --n $X `touch {mark}`\n"
    )
    assert not mark.exists()
    (command,) = [c for c in reading.commands if c.words[0].plain == "train"]
    assert hole_numbers(command.words[2].text)


def test_holes_say_what_is_missing_and_where(tmp_path: Path) -> None:
    reading = read(tmp_path, main="A=$B\n\ntrain --tp $A --n $(nvidia-smi -L | wc -l)\n")
    (command,) = reading.commands
    holes = [reading.holes[n] for word in command.words for n in hole_numbers(word.text)]
    assert [(h.kind, h.name, str(h.place)) for h in holes] == [
        ("unset", "B", "main.sh:1"),
        ("output", "nvidia-smi -L | wc -l", "main.sh:3"),
    ]


def test_words_know_their_lines(tmp_path: Path) -> None:
    reading = read(
        tmp_path, main='ARGS="\n  --tp 2 \\\n  --pp 4"\nL=(\n  --x\n  --y\n)\nt $ARGS "${L[@]}"\n'
    )
    (command,) = reading.commands
    lines = {word.plain: word.place.line for word in command.words}
    assert lines == {"t": 8, "--tp": 2, "2": 2, "--pp": 3, "4": 3, "--x": 5, "--y": 6}


def test_undecided_conditions_keep_what_both_branches_say(tmp_path: Path) -> None:
    script = (
        "A=(--tp 2)\nB=1\n"
        "if [ -f /some/file ]; then\n  A+=(--fast)\n  B=2\n  C=7\nelse\n  C=7\nfi\n"
        "if [ ! -d $D ]; then\n  exit 1\nfi\ntrain ${A[@]} $B $C\n"
    )
    (command,) = read(tmp_path, main=script).commands
    plain = [word.plain for word in command.words]
    assert plain[:3] == ["train", "--tp", "2"]
    assert plain[4] == "7"
    assert hole_numbers(plain[3])


def test_sources_in_a_circle_end(tmp_path: Path) -> None:
    reading = read(tmp_path, main="source a.sh\nrun end\n", a=". ./b.sh\n", b="source main.sh\n")
    assert started(reading) == [["run", "end"]]
    ((place, chain),) = reading.cycles
    assert str(place) == "b.sh:1"
    assert chain == "main.sh -> a.sh -> b.sh -> main.sh"


@pytest.mark.parametrize(
    "script",
    [
        "while true; do run; done",
        "f() { f; f; }; f",
        "A=x; for i in $(seq 40); do A=$A$A; done",
        "((((((((((",
        "if [ ",
        'echo "unclosed',
        "case x in (",
        "$(" * 300,
    ],
)
def test_endless_and_broken_scripts_end(tmp_path: Path, script: str) -> None:
    read(tmp_path, main=script)


@pytest.mark.skipif(shutil.which("sed") is None, reason="sed itself is the oracle")
@pytest.mark.parametrize(
    ("command", "followed"),
    [
        ("sed 's/ONE/1/' t.txt | sed -e 's#TWO#b c#g' -e 's/THREE/x/' > out.txt", True),
        ("cat t.txt | sed 's/ONE/1/; s/TWO/2/g' > out.txt", True),
        ('N=7; sed "s/ONE/${N}/" t.txt > out.txt', True),
        ("cp t.txt out.txt; sed -i 's/ONE/1/g' t.txt; cp t.txt out.txt", True),
        ("sed 's/O.E/1/' t.txt > out.txt", False),
        ("sed 's/ONE/<&>/' t.txt > out.txt", False),
        ("sed '/ONE/d' t.txt > out.txt", False),
        ("sed -n 's/ONE/1/' t.txt > out.txt", False),
        ("sed 's/ONE/1/' t.txt | sort > out.txt", False),
    ],
)
def test_files_that_sed_fills_in(tmp_path: Path, command: str, followed: bool) -> None:
    """What sed itself writes, or nothing where an edit is more than words for words."""
    text = "a ONE ONE TWO\nTWO THREE\n"
    (tmp_path / "t.txt").write_text(text)
    (tmp_path / "main.sh").write_text(command + "\n")
    folder = ConfigFolder(root=tmp_path)
    read_script("main.sh", folder, header=lambda name, text: {})
    ours = folder.texts.get("t.txt" if " -i " in command else "out.txt")
    assert (tmp_path / "t.txt").read_text() == text  # only read
    subprocess.run(["sh", "main.sh"], cwd=tmp_path, check=True)
    if followed:
        assert ours == (tmp_path / "out.txt").read_text()
    else:
        assert "out.txt" not in folder.written
