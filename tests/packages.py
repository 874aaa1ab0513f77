"""What pip installs with a package, and a process that finds nothing else."""
from importlib.metadata import PackageNotFoundError, requires
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

HIDE = '''"Some packages are not found."
import sys
from importlib.machinery import PathFinder

class Others(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition('.')[0] in {hidden} else super().find_spec(name, path, target)

sys.meta_path[:] = [Others if finder is PathFinder else finder for finder in sys.meta_path]
'''


def brought(package: str, extras: set, seen: set) -> set:
    "Names of a package and of all that pip installs with it; a package is seen once with the same extras."
    name = canonicalize_name(Requirement(package).name)
    key = name, frozenset(extras)
    if key in seen: return set()
    seen.add(key)
    found = {name}
    try: wanted = [Requirement(each) for each in requires(name) or ()]
    except PackageNotFoundError: return found
    for each in wanted:
        if not each.marker or any(each.marker.evaluate(dict(extra=extra)) for extra in extras | {''}): found |= brought(each.name, each.extras, seen)
    return found
