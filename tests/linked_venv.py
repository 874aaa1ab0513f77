"""A stand-in for `python` that makes environments without a download.

`-m venv ... FOLDER` makes an environment that already holds the packages of the one that runs this file, so that
`pip install` adds the checkout alone. Files are hard links where the disk allows it. All other arguments go to Python.
"""
import os, re, shutil, sys, sysconfig
import venv as environments
from pathlib import Path


def link(source: str, goal: str) -> None:
    try: os.link(source, goal)
    except OSError: shutil.copy2(source, goal)  # another disk


if sys.argv[1:3] != ['-m', 'venv']: os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
environments.main(['--without-pip', *sys.argv[3:]])  # pip is linked as well
venv = Path(sys.argv[-1])
packages, scripts = (Path(sysconfig.get_path(name)) for name in ('purelib', 'scripts'))
for folder in (packages, *(Path(sys.prefix)/part/'jupyter' for part in ('share', 'etc'))):  # and templates, kernels
    if folder.exists(): shutil.copytree(folder, venv/folder.relative_to(sys.prefix), copy_function=link, dirs_exist_ok=True, ignore=shutil.ignore_patterns('splade_nb*', '__editable__*'))
for script in scripts.iterdir():
    goal = venv/'bin'/script.name
    if goal.exists() or not script.is_file() or not (text := script.read_bytes()).startswith(b'#!'): continue
    goal.write_bytes(re.sub(rb'^#!.*', b'#!' + os.fsencode(venv/'bin/python'), text))
    goal.chmod(0o755)
