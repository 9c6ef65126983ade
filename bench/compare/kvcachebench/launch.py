"""kv-cache.py of MLPerf Storage v3.0 as it is, but for its printed summary. Run by its Python, not by ours.

Arguments: the folder kv_cache_benchmark of the source, then kv-cache.py's own. Some versions of the source fail while
they print the summary, after the measurement, and then write no result file. So nothing is printed.
"""

from __future__ import annotations

import sys

if __name__ == "__main__":
    source = sys.argv.pop(1)
    sys.path.insert(0, source)
    from kv_cache.benchmark import IntegratedBenchmark
    from kv_cache.cli import main

    IntegratedBenchmark._print_summary = lambda _self, _summary: None
    main()
