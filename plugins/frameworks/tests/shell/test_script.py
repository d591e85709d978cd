"""What is read of a shell script: compared with bash for what is followed, and by hand for the
rest, which has to be reported as unknown."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from shardwright_frameworks.reading.read_config import read_config
from shardwright_frameworks.shell.config_folder import ConfigFolder
from shardwright_frameworks.shell.expansion import arithmetic
from shardwright_frameworks.shell.script import read_script
from shardwright_frameworks.shell.script_reading import Command, ScriptReading
from shardwright_frameworks.shell.text_marks import Place, unknown_numbers
from shardwright_frameworks.shell.variables import Scope


def read(folder: Path, **files: str) -> ScriptReading:
    for name, text in files.items():
        (folder / f"{name}.sh").write_text(text)
    return read_script("main.sh", ConfigFolder(root=folder), header=lambda name, text: {})


def started(reading: ScriptReading) -> list[list[str]]:
    return [[word.plain for word in command.words] for command in reading.commands]


def command_of(folder: Path, script: str) -> tuple[Command, ScriptReading]:
    reading = read(folder, main=script)
    (command,) = [each for each in reading.commands if each.words[0].plain == "train"]
    return command, reading


def unknowns_of(folder: Path, script: str) -> list[tuple[str, str, str]]:
    """Kind, name and place of the unknown values of the only `train` command."""
    command, reading = command_of(folder, script)
    values = [reading.unknowns[n] for word in command.words for n in unknown_numbers(word.text)]
    return [(value.kind, value.name, str(value.place)) for value in values]


@pytest.mark.skipif(shutil.which("bash") is None, reason="bash itself is the oracle")
@pytest.mark.parametrize(
    "script",
    [
        'A="x y"; run $A "$A" ${A}z "" $A$A',
        'declare -A T=([a]="1 2" [b]=3); K=a; run ${T[$K]} "${T[b]}" "${T[c]:-no}"',
        "A=(1 2); I=1; run ${A[$I]} ${A[I-1]}",
        "A=\"--x 1\n  --y   2 \"; run $(echo \"$A\" | tr '\\n' ' ' | sed 's/  */ /g') z",
        "A='a  b'; run `echo $A | xargs` $(echo $A | tr -s ' ') $(echo \"1 2\")",
        "for N in $(echo '1 2 3'); do run $N; done",
        'declare -A T=([a]="1 2"); f() { local -n r=$1; w=(${r[$2]}); }; f T a; run ${w[1]}',
        'A="--x 1 --y"; if [[ ! "$A" =~ "--z" ]] && [[ "$A" =~ "--y" ]]; then A="$A 2"; fi; run $A',
        'A=(1 "2 3" 4); run ${A[@]} "${A[@]}" ${A[1]} "${A[*]}" x"${A[@]}"y',
        'A=(); run "${A[@]}" a ${A[@]}',
        "N=8; M=$((N*4/3)); run $M $(( (N-1) % 6 )) $(($N + ${M}))",
        'run ${X:-d} ${X-e} ${Y:=f} $Y ${Y:+g} ${X:-${Y}h} "${X:-q r}"',
        ": ${A:=1} ${B:=2}; run $A $B",
        "A='q w'\nrun '$A' \"\\$A $A\" a\\ b \\\n  --more # not this\nrun x#y",
        "A=1\nA+=2\nB=(a)\nB+=(b c)\nrun $A ${B[@]}",
        'B=(\n  --a 1 # note\n  # --b 2\n  --c "d e"\n)\nrun "${B[@]}"',
        'if [ -z "$U" ]; then U=1; fi; run $U',
        'U=2; if [ -z "$U" ]; then U=1; elif [ $U = 2 ]; then V=3; fi; run $U $V',
        'A=fp8; if [[ "$A" == "fp8" ]]; then run a; else run b; fi',
        '[ -n "$U" ] && U=no; [ -z "$U" ] && U=yes; run $U',
        "case 7B in 1B) run no;; 7*) run yes;; *) run other;; esac",
        "f() { local Z=$1; run $Z $#; }; f a b; f c",
        "eval 'run one two'; W='run three'; $W",
        "( Z=1; run $Z ); run ${Z:-gone}",
        "for i in one; do run $i; done",
        "A=1 B=$A; run $A $B; C=2 run ${C:-no}",
        "set -e\nexport A=3 B='4 5'\nrun $A \"$B\" 2>&1 > /dev/stdout | cat",
        "run a; exit 0; run b",
        "read -r -d '' A <<EOF\nx $((1+1))\n  y\nEOF\nrun $A",
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
def test_arithmetic_is_that_of_whole_numbers(text: str) -> None:
    value = eval(text)
    found = arithmetic(text, Place("a.sh", 1), Scope())
    assert found == str(value) or unknown_numbers(found)


@pytest.mark.parametrize("text", ["1/0", "3 +", "2**999", "1.5*2", "((1)", "a b", "-7/2", "1<2"])
def test_what_is_not_computed(text: str) -> None:
    assert unknown_numbers(arithmetic(text, Place("a.sh", 1), Scope()))


def test_nothing_is_run(tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    script = f"X=$(touch {mark}; echo 4)\ntouch {mark}\ntrain --n $X `touch {mark}`\n"
    assert len(unknowns_of(tmp_path, script)) == 2
    assert not mark.exists()


def test_loops_over_known_words_and_texts_that_are_split(tmp_path: Path) -> None:
    script = (
        'for C in "4,1" "2,2"; do\n  IFS=\',\' read -r TP PP <<< "$C"\n'
        "  train --tp $TP --pp $PP\ndone\n"
    )
    reading = read(tmp_path, main=script)
    commands = [" ".join(word.plain for word in each.words) for each in reading.commands]
    assert commands == ["train --tp 4 --pp 1", "train --tp 2 --pp 2"]


def test_a_script_that_ends_at_an_empty_variable_is_completed_by_its_user(tmp_path: Path) -> None:
    script = 'IMAGE=""\nif [ -z "$IMAGE" ]; then\n  exit 1\nfi\ntrain --tp 4\n'
    command, _ = command_of(tmp_path, script)
    assert command.words[-1].plain == "4"


@pytest.mark.parametrize(
    ("script", "kind", "name", "line"),
    [
        ("A=$B\n\ntrain --tp $A", "unset", "B", 1),
        ("train --n $(nvidia-smi -L | wc -l)", "output", "nvidia-smi -L | wc -l", 1),
        ("A=`nproc --all`\ntrain --tp $A", "output", "nproc --all", 1),
        ("train --tp $1", "argument", "$1", 1),
        ("train --nodes $SLURM_NNODES", "runtime", "SLURM_NNODES", 1),
        ("for i in $(seq 4); do\n  train --tp $i\ndone", "loop", "i", 1),
        ("T=1\nfor i in 1 2; do\n  T=$i\ndone\ntrain --tp $T", "loop", "T", 2),
        ("N=0\nwhile [ $N -lt 4 ]; do N=$((N+1)); done\ntrain --tp $N", "loop", "N", 2),
        ("if [ $1 = x ]; then A=1; else A=2; fi\ntrain --tp $A", "branch", "A", 1),
        ("[ -f x ] && A=1\ntrain --tp $A", "branch", "A", 1),
        ("A=1\ngrep -q x y || A=2\ntrain --tp $A", "branch", "A", 2),
        ("case $1 in a) A=1;; *) A=2;; esac\ntrain --tp $A", "branch", "A", 1),
        ("A[1]=2\ntrain --tp ${A[1]}", "expression", "${A[...]}", 2),
        ("A=x.y\ntrain --tp ${A%%.*}", "expression", "${A%%.*}", 2),
        ('let "A = 8 / 4"\ntrain --tp $A', "output", "let A = 8 / 4", 1),
        ("A=${A:?set A}\ntrain --tp $A", "required", "A", 1),
    ],
)
def test_what_is_not_followed_is_unknown(
    tmp_path: Path, script: str, kind: str, name: str, line: int
) -> None:
    ((found, its_name, place),) = set(unknowns_of(tmp_path, f"{script}\n"))
    assert (found, its_name, place) == (kind, name, f"main.sh:{line}")


def test_words_know_their_lines(tmp_path: Path) -> None:
    script = 'ARGS="\n  --tp 2 \\\n  --pp 4"\nL=(\n  --x\n  --y\n)\ntrain $ARGS "${L[@]}"\n'
    command, _ = command_of(tmp_path, script)
    lines = {word.plain: word.place.line for word in command.words}
    assert lines == {"train": 8, "--tp": 2, "2": 2, "--pp": 3, "4": 3, "--x": 5, "--y": 6}


def test_options_of_a_sourced_file_know_their_file(tmp_path: Path) -> None:
    (tmp_path / "a.sh").write_text('ARGS="\n --tp 2"\n')
    command, _ = command_of(tmp_path, "source ./a.sh\ntrain $ARGS\n")
    assert [str(word.place) for word in command.words] == ["main.sh:2", "a.sh:2", "a.sh:2"]


def test_undecided_conditions_keep_what_their_branches_agree_on(tmp_path: Path) -> None:
    script = (
        "A=(--tp 2)\nB=1\n"
        "if [ -f /some/file ]; then\n  A+=(--fast)\n  B=2\n  C=7\nelse\n  C=7\nfi\n"
        "if [ ! -d $D ]; then\n  exit 1\nfi\ntrain $B $C ${A[@]}\n"
    )
    command, reading = command_of(tmp_path, script)
    _, b, c, *options = [word.plain for word in command.words]
    assert (c, options[:2]) == ("7", ["--tp", "2"])
    assert unknown_numbers(b)
    (number,) = unknown_numbers(options[2])
    assert options[2].startswith("--fast=")
    assert reading.unknowns[number].reason == (
        "`--fast` depends on a condition, which is not followed (main.sh:4)"
    )


MEGATRON = (
    "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 8 --hidden-size 512 "
    "--num-attention-heads 8 --seq-length 512 --micro-batch-size 2 "
)


@pytest.mark.parametrize(
    ("before", "open_"),
    [
        ('if [ $1 = x ]; then A="--bf16"; else A="--fp16"; fi', {"precision"}),
        ("A=(); if [ -f x ]; then A+=(--use-distributed-optimizer); fi",
         {"distributed_optimizer", "zero_stage"}),
        ("for P in 2 4; do A+=\" --pipeline-model-parallel-size $P\"; done", {"pp", "dp"}),
        ('if [ -f x ]; then A="--seq-length 1024 --tensor-model-parallel-size 2"; '
         'else A="--seq-length 1024 --tensor-model-parallel-size 4"; fi', {"tp", "dp"}),
    ],
)  # fmt: skip
def test_an_option_of_one_branch_leaves_its_fields_open(
    tmp_path: Path, before: str, open_: set[str]
) -> None:
    (tmp_path / "a.sh").write_text(f"{before}\n{MEGATRON} ${{A[@]}}\n")
    run = read_config(tmp_path / "a.sh")
    assert {name for name in open_ if run.answer(name) is not None} == set()
    assert run.unresolved
    assert all(each.place.startswith("a.sh:1") for each in run.unresolved)
    assert run.seq_len == (1024 if "1024" in before else 512)


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
        "A=x\n" + "A=$A$A\n" * 40,
        "((((((((((",
        "( " * 300,
        "if [ ",
        "if true; then " * 300,
        'echo "unclosed',
        "echo 'unclosed",
        "A=(1 2",
        "cat <<EOF",
        "case x in (",
        "$(" * 300,
        "fi done ) }",
        "\\",
    ],
)
def test_endless_and_broken_scripts_end(tmp_path: Path, script: str) -> None:
    read(tmp_path, main=script)


def test_configuration_files_that_a_script_writes(tmp_path: Path) -> None:
    script = (
        'S=2\ncat <<EOF > ds.json\n{"stage": $S, "a": "\\$S"}\nEOF\n'
        "cat > raw.json <<'EOF'\n{\"stage\": $S}\nEOF\ntee t.json <<EOF\n$S\nEOF\n"
    )
    (tmp_path / "main.sh").write_text(script)
    folder = ConfigFolder(root=tmp_path)
    read_script("main.sh", folder, header=lambda name, text: {})
    assert folder.texts["ds.json"] == '{"stage": 2, "a": "$S"}\n'
    assert folder.texts["raw.json"] == '{"stage": $S}\n'
    assert folder.texts["t.json"] == "2\n"
    assert folder.written["ds.json"] == ("main.sh", 3)
    assert not (tmp_path / "ds.json").exists()


@pytest.mark.parametrize("call", ['"${RUN[@]}"', "${RUN[@]}", 'eval "${RUN[@]}"'])
def test_a_command_in_an_array_keeps_its_beginning(tmp_path: Path, call: str) -> None:
    script = (
        "RUN=(torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4)\n"
        "if [ -f state ]; then\n  RUN+=(--bf16)\nfi\n"
        f"RUN+=(--seq-length 64)\n{call}\n"
    )
    (words,) = started(read(tmp_path, main=script))
    known = [word for word in words if not unknown_numbers(word)]
    assert known[:4] == ["torchrun", "--nproc_per_node", "8", "pretrain_gpt.py"]
    assert known[-2:] == ["--seq-length", "64"]
    assert [word.partition("=")[0] for word in words if word not in known] == ["--bf16"]
