"""Measure commits with asv, store the results in the repository, and publish their charts.

``python history.py 20`` measures the last 20 commits of the first-parent history and every tag; ``--revisions A B``
measures these two. Commits with results are skipped, so you can stop and restart the script. asv builds each commit in
a separate environment; the benchmarks are those of this checkout. ``--html`` publishes the stored results.
"""

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import charts
from asv.machine import MachineCollection
from asv.util import load_json
from tracked import cpu

HERE = Path(__file__).parents[1]  # where asv is run
CONFIG, RESULTS = HERE / "asv.conf.json", HERE / "results"
REFERENCE = "zen3-2cores"
TRACKED = r"^tracked\."
COLUMNS = ("result", "params", "version")  # the parts of asv's results that charts need
PARAMS = ("arch", "cpu", "machine", "num_cpu", "os", "ram", "python")  # asv adds the packages of an environment
DIGITS = 5
VERSION = 2  # of asv's files of results


def git(*arguments: str) -> str:
    return subprocess.check_output(("git", "-C", str(HERE), *arguments), text=True).strip()


def asv(*arguments: str) -> int:
    """Run asv in this folder, and return its exit status."""
    return subprocess.call([sys.executable, "-m", "asv", *arguments], cwd=HERE)


def last(number: int) -> list[str]:
    """Return the last commits of the first-parent history, and those of the tags."""
    tags = [git("rev-list", "-n1", tag) for tag in git("tag").split()]
    return list(dict.fromkeys([*git("rev-list", "--first-parent", f"-n{number}", "HEAD").split(), *tags]))


def kept(machine: str, commit: str) -> Path:
    """Return the file that keeps the results of a commit."""
    return RESULTS / machine / f"{commit[:8]}.json"


def describe(machine: str) -> None:
    """Store the description of the machine, under a name without its owner, or check that it is the same machine."""
    file = RESULTS / machine / "machine.json"
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    parts = {"arch": platform.machine(), "cpu": cpu(), "num_cpu": str(os.cpu_count()), "ram": f"{memory:.0f} GiB"}
    described = {"machine": machine, "os": platform.system(), **parts, "version": 1}
    if file.exists() and json.loads(file.read_text()) != described:
        raise SystemExit(f"{machine} is another machine than this one; choose another name with --machine")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(compact(described))
    described.pop("version")
    MachineCollection.save(machine, described)  # `asv machine` leaves out values that equal its guesses


def measure(machine: str, commit: str) -> bool:
    """Measure a commit and store its results; return whether there are any."""
    core = max(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    asv("run", "--machine", machine, "--cpu-affinity", str(core), "--bench", TRACKED, f"{commit}^!")
    for file in (HERE / ".asv/results" / machine).glob(f"{commit[:8]}-virtualenv*.json"):
        found = short(json.loads(file.read_text()))
        if any(value is not None for result, *_ in found["results"].values() for value in result or ()):
            kept(machine, commit).write_text(compact(found))
            keep_benchmarks()
            return True
    return False


def short(results: dict) -> dict:
    """Return the parts of one of asv's files that charts need: no statistics, no durations, few digits.

    The packages of its environment are left out too: charts would have a line for every set of packages.
    """
    columns = [results["result_columns"].index(name) for name in COLUMNS]
    cut = {}
    for name, row in results["results"].items():
        if re.search(TRACKED, name):
            row = [*row, *[None] * len(results["result_columns"])]  # asv leaves out empty values at the end
            cut[name] = [rounded(row[column]) for column in columns]
    parts = {key: results[key] for key in ("commit_hash", "date", "python", "env_vars")}
    parts |= {"env_name": f"virtualenv-py{results['python']}", "requirements": {}}
    parts["params"] = {key: results["params"][key] for key in PARAMS}
    return {**parts, "result_columns": COLUMNS, "results": cut, "durations": {}, "version": VERSION}


def rounded(values: object) -> object:
    if isinstance(values, list):
        return [rounded(value) for value in values]
    return float(f"{values:.{DIGITS}g}") if isinstance(values, float) else values


def keep_benchmarks() -> None:
    """Store asv's data on the tracked benchmarks: their parameters and units."""
    known = json.loads((HERE / ".asv/results/benchmarks.json").read_text())
    known = {name: each for name, each in known.items() if name == "version" or re.search(TRACKED, name)}
    (RESULTS / "benchmarks.json").write_text(compact(known))


def compact(value: object) -> str:
    return json.dumps(value, separators=(",", ":")) + "\n"


def publish() -> Path:
    """Write the chart pages of the stored results, and return their folder."""
    config = load_json(CONFIG, js_comments=True)
    html = HERE / config["html_dir"]
    places = {"repo": HERE.parent, "benchmark_dir": HERE / config["benchmark_dir"], "results_dir": RESULTS}
    config |= {key: str(path) for key, path in places.items()} | {"html_dir": str(html)}
    file = HERE / ".asv/publish.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps(config))
    if asv("publish", "--no-pull", "--config", str(file)):
        raise SystemExit("asv publish failed")
    try:
        charts.bring_libraries(html)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"the charts need the internet: npm did not bring their libraries ({error})", file=sys.stderr)
    return html


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("number", nargs="?", type=int, default=20, help="of commits, beside the tags (default: 20)")
    parser.add_argument("--revisions", nargs="*", metavar="REVISION", help="measure these instead")
    parser.add_argument("--machine", default=REFERENCE, help=f"name to keep results under (default: {REFERENCE})")
    parser.add_argument("--html", action="store_true", help="publish the charts of the stored results, measure nothing")
    options = parser.parse_args()
    if options.html:
        print(f"python -m http.server -d {publish()}")
        return
    describe(options.machine)
    given = [git("rev-parse", "--verify", f"{name}^{{commit}}") for name in options.revisions or ()]
    commits = given or last(options.number)
    waiting = [commit for commit in commits if not kept(options.machine, commit).exists()]
    print(f"{len(commits) - len(waiting)} of {len(commits)} commits have results", flush=True)
    empty = [commit[:8] for commit in waiting if not measure(options.machine, commit)]
    if empty:
        raise SystemExit(f"not built or not measured: {', '.join(empty)}")


if __name__ == "__main__":
    main()
