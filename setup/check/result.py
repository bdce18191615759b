"""One line of the table that setup/check.sh prints."""

from dataclasses import dataclass

OK, WARN, FAIL = "ok", "warn", "FAIL"


@dataclass(frozen=True)
class CheckResult:
    """`found`: the rule and the value, `remedy`: the action for the user, of each line that is not ok."""

    status: str
    name: str
    found: str
    remedy: str = ""

    def __str__(self) -> str:
        remedy = f"   remedy: {self.remedy}" if self.remedy else ""
        return f"{self.status:5} {self.name:11} {' '.join(self.found.split())}{remedy}"
