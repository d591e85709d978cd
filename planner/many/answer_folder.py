"""The result folder of a sweep: one plan file per question, written whole the moment it is known.

A folder is a shelf (many/sweep.py): a sweep that was cut short finds there what it had answered.
A file is named by its question's key, so that another question, other data or other code never read
it. Behind the folder stands the cache of answers, which serves all folders.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from planner.many.answer_cache import AnswerCache
from planner.many.answer_file import decision_of, kept_answer, schema_of
from planner.many.sweep import Answer, Posed, finished
from profiles.document import encode, write_document


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerFolder:
    """The shelf at a folder.

    cache    earlier answers of any question, or None
    version  what the files say of the program that wrote them
    """

    folder: Path
    cache: AnswerCache | None = None
    version: str = ""

    def find(self, posed: Posed) -> Answer | None:
        """The answer that the folder holds, else the cache's, which then stands in the folder."""
        found = kept_answer(self.path(posed.key))
        if found is not None:
            return found
        known = self.cache.find(posed.job.key) if self.cache is not None else None
        return self._write(posed, known) if known is not None else None

    def keep(self, posed: Posed, solved: Answer) -> Answer:
        """Writes the answer of a job as the question's, and into the cache as the job's."""
        if self.cache is not None:
            self.cache.keep(posed.job.key, solved)
        return self._write(posed, solved)

    def path(self, key: str) -> Path:
        """The plan file of the question with this key."""
        return self.folder / f"{key}.json"

    def _write(self, posed: Posed, solved: Answer) -> Answer:
        return write_answer(self.path(posed.key), posed, solved, version=self.version)


def write_answer(path: Path, posed: Posed, solved: Answer, *, version: str) -> Answer:
    """Writes the plan file of a question, and gives the answer as it is there: priced, with what
    was assumed of the question."""
    answer = finished(solved, posed)
    provenance = {
        "version": version,
        "question": encode(posed.question),
        "decided": decision_of(answer),
    }
    write_document(path, answer, schema=schema_of(answer), provenance=provenance)
    return answer
