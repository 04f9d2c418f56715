"""Uses the installed wheel, in a virtual environment that has nothing else. Ends with `ok` and how many checks passed."""

import os
import subprocess
import sys
import tempfile

import oxccl

# What a program finds when it asks for NCCL by name.
PROBE = """
import ctypes, os, sys
library = ctypes.CDLL("libnccl.so.2")
version = ctypes.c_int()
assert library.ncclGetVersion(ctypes.byref(version)) == 0
library.ncclGetLastError.restype = ctypes.c_char_p
library.ncclGetErrorString.restype = ctypes.c_char_p
assert library.ncclCommCount(ctypes.c_void_p(64), ctypes.byref(version)) == 4
paths = {line.split(None, 5)[5].strip() for line in open("/proc/self/maps") if "libnccl" in line}
print(version.value, library.ncclGetErrorString(4).decode(), *sorted(paths), *sys.argv[1:], sep="|")
print(library.ncclGetLastError(None).decode(), file=sys.stderr)
print(os.environ["LD_PRELOAD"], file=sys.stderr)
"""

passed = 0


def run(*words, **more):
    variables = {**os.environ, **more.pop("env", {})}
    return subprocess.run([sys.executable, "-m", "oxccl", *words], capture_output=True, text=True, env=variables, **more)


def check(is_right, what):
    global passed
    if not is_right:
        sys.exit(f"not so: {what}")
    passed += 1


with tempfile.TemporaryDirectory() as folder:
    os.chdir(folder)
    for name, text in {
        "probe.py": PROBE,
        "seven.py": "raise SystemExit(7)",
        "term.py": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
        "child.py": "import subprocess, sys; sys.exit(subprocess.call([sys.executable, 'probe.py']))",
    }.items():
        with open(name, "w") as file:
            file.write(text)

    for path in [oxccl.library_path(), oxccl.bundle_path(), oxccl.plugin_path(), oxccl.tool_path(), os.path.join(oxccl.include_path(), "nccl.h")]:
        check(os.path.isfile(path) and path.startswith(sys.prefix), f"{path} is a file of this environment")

    ours = os.path.realpath(oxccl.library_path())
    for words in (["probe.py"], ["-u", "probe.py"], ["-m", "probe"], ["--", sys.executable, "probe.py"], ["child.py"]):
        result = run("run", *words)
        said = result.stdout.strip().split("|")
        is_ours = [said[0], said[-1]] == ["23203", ours] and said[1].startswith("invalid argument")
        check(result.returncode == 0 and is_ours, f"{words}: {result}")
    check("|a b|-x" in run("run", "probe.py", "a b", "-x").stdout, "arguments pass as they are")

    other = "libm.so.6"
    text = run("run", "probe.py", env={"LD_PRELOAD": other}).stderr
    check(f"{oxccl.library_path()}:{other}" in text, f"what was preloaded stays, behind: {text}")
    check(run("run", "seven.py").returncode == 7, "the exit status is the program's")
    check(run("run", "term.py").returncode == -15, "signals are the program's")
    check(run("run", "no-such-program").returncode == 127, "a missing program")
    check(run("run").returncode == 2 and "usage" in run("run", "--help").stdout, "usage")

    spaced = os.path.join(folder, "with space")
    os.mkdir(spaced)
    os.symlink(ours, os.path.join(spaced, "libnccl.so.2"))
    script = f"from oxccl.__main__ import *; replace(command(['probe.py']), environment(os.environ, {os.path.join(spaced, 'libnccl.so.2')!r}))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    check(result.returncode == 0 and "23203|" in result.stdout, f"a path with a blank: {result}")

    check(run("--version").stdout.startswith(f"oxccl {oxccl.__version__}"), "the tool's version")
    sums = run("perf", "all-reduce", "--ranks", "2", "-b", "8", "-e", "8", "-n", "1", "-c", "1")
    check("# Out of bounds values : 0 OK" in sums.stdout, f"the tool sums: {sums}")

plugin = {"NCCL_NET_PLUGIN": oxccl.plugin_path(), "NCCL_NET": "OxCCL", "NCCL_SOCKET_IFNAME": "lo"}
sums = run("perf", "all-reduce", "--ranks", "2", "--transport", "net", "-b", "8", "-e", "8", "-n", "1", "-c", "1", env=plugin)
check("# Out of bounds values : 0 OK" in sums.stdout, f"the tool sums over the plugin: {sums}")

print(f"ok {passed}")
