__version__ = "0.1.0"

__all__ = ['load', 'encode', 'fit', 'train', 'evaluate', 'search', 'SparseEncoder']


def __getattr__(name: str):
    "The public functions, read when first used: `import splade_nb` alone loads neither torch nor NumPy."
    if name not in __all__: raise AttributeError(f'module {__name__!r} has no attribute {name!r}')
    from . import api
    globals().update({each: getattr(api, each) for each in __all__})
    return globals()[name]


def __dir__(): return sorted([*globals(), *__all__])
