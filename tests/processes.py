"""Processes that begin at once: forked from one in which torch is imported and nothing else has happened."""

import multiprocessing

FORKED = multiprocessing.get_context("forkserver")
FORKED.set_forkserver_preload(["plaudit.training.trainer"])  # imports all that these tests run
