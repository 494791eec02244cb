"""A disk that remembers the order of everything: what a run did to it, and what a power cut at any moment could leave.

    with RecordedDisk(folder) as disk:
        ...                                   # everything that goes through `os` is recorded
    disk.lay_out(target, until=17, rng=rng)   # the first 17 calls, of which what was not synced may be lost

What was synced is there. Of what was not, each write may be there, be missing or be torn, whatever came before or after
it; so may each new, renamed or removed name, in the order of its folder.
"""

import os
import random
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

CALLS = ("open", "pwrite", "ftruncate", "fsync", "fdatasync", "mkdir", "replace", "link", "unlink", "rmdir")


@dataclass
class Call:
    """One change. `node` is the file or the folder that it changes."""

    kind: str  # "data", "size", "sync", "name"
    node: int
    offset: int = 0
    data: bytes = b""
    names: dict[str, int | None] = field(default_factory=dict)  # name -> node; None: removed
    moved: tuple[int, str] | None = None  # from another folder


class RecordedDisk:
    """Of one folder, for as long as the block lasts."""

    def __init__(self, root: Path):
        self.root = root
        self.calls: list[Call] = []
        self._nodes: dict[int, int] = {}  # inode -> node; inodes are used again, nodes are not
        self._folders: set[int] = set()
        self._real: dict[str, Callable[..., Any]] = {}
        self._next = 0
        self._top = self._new(root.stat().st_ino, folder=True)

    def __enter__(self) -> "RecordedDisk":
        self._real = {name: getattr(os, name) for name in CALLS}
        for name in CALLS:
            setattr(os, name, getattr(self, f"_{name}"))
        return self

    def __exit__(self, *_: object) -> None:
        for name, real in self._real.items():
            setattr(os, name, real)

    def lay_out(self, target: Path, until: int, rng: random.Random) -> None:
        """Make the folder that a machine would find."""
        files: dict[int, bytearray] = {}
        trees: dict[int, dict[str, int]] = {self._top: {}}
        last_sync = {call.node: i for i, call in enumerate(self.calls[:until]) if call.kind == "sync"}
        for i, call in enumerate(self.calls[:until]):
            lost = i >= last_sync.get(call.node, -1) and rng.random() < 0.5
            if call.kind == "name" and not lost:
                if call.moved is not None:
                    trees.setdefault(call.moved[0], {}).pop(call.moved[1], None)
                for name, node in call.names.items():
                    tree = trees.setdefault(call.node, {})
                    tree.pop(name, None)
                    if node is not None:
                        tree[name] = node
            elif call.kind == "data" and not lost:
                data = call.data
                if i >= last_sync.get(call.node, -1) and rng.random() < 0.3:
                    data = data[: rng.randrange(len(data) + 1)]
                file = files.setdefault(call.node, bytearray())
                file.extend(bytes(max(0, call.offset + len(data) - len(file))))
                file[call.offset : call.offset + len(data)] = data
            elif call.kind == "size" and not lost:
                del files.setdefault(call.node, bytearray())[call.offset :]
        self._write(target, self._top, files, trees)

    def _write(self, path: Path, node: int, files: dict[int, bytearray], trees: dict[int, dict[str, int]]) -> None:
        path.mkdir()
        for name, child in trees.get(node, {}).items():
            if child in self._folders:
                self._write(path / name, child, files, trees)
            else:
                (path / name).write_bytes(files.get(child, b""))

    def _new(self, inode: int, folder: bool = False) -> int:
        self._next += 1
        self._nodes[inode] = self._next
        if folder:
            self._folders.add(self._next)
        return self._next

    def _place(self, path: Any, dir_fd: int | None) -> tuple[int | None, str]:
        """The folder that a path lies in, and its name there; None: outside."""
        path = Path(path)
        real_open = self._real["open"]
        parent = real_open(path.parent, os.O_RDONLY | os.O_DIRECTORY, dir_fd=dir_fd)
        try:
            return self._nodes.get(os.fstat(parent).st_ino), path.name
        finally:
            os.close(parent)

    def _open(self, path: Any, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        made = bool(flags & os.O_CREAT) and not self._exists(path, dir_fd)
        descriptor = self._real["open"](path, flags, mode, dir_fd=dir_fd)
        inode = os.fstat(descriptor).st_ino
        if made:
            folder, name = self._place(path, dir_fd)
            if folder is not None:
                self.calls.append(Call("name", folder, names={name: self._new(inode)}))
        elif flags & os.O_TRUNC and inode in self._nodes:
            self.calls.append(Call("size", self._nodes[inode]))
        return descriptor

    def _exists(self, path: Any, dir_fd: int | None) -> bool:
        try:
            os.stat(path, dir_fd=dir_fd)
        except FileNotFoundError:
            return False
        return True

    def _pwrite(self, file: int, data: Any, offset: int) -> int:
        written = self._real["pwrite"](file, data, offset)
        node = self._nodes.get(os.fstat(file).st_ino)
        if node is not None:
            self.calls.append(Call("data", node, offset, bytes(data[:written])))
        return written

    def _ftruncate(self, file: int, size: int) -> None:
        self._real["ftruncate"](file, size)
        node = self._nodes.get(os.fstat(file).st_ino)
        if node is not None:
            self.calls.append(Call("size", node, size))

    def _fsync(self, file: int) -> None:
        node = self._nodes.get(os.fstat(file).st_ino)
        if node is not None:
            self.calls.append(Call("sync", node))

    _fdatasync = _fsync

    def _mkdir(self, path: Any, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
        self._real["mkdir"](path, mode, dir_fd=dir_fd)
        folder, name = self._place(path, dir_fd)
        if folder is not None:
            inode = os.stat(path, dir_fd=dir_fd).st_ino
            self.calls.append(Call("name", folder, names={name: self._new(inode, folder=True)}))

    def _replace(self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        node = self._nodes.get(os.stat(old, dir_fd=src_dir_fd).st_ino)
        source, name = self._place(old, src_dir_fd)
        target, new_name = self._place(new, dst_dir_fd)
        self._real["replace"](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        if source is not None and target is not None and node is not None:
            self.calls.append(Call("name", target, names={new_name: node}, moved=(source, name)))

    def _link(self, old: Any, new: Any, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None) -> None:
        self._real["link"](old, new, src_dir_fd=src_dir_fd, dst_dir_fd=dst_dir_fd)
        folder, name = self._place(new, dst_dir_fd)
        node = self._nodes.get(os.stat(new, dir_fd=dst_dir_fd).st_ino)
        if folder is not None and node is not None:
            self.calls.append(Call("name", folder, names={name: node}))

    def _unlink(self, path: Any, *, dir_fd: int | None = None) -> None:
        folder, name = self._place(path, dir_fd)
        self._real["unlink"](path, dir_fd=dir_fd)
        if folder is not None:
            self.calls.append(Call("name", folder, names={name: None}))

    def _rmdir(self, path: Any, *, dir_fd: int | None = None) -> None:
        folder, name = self._place(path, dir_fd)
        self._real["rmdir"](path, dir_fd=dir_fd)
        if folder is not None:
            self.calls.append(Call("name", folder, names={name: None}))


def clear(folder: Path) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    return folder
