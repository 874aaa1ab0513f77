"""Children that die at every moment at which a program may be killed while it writes: a child counts its changes on the disk, one is its last."""
import functools, itertools, multiprocessing, os, signal
from pathlib import Path

CHANGES = 'mkdir', 'fsync', 'replace', 'unlink', 'rmdir'  # of os: what a writer does beside filling files
TEXTS = (Path, 'write_text', 0)  # what fills a file: owner, name, and which of its arguments is the path

# Imports happen once, in a process that never trains or opens an index; every child is forked from it within a tenth of a
# second. A process has one such server: a second list would take the place of the first, and children would import again.
CHILDREN = multiprocessing.get_context('forkserver')
CHILDREN.set_forkserver_preload([  # installed modules alone: the server does not find what lies beside a test
    'splade_nb.cli', 'splade_nb.serving.engines', 'splade_nb.lab.systems', 'accelerate', 'torch.utils.tensorboard',
    'safetensors.torch', 'sklearn.preprocessing', 'sklearn.decomposition', 'sentencepiece', 'pytrec_eval', 'bm25s', 'kiwipiepy',
    'transformers.convert_slow_tokenizer', 'transformers.models.xlm_roberta.modeling_xlm_roberta', 'pymilvus', 'milvus_lite',
    'qdrant_edge', 'seismic', 'pytest', 'IPython.core.interactiveshell', 'matplotlib.pyplot', 'pandas'])


def plain_function(target, *first):
    "As `functools.partial`, but what it gives also is a method where a class holds it."
    return lambda *arguments, **options: target(*first, *arguments, **options)


def die_at_change(number: int,
                  owner, name: str,    # of the function that is watched; changes elsewhere do not count
                  files=(TEXTS,),      # what fills files
                  calls=()             # (owner, name) of further functions before which a kill may come
                 ) -> None:
    """SIGKILL from within at the `number`-th moment at which a function may be cut off: before each change on the disk, in the
    middle of each file, and at its end. Whoever calls children with 0, 1, 2, ... until one survives has tried every moment."""
    left, inside = iter(range(number)), []

    def due() -> bool: return bool(inside) and next(left, None) is None

    def die() -> None: os.kill(os.getpid(), signal.SIGKILL)

    def change(true, *arguments, **options):
        if due(): die()
        return true(*arguments, **options)

    def write(true, place, *arguments, **options):
        if due(): die()
        true(*arguments, **options)
        if due():
            os.truncate(arguments[place], os.path.getsize(arguments[place]) // 2)
            die()

    def watched(true, *arguments, **options):
        inside.append(True)
        found = true(*arguments, **options)
        if due(): die()
        inside.clear()
        return found

    for call in CHANGES: setattr(os, call, functools.partial(change, getattr(os, call)))
    for place, call in calls: setattr(place, call, plain_function(change, getattr(place, call)))
    for place, call, position in files: setattr(place, call, plain_function(write, getattr(place, call), position))
    setattr(owner, name, plain_function(watched, getattr(owner, name)))


def every_moment(run, stride: int = 1):  # number of moments
    "Calls `run(0)`, `run(stride)`, ...: exit codes of children that die at this moment, until one of them ends by itself."
    for number in itertools.count(0, stride):
        code = run(number)
        if code == 0: return number
        assert code == -signal.SIGKILL, f'exit code {code} at moment {number}'
