"""Run every measurement, one after another: `python -m bench`."""

import runpy

for name in ("step_overhead", "save_stall", "resume_latency", "verify_cost", "kill_soak"):
    print(f"\n== bench/{name}.py", flush=True)
    runpy.run_module(f"bench.{name}", run_name="__main__")
