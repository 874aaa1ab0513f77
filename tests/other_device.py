"""A device that is not there: tensors that lie in memory, say that they lie elsewhere, and refuse to meet those that do not.

What mixes devices, reads a tensor through NumPy, or makes one in the wrong place, fails here as it fails on a GPU.
"""
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

PLACE = torch.device('meta')  # a name that torch knows and whose library is always there; no number of these tensors lies on it


class Elsewhere(torch.Tensor):
    "Numbers of a CPU tensor under another device's name."
    @staticmethod
    def __new__(cls, data: torch.Tensor):
        made = torch.Tensor._make_wrapper_subclass(cls, data.shape, strides=data.stride(), storage_offset=data.storage_offset(),
                                                   dtype=data.dtype, device=PLACE, requires_grad=False)
        made.data_here = data
        return made

    def tolist(self): return self.data_here.tolist()  # torch refuses it for every class of one's own

    def __repr__(self): return f'Elsewhere({self.data_here})'

    @classmethod
    def __torch_dispatch__(cls, operation, types, arguments=(), options=None): return run(operation, arguments, options or {})


def here(value): return value.data_here if isinstance(value, Elsewhere) else value


def check(operation, arguments) -> bool:  # whether any tensor is elsewhere
    tensors = [value for value in tree_flatten(arguments)[0] if isinstance(value, torch.Tensor)]
    away = [isinstance(value, Elsewhere) for value in tensors]
    free = 'copy_' in operation.name() or 'aten::index' in operation.name()  # take an index or a source from the CPU
    wrong = [value for value, is_away in zip(tensors, away) if not is_away and value.ndim]
    if any(away) and wrong and not free:
        raise RuntimeError(f'{operation.name()}: tensors are on two devices: {[tuple(value.shape) for value in wrong]} on the CPU')
    return any(away)


def run(operation, arguments, options):
    away, place = check(operation, (arguments, options)), options.get('device')
    arguments, options = tree_map(here, arguments), tree_map(here, options)
    if place is not None:
        away = torch.device(place).type == PLACE.type
        options = options | dict(device=torch.device('cpu'))
    found = operation(*arguments, **options)
    return tree_map(lambda value: Elsewhere(value) if isinstance(value, torch.Tensor) and away else value, found)


class OtherDevice(TorchDispatchMode):
    "Inside, tensors can be made on `PLACE` and moved there and back."
    def __torch_dispatch__(self, operation, types, arguments=(), options=None): return run(operation, arguments, options or {})

    def __enter__(self):  # `torch.tensor` makes its tensor out of a mode's sight
        self.tensor = made = torch.tensor
        torch.tensor = lambda data, device=None, **options: made(data, **options).to(device or 'cpu')
        return super().__enter__()

    def __exit__(self, *error):
        torch.tensor = self.tensor
        return super().__exit__(*error)
