"""Runs the unittest cases of the main module and ends with one line of counts."""

import sys
import unittest


SKIPPED = 77  # what ctest takes for "skipped" (tests/CMakeLists.txt)


class TallyResult(unittest.TextTestResult):
    n_passed = 0

    def addSuccess(self, test):
        super().addSuccess(test)
        self.n_passed += 1


def run(names):
    """names: cases to run, all when empty. Returns the exit status: SKIPPED when every case was."""
    runner = unittest.TextTestRunner(resultclass=TallyResult, verbosity=1)
    result = unittest.main(module="__main__", argv=[sys.argv[0], *names], exit=False,
                           testRunner=runner).result
    n_failed = len(result.failures) + len(result.errors) + len(result.unexpectedSuccesses)
    sys.stderr.flush()
    skipped = f", {len(result.skipped)} skipped" if result.skipped else ""
    print(f"{result.n_passed} passed, {n_failed} failed{skipped}")
    if n_failed or not result.n_passed + len(result.skipped):
        return 1
    return 0 if result.n_passed else SKIPPED
