"""Workers of comparisons are forked with all imports done."""

import tests.support.forking  # noqa: F401 - for what it sets
