"""Programs compiled for an H200 without one. Skipped where the compiler is missing."""

from collections.abc import Callable

import pytest
from gpu_programs import WATCHED

from paged_jax.bench.gpu_compile import Program, ProgramReport, compile_program
from paged_jax.bench.gpu_target import missing
from paged_jax.bench.resource_table import kernel_table, program_line

REPORTS = pytest.StashKey[list[ProgramReport]]()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    reason = missing()
    for item in items:
        if reason and "gpu_compile" in item.path.parts:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def compiled(pytestconfig: pytest.Config) -> Callable[[Program], ProgramReport]:
    """Compile a program, once, and keep its report for the table at the end."""
    reports = pytestconfig.stash.setdefault(REPORTS, [])
    by_name: dict[str, ProgramReport] = {}

    def compile_once(program: Program) -> ProgramReport:
        if program.name not in by_name:
            by_name[program.name] = compile_program(program)
            reports.append(by_name[program.name])
        return by_name[program.name]

    return compile_once


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    reports = terminalreporter.config.stash.get(REPORTS, [])
    if not reports:
        return
    terminalreporter.section("compiled for an H200")
    terminalreporter.write_line(kernel_table(reports, WATCHED))
    for report in reports:
        if report.alias_bytes or report.all_reduces:  # a whole step, or one divided
            terminalreporter.write_line(program_line(report))
