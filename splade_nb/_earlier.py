"""Earlier names of the modules, for one version: each is read from where its contents are now, with a warning.

Written by hand, as the `__init__.py` files are. `python -m splade_nb.run` and `from splade_nb.run import load_encoder`
come from the time when all modules lay in one folder. The loader reads a line of this table in place of a file.
"""
import sys, warnings
from importlib import import_module
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import PathFinder
from importlib.util import spec_from_loader

# Earlier module: where its names are now. What `python -m` runs is the first.
EARLIER = {
    'collection': 'data.records', 'corpus': 'data.corpus', 'sounds': 'data.phonetic_keys', 'tokens': 'data.tokenizer',
    'idf': 'data.idf', 'lexical': 'data.bm25', 'translation': 'data.model1',
    'kernel': 'model.kernel', 'head': 'model.head', 'screen': 'model.int8_filter', 'gate': 'model.gate',
    'own': 'model.term_weights', 'start': 'model.initialization', 'encoding': 'model.encode',
    'neighbours': 'model.load', 'surgery': 'model.prune_vocabulary', 'xlmr': 'model.xlmr',
    'losses': 'training.losses', 'curriculum': 'training.curriculum', 'teacher': 'training.teacher',
    'material': 'training.dataset', 'checkpoints': 'training.checkpoints',
    'objective': 'training.objective training.batch training.memory config.processes', 'guard': 'training.collapse_guard', 'wires': 'training.check_settings',
    'report': 'evaluation.report', 'versions': 'evaluation.compare', 'findings': 'evaluation.error_analysis',
    'fullscale': 'evaluation.benchmark', 'systems': 'evaluation.systems', 'board': 'evaluation.leaderboard',
    'carried': 'hub.sentence_transformers', 'light': 'hub.onnx', 'exports': 'hub.export', 'cards': 'hub.model_card',
    'formats': 'serving.formats', 'embedded': 'serving.embedded_engines', 'opensearch': 'serving.opensearch',
    'engines': 'serving.engines', 'store': 'serving.document_store', 'box': 'serving.searcher', 'service': 'serving.web',
    'run': 'cli experiment model.load evaluation.retrieval'}
# Packages that have the name of an earlier module.
PACKAGES = {
    'config': 'config.settings config.versions config.files config.command_line', 'data': 'data.readers',
    'model': 'model.splade model.encode', 'training': 'training.trainer', 'evaluation': 'evaluation.metrics'}


def is_module(name: str) -> bool:
    "Whether a file has this name: `from . import losses` asks a package's `__getattr__` before it reads the file."
    package, _, part = name.rpartition('.')
    return PathFinder.find_spec(name, getattr(sys.modules.get(package), '__path__', [])) is not None


def find(module: str, places: str, name: str):
    "A name of an earlier module, from the first place that has it. Raises `AttributeError`."
    if not name.startswith('__') and not is_module(f'splade_nb.{module}.{name}'):
        for place in places.split():
            found = getattr(import_module(f'splade_nb.{place}'), name, None)
            if found is None: continue
            home = getattr(found, '__module__', None) or f'splade_nb.{place}'
            warnings.warn(f'splade_nb.{module}.{name} is now {home}.{name}; the earlier name goes in the next version',
                          FutureWarning, stacklevel=3)
            return found
    raise AttributeError(f'module splade_nb.{module} has no attribute {name!r}')


def names_of(package: str):
    "`__getattr__` of a package: names that it had when it was a module."
    return lambda name: find(package, PACKAGES[package], name)


class Earlier(MetaPathFinder, InspectLoader):
    "Finds the earlier modules where no file has the name."
    def find_spec(self, name, path=None, target=None):
        if name.removeprefix('splade_nb.') in EARLIER and name.startswith('splade_nb.'): return spec_from_loader(name, self)

    def get_source(self, name: str) -> str:
        module = name.removeprefix('splade_nb.')
        now = EARLIER[module].split()[0]
        return (f'"Earlier name of splade_nb.{now}."\n'
                'import runpy, sys\nfrom splade_nb import _earlier\n'
                f'__getattr__ = lambda name: _earlier.find({module!r}, {EARLIER[module]!r}, name)\n'
                'if __name__ == "__main__":\n'
                f'    print("python -m {name} is now python -m splade_nb.{now}; '
                'the earlier name goes in the next version", file=sys.stderr)\n'
                f'    runpy.run_module("splade_nb.{now}", run_name="__main__")\n')


sys.meta_path.append(Earlier())
