"""Notebooks without kernels: a process that has everything imported is forked for each, and its cells run in IPython's shell.

A kernel takes seconds to begin and to import, more than most notebooks take. As a program this file forks children that
find a package only where their notebook asks for it: `python tests/notebooks.py jobs.json folder`, where a job has a name,
the sources of its cells, and modules that are not to be found. Each child writes `name.json` into the folder.
"""
import base64, json, os, sys, traceback
from importlib.machinery import PathFinder
from pathlib import Path


def executed(sources: list, folder: Path) -> list:  # for each cell, its outputs as a notebook stores them
    "Run cells in IPython's shell, in this process and in `folder`. Raises what a cell raises."
    from IPython.core.displayhook import CapturingDisplayHook
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.utils.capture import capture_output
    from traitlets.config import Config
    import pandas

    class ZMQShell(InteractiveShell):
        "Its name tells pandas that tables are as wide as in a notebook."
        def enable_gui(self, gui=None): pass  # there is no window

    os.chdir(folder)
    shell = ZMQShell.instance(config=Config(HistoryManager=dict(enabled=False)))
    shell.display_pub, found = CapturingDisplayPublisher(), []

    class Shown(CapturingDisplayHook):
        "The value of a last expression, unless a semicolon follows it."
        def __call__(self, value):
            if not found[-1].rstrip().endswith(';'): super().__call__(value)

    shell.display_trap.hook = Shown(shell=shell, outputs=shell.display_pub.outputs)
    shell.enable_matplotlib('inline')
    pandas.set_option('display.max_columns', 20)  # as where pandas is imported in a kernel
    for number, source in enumerate(sources):
        found.append(source)
        shell.display_pub.outputs.clear()
        with capture_output(display=False) as said: result = shell.run_cell(source, store_history=False)
        result.raise_error()
        displayed = [dict(output_type='display_data', data=one['data'], metadata={}) for one in shell.display_pub.outputs]
        found[-1] = [dict(output_type='stream', name='stdout', text=said.stdout)] * bool(said.stdout) + displayed
    return found


def write_executed(sources: list, folder: Path, goal: Path) -> None:
    "A child that runs a notebook: its outputs, or what went wrong, go to the file `goal`."
    try: found = executed(sources, folder)
    except BaseException: found = traceback.format_exc()
    goal.write_text(json.dumps(found, default=lambda picture: base64.b64encode(picture).decode()), encoding='utf-8')


class Others(PathFinder):
    "Finds no module of packages that a notebook does not install."
    hidden = set()

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition('.')[0] in cls.hidden else super().find_spec(name, path, target)


def run_jobs(jobs: list, goal: Path) -> None:
    for job in jobs:
        if not (child := os.fork()):
            Others.hidden = {*job['hidden']}
            write_executed(job['sources'], Path.cwd(), goal/f'{job["name"]}.json')
            os._exit(0)
        os.waitpid(child, 0)


if __name__ == '__main__':
    jobs = json.loads(Path(sys.argv[1]).read_text(encoding='utf-8'))
    Others.hidden = set().union(*(job['hidden'] for job in jobs))
    sys.meta_path[:] = [Others if finder is PathFinder else finder for finder in sys.meta_path]
    import matplotlib.pyplot, pandas, sklearn.decomposition, sklearn.preprocessing, bm25s, pytrec_eval, sentencepiece
    import torch, torch.utils.tensorboard, transformers.convert_slow_tokenizer, transformers.models.xlm_roberta.modeling_xlm_roberta
    from splade_nb import api, cli, experiment
    from splade_nb.evaluation import compare, report
    from splade_nb.lab import pretraining, systems
    from splade_nb.serving import searcher
    from splade_nb.training import check_settings
    run_jobs(jobs, Path(sys.argv[2]))
