"""Says how the trials go, and what they come to."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, assert_never

from mutants.trial import Broken, Noticed, Outcome, Survived

if TYPE_CHECKING:
    from typing import TextIO

    from mutants.mutant import Mutant

NOTICED_RATIO_MIN = 0.95


class Report:
    """Counts outcomes as they come."""

    def __init__(self, total: int, output: TextIO) -> None:
        self._total = total
        self._output = output
        self._counts: Counter[str] = Counter()
        self._wrong: list[str] = []

    def say(self, line: str) -> None:
        """Print a line at once."""
        self._output.write(f"{line}\n")
        self._output.flush()

    def note(self, mutant: Mutant, outcome: Outcome, seconds: float) -> None:
        """Take an outcome, and print it with the count."""
        word = self._judge(mutant, outcome)
        self._counts[word] += 1
        place = f"{self._counts.total():>{len(str(self._total))}}/{self._total}"
        self.say(f"{place}  {word:<15}{seconds:4.0f} s  {_title(mutant)}")

    def conclude(self) -> bool:
        """Print the summary; return whether the tests are as good as they have to be."""
        hangs = self._counts["hang"]
        noticed = self._counts["noticed"] + hangs
        for line in self._wrong:
            self.say(f"\n{line}")
        self.say(
            f"\nnoticed {noticed} of {self._total} ({noticed / self._total:.1%}),"
            f" {hangs} of them by a hang;"
            f" survivors with reason {self._counts['equivalent']},"
            f" without {self._counts['SURVIVED']}; broken {self._counts['BROKEN']}"
        )
        return not self._wrong and noticed >= NOTICED_RATIO_MIN * self._total

    def _judge(self, mutant: Mutant, outcome: Outcome) -> str:
        match outcome:
            case Noticed() if mutant.survives is not None:
                self._wrong.append(f"{_title(mutant)}\n  is noticed: its reason is wrong")
                return "BROKEN"
            case Noticed(is_hang):
                return "hang" if is_hang else "noticed"
            case Survived() if mutant.survives is not None:
                return "equivalent"
            case Survived():
                passed = "".join(f"\n  {test}" for test in mutant.tests)
                self._wrong.append(f"{_title(mutant)}\n  survived{passed}")
                return "SURVIVED"
            case Broken(reason):
                self._wrong.append(f"{_title(mutant)}\n  {reason}")
                return "BROKEN"
            case _:
                assert_never(outcome)


def _title(mutant: Mutant) -> str:
    return f"{mutant.name}  {mutant.file}: {mutant.why}"
