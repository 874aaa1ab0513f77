"""Which files belong to the project: a log, a run or a draft that lies in the checkout does not."""
import shutil, subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tracked(pattern: str = '**/*') -> list:
    "Files of the checkout by a pattern of `Path.glob`: those that git tracks, or all of them where there is no git."
    if not ((ROOT/'.git').exists() and shutil.which('git')): return sorted(path for path in ROOT.glob(pattern) if path.is_file())
    done = subprocess.run(['git', '-C', str(ROOT), 'ls-files', '-z', f':(glob){pattern}'], capture_output=True, text=True, check=True)
    return sorted(path for name in done.stdout.split('\0') if name and (path := ROOT/name).is_file())
