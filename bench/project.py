"""A job like a build: a generated C project, with as many short processes as it has files.

Without a compiler, Python compiles each file in as many processes: the shell of make, a driver that waits,
and the compiler that works.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

_FILES, _FUNCTIONS = 150, 40
_FUNCTION = """
static unsigned step{number}(unsigned *table, unsigned count, unsigned sum) {{
    for (unsigned at = 0; at < count; at++) {{
        if ((table[at] ^ sum) & {mask}u) sum = sum * 31u + table[(at + {number}u) % count];
        else switch (sum % 5u) {{
            case 0: sum += table[at] << 3; break;
            case 1: sum ^= table[at] >> 2; break;
            default: sum -= (unsigned) strlen("{mask}") * at;
        }}
        table[at] = sum;
    }}
    return sum;
}}
"""
_MAKEFILE = """OBJECTS = {objects}
program: $(OBJECTS)
\t{link}
%.o: %.c
\t{compile}
clean:
\trm -f program *.o
"""
_INSTEAD = """import ast, subprocess, sys
if len(sys.argv) > 2:
    for _ in range(70):
        compile(open("instead.txt").read(), "", "exec")
    open(sys.argv[1], "w").close()
else:
    sys.exit(subprocess.call([sys.executable, __file__, *sys.argv[1:], "now"]))
"""


def make_project(folder: Path, files: int = _FILES) -> list[str]:
    """Write it there. Return the build command, some 20 s on two cores for the usual number of files."""
    names = [f"unit{number}" for number in range(files)]
    for number, name in enumerate(names):
        (folder / f"{name}.c").write_text(_unit(number), encoding="ascii")
    (folder / "main.c").write_text(_main(names), encoding="ascii")
    compiler, linker = "gcc -O2 -c -o $@ $<", "gcc -o $@ $^"
    if not shutil.which("gcc"):
        (folder / "instead.py").write_text(_INSTEAD, encoding="ascii")
        (folder / "instead.txt").write_text("x = [a * 2 for a in b if a > 1]\n" * 100, encoding="ascii")
        compiler, linker = f"{sys.executable} instead.py $@", "touch $@"
    objects = " ".join(f"{name}.o" for name in ("main", *names))
    makefile = _MAKEFILE.format(objects=objects, compile=compiler, link=linker)
    (folder / "Makefile").write_text(makefile, encoding="ascii")
    return ["make", "-s", "-j2"]


def clean_project(folder: Path) -> None:
    for path in (*folder.glob("*.o"), folder / "program"):
        path.unlink(missing_ok=True)


def _main(names: list[str]) -> str:
    declared = "".join(f"unsigned {name}(unsigned *, unsigned);\n" for name in names)
    calls = "".join(f"    sum += {name}(table, 64);\n" for name in names)
    begin = "int main(void) {\n    unsigned table[64] = {1}, sum = 0;\n"
    return f"{declared}{begin}{calls}    return sum == 1;\n}}\n"


def _unit(number: int) -> str:
    head = "#include <math.h>\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n"
    steps = range(_FUNCTIONS)
    functions = "".join(_FUNCTION.format(number=n, mask=(number * 7 + n * 13) % 255 | 1) for n in steps)
    calls = "".join(f"    sum += step{n}(table, count, sum);\n" for n in steps)
    begin = f"unsigned unit{number}(unsigned *table, unsigned count) {{\n    unsigned sum = {number}u;\n"
    return f"{head}{functions}{begin}{calls}    return sum;\n}}\n"
