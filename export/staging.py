"""A folder that is written beside its target and takes the target's name only when it is complete."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import os
import shutil
import tempfile
from pathlib import Path

from ops.errors import ConfigError, OutOfDisk

NO_SPACE = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}


class Staging:
    """Owns `folder`, a hidden folder beside `target`; `publish` renames it, `discard` removes it.

    A lock file beside the target is held meanwhile: whoever holds it knows that other partial folders are the
    remains of killed exports, and removes them. Raises ConfigError when the target exists (and replace is not
    set), is being written by another export, or cannot be written.
    """

    def __init__(self, target: Path, replace: bool = False) -> None:
        # A link as target is kept a link: what it points to is replaced.
        self.target = target.resolve()
        self.replace = replace
        self._check_target()
        try:
            self.target.parent.mkdir(parents=True, exist_ok=True)
            self._lock = TargetLock(self.target)
            self.folder = self._fresh()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise out_of_disk(self.target.parent, 0) from error
            raise ConfigError(
                f"{self.target.parent} cannot be written: {error.strerror}.",
                remedy="Choose another output folder.",
                param="--out",
            ) from error

    @property
    def _prefix(self) -> str:
        return f".{self.target.name}.partial-"

    def _fresh(self) -> Path:
        """A new partial folder; those of killed exports are removed first."""
        for stale in self.target.parent.glob(f"{glob.escape(self._prefix)}*"):
            shutil.rmtree(stale, ignore_errors=True)
        try:
            return Path(tempfile.mkdtemp(prefix=self._prefix, dir=self.target.parent))
        except OSError:
            self._lock.release()
            raise

    def _check_target(self) -> None:
        if os.path.lexists(self.target) and not self.replace:
            raise ConfigError(
                f"{self.target} exists already.",
                why="An export never writes into what is there.",
                remedy="Choose another output folder, or pass --force to replace it.",
                param="--out",
            )
        if self.replace and self.target.exists() and not replaceable(self.target):
            raise ConfigError(
                f"{self.target} is not a bundle and is not replaced.",
                why="It has no manifest.json and is not empty.",
                remedy="Choose another output folder.",
                param="--out",
            )

    def publish(self) -> None:
        """Flush the folder to disk and rename it to the target, replacing what was there if asked to."""
        self.folder.chmod(0o777 & ~_umask())
        for path, _, _ in os.walk(self.folder):
            fsync(Path(path))
        old = None
        if os.path.lexists(self.target):
            self._check_target()
            old = Path(tempfile.mkdtemp(prefix=self._prefix, dir=self.target.parent)) / "old"
        try:
            if old is not None:
                self.target.rename(old)
            self.folder.rename(self.target)
            fsync(self.target.parent)
        finally:
            if old is not None:
                # An interrupt between the two renames must not cost the user what was there.
                if not os.path.lexists(self.target):
                    old.rename(self.target)
                shutil.rmtree(old.parent, ignore_errors=True)
        self._lock.release()

    def discard(self) -> None:
        """Remove what was written."""
        shutil.rmtree(self.folder, ignore_errors=True)
        self._lock.release()


class TargetLock:
    """Held by the one export that writes a target: a locked file beside it, removed when released."""

    def __init__(self, target: Path) -> None:
        self._path = target.parent / f".{target.name}.lock"
        while True:
            self._handle = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(self._handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                os.close(self._handle)
                raise ConfigError(
                    f"Another export is writing {target}.",
                    remedy="Wait until it is done, or choose another output folder.",
                    param="--out",
                ) from error
            if self._is_current():
                return
            os.close(self._handle)

    def _is_current(self) -> bool:
        """Whether the locked file still has its name; an export that just ended may have removed it."""
        with contextlib.suppress(FileNotFoundError):
            return os.path.samestat(os.fstat(self._handle), self._path.stat())
        return False

    def release(self) -> None:
        self._path.unlink(missing_ok=True)
        os.close(self._handle)


def replaceable(folder: Path) -> bool:
    """Whether --force may replace a path: a bundle, or an empty folder."""
    return folder.is_dir() and ((folder / "manifest.json").is_file() or not any(folder.iterdir()))


def fsync(path: Path) -> None:
    """Flush one file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def out_of_disk(folder: Path, needed: int) -> OutOfDisk:
    """The error for a full disk; needed in bytes, 0 when unknown."""
    free = shutil.disk_usage(folder).free
    need = f"The bundle needs {size_text(needed)}. " if needed else ""
    return OutOfDisk(
        f"The disk of {folder} is full.",
        why=f"{need}{size_text(free)} are free; a quota or a limit on file sizes may be lower.",
        remedy="Free some space or choose an output folder on another disk; nothing was left behind.",
    )


def size_text(count: int) -> str:
    """Bytes for people: 12 B, 3.4 MB, 1.2 GB."""
    size = float(count)
    for unit in ("B", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.2f} GB"


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
