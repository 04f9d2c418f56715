"""python -m oxccl run train.py: the program with OxCCL in NCCL's place. Everything else goes to the tool `oxccl`."""

import os
import sys

from . import library_path, tool_path

USAGE = """\
usage: python -m oxccl run [--] PROGRAM [ARGUMENTS...]

Runs a program with OxCCL's libnccl.so.2 before every other one. PROGRAM is
  train.py ...            a script, for this Python interpreter
  -m module ...           a module, or any other option of the interpreter
  torchrun ...            a command; its child processes have the library, too
"""


def command(words):
    """What is executed for the words after `run`."""
    is_marked = words[0] == "--"
    words = words[1:] if is_marked else words
    if not words:
        raise SystemExit(USAGE)
    is_script = words[0].endswith((".py", ".pyc", ".pyz"))
    if is_script or (words[0].startswith("-") and not is_marked):
        return [sys.executable, *words]
    return words


def environment(before, library):
    """The variables of a process that loads `library` first, and then what it would have loaded first without it."""
    after, folder = dict(before), os.path.dirname(library)
    name, separator = library, ":"
    if set(library) & set(": "):
        # The loader splits its list at these. By its bare name it looks for the library in folders, whose list has colons only.
        if set(folder) & set(":;"):
            raise SystemExit(f"python -m oxccl: the loader cannot be given a path with ':' or ';' in it: {library}")
        name = os.path.basename(library)
        after["LD_LIBRARY_PATH"] = separator.join(filter(None, [folder, before.get("LD_LIBRARY_PATH")]))
    others = before.get("LD_PRELOAD", "").replace(separator, " ").split()
    after["LD_PRELOAD"] = separator.join([name, *(other for other in others if other != name)])
    return after


def replace(words, variables):
    """Becomes another program: its signals and its exit status are this process's."""
    sys.stdout.flush()
    sys.stderr.flush()
    try:
        os.execvpe(words[0], words, variables)
    except OSError as error:
        print(f"python -m oxccl: {words[0]}: {error.strerror}", file=sys.stderr)
        # As shells have it.
        raise SystemExit(127 if isinstance(error, FileNotFoundError) else 126) from None


def main():
    words = sys.argv[1:]
    if words[:1] != ["run"]:
        return replace([tool_path(), *words], os.environ)
    if words[1:] in ([], ["-h"], ["--help"]):
        print(USAGE, end="")
        return 0 if words[1:] else 2
    return replace(command(words[1:]), environment(os.environ, library_path()))


if __name__ == "__main__":
    sys.exit(main())
