"`python -m splade_nb.training v28 --set name=value`: the command `train` of `splade_nb.cli`."
import sys
from splade_nb.cli import main

sys.exit(main(['train', *sys.argv[1:]]))
