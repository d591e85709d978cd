"""What a framework's own code reads of exported cases, as JSON on stdout.

Imported by the read_*.py files beside it, which other environments run.
"""

import json
import sys


def answer_cases(read, **versions):
    """Print the versions and, by name, what `read` gives for each case of the file named in the
    arguments; an error is an answer too. What the framework prints goes to stderr."""
    with open(sys.argv[1], encoding="utf-8") as stream:
        cases = json.load(stream)
    out, sys.stdout = sys.stdout, sys.stderr
    answers = dict(versions)
    for name, case in cases.items():
        try:
            answers[name] = read(case)
        except (Exception, SystemExit) as error:
            answers[name] = {"error": f"{type(error).__name__}: {error}"}
    json.dump(answers, out, default=str)
