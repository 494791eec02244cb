"""What malloc does with large blocks, counted in page faults of processes of their own."""

import os
import platform
import subprocess
import sys

import pytest

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="only glibc maps large blocks anew")

# Ten blocks of 40 MB, one after the other, as activations come and go; 4 KB a page are 10,000 faults a block.
COUNT = """
import resource
def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
block = b"x" * (40 << 20)
del block
before = faults()
for _ in range(10):
    block = b"x" * (40 << 20)
    del block
print(faults() - before)
"""
TENSORS = """
import resource
import torch
from plaudit.processes import keep_freed_memory
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(10 << 20)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
print(faults())
keep_freed_memory()
faults()
print(faults())
"""
KEEP = "from plaudit.processes import keep_freed_memory\nkeep_freed_memory()\n"
START_ANOTHER = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', sys.argv[1]], check=True)\n"
COMMAND = """
import sys
import typer
from plaudit.cli.common import run_app
app = typer.Typer()
@app.command()
def count(code: str):
    exec(code, {})
run_app(app)
"""


def faults(code: str, *words: str, **environment: str) -> int:
    (count,) = counted(code, *words, **environment)
    return count


def counted(code: str, *words: str, **environment: str) -> list[int]:
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_"))}
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env={**clean, **environment}, capture_output=True, text=True, check=True)
    return [int(line) for line in done.stdout.split()]


@pytest.fixture(scope="module")
def without() -> int:
    """What the blocks cost as glibc has it."""
    count = faults(COUNT)
    assert count > 1000
    return count


def test_blocks_that_were_freed_are_handed_out_again(without):
    assert faults(KEEP + COUNT) < without / 10


@pytest.mark.slow  # it imports torch
def test_tensors_are_made_in_the_memory_of_those_before():
    before, after = counted(TENSORS)
    if before < 1000:
        pytest.skip("this build of torch has an allocator of its own, which keeps blocks anyway")
    assert after < before / 10


def test_processes_that_are_started_keep_their_blocks_too(without):
    assert faults(KEEP + START_ANOTHER, COUNT) < without / 10


def test_a_command_keeps_its_blocks(without):
    assert faults(COMMAND, COUNT) < without / 10


@pytest.mark.parametrize(
    "said", [{"MALLOC_MMAP_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_threshold=131072"}]
)
def test_what_the_user_set_in_the_environment_counts(without, said):
    assert faults(KEEP + COUNT, **said) > without / 2
