"""Which files `make test-wild` alone runs: those whose environments it builds."""

import os

collect_ignore = [] if os.environ.get("JAXKV_WILD") == "1" else ["test_elsewhere.py"]
