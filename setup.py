"""Bring files along that lie outside the package: `splade_nb.config.files.embedded` opens them where it is installed.
A build is made in a temporary folder: none is left in the checkout, whose older files a next one would pack."""
import shutil, tempfile
from pathlib import Path
from setuptools import setup
from setuptools.command.build_py import build_py

BROUGHT = 'data/mini', 'data/collections', 'docs/results/board'


class WithData(build_py):
    def run(self):
        super().run()
        if self.editable_mode: return  # the checkout around the package has them
        for name in BROUGHT: shutil.copytree(name, Path(self.build_lib)/'splade_nb'/'embedded'/name, dirs_exist_ok=True)


with tempfile.TemporaryDirectory() as built: setup(cmdclass=dict(build_py=WithData), options=dict(build=dict(build_base=built)))
