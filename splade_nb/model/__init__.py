from .._earlier import names_of

__getattr__ = names_of('model')
