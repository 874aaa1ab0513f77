"""Run a notebook of the project by papermill and write its report: what `make train`, `make study` and their like call.

    python docs/run_notebook.py train --version=v28 --data=mini
    python docs/run_notebook.py study --study=gates --seeds=45

Options are the notebook's parameters: `papermill --help-notebook nbs/train.ipynb` describes them.
"""
import ast, fcntl, os, subprocess, sys
from pathlib import Path
import nbformat, yaml
import papermill.__main__ as papermill
from splade_nb.config.command_line import exit_codes
from splade_nb.config.files import ConfigError, choose, no_repeats
from splade_nb.config.versions import version_name
import report_html

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {  # of make: the notebook, and what is given to it
    'train': ('train', {}), 'resume': ('train', dict(resume='True')), 'report': ('train', dict(finished='True')),
    'train-distributed': ('train', dict(processes='auto')),
    'resume-distributed': ('train', dict(processes='auto', resume='True')),
    'pretrain': ('pretrain', {}), 'resume-pretrain': ('pretrain', dict(resume='True')), 'compare': ('compare', {}),
    'evaluate-full': ('evaluate_full', {}), 'evaluate-board': ('evaluate', {}), 'study': ('studies', dict(measure='True')),
    'leaderboard': ('studies/leaderboard', dict(measure='True')), 'rehearse': ('studies/rehearsal', dict(measure='True'))}
RENAMED = dict(full='out', board='out')  # what evaluate-full and evaluate-board called it
OF_PROCESSES = 'processes', 'scale_batch'  # options of a distributed run beside the notebook's parameters
TRAVEL = 'data/v24.0', 'data/v27.0'  # V27 is V26 with travel data in every phase


def typed(arguments: list) -> dict:  # name -> text
    "What `--name=value` gives. Raises `ConfigError` for anything else."
    pairs = [argument.removeprefix('--').partition('=') for argument in arguments if argument.startswith('--')]
    if len(pairs) < len(arguments) or not all(sign for _, sign, _ in pairs):
        raise ConfigError(f'options: found {" ".join(arguments)!r}; allowed: --name=value')
    return no_repeats((RENAMED.get(name, name), value) for name, _, value in pairs)


def defaults(notebook: str) -> dict:  # name -> value
    "The parameters of a notebook. Raises `ConfigError` where there is no such notebook."
    names = {path.relative_to(ROOT/'nbs').with_suffix('').as_posix() for path in (ROOT/'nbs'/'studies').glob('*.ipynb')}
    choose('notebook', notebook, sorted(names | {name for name, _ in TARGETS.values() if name != 'studies'}))
    cells = nbformat.read(ROOT/'nbs'/f'{notebook}.ipynb', as_version=4).cells
    declared, = (cell.source for cell in cells if 'parameters' in cell.metadata.get('tags', []))
    return {ast.unparse(line.targets[0]): ast.literal_eval(line.value) for line in ast.parse(declared).body}


def folder_of(notebook: str, known: dict, given: dict) -> Path:  # of the executed notebook and its report
    if 'out' not in known: return Path('outputs')/Path(notebook).parent
    return Path(given.get('out') or known['out'] or f'outputs/{given.get("version") or known.get("version", notebook)}')


def with_travel_data(given: dict) -> dict:
    "V27 learns from its travel data too, where its folders are there and no data are named."
    travels = version_name(given.get('version') or 'v28') == 'v27' and 'data' not in given
    return given | (dict(data=','.join(TRAVEL)) if travels and all(Path(name).is_dir() for name in TRAVEL) else {})


def command(notebook: str, known: dict, given: dict, folder: Path) -> list:  # of papermill
    "Texts reach the notebook as they are, the rest as YAML reads it. Raises `ConfigError` for an unknown parameter in `settings`."
    said = {name: known[name] for name in report_html.GIVEN if isinstance(known.get(name), str)} | given  # a title names them
    of_study = ['-y', said.pop('settings')] if notebook.startswith('studies/') and given.get('settings') else []
    for name in yaml.safe_load(of_study[1]) if of_study else (): choose('parameter', name, [*known])
    options = [('-r' if isinstance(known[name], str | dict) else '-p', name, text) for name, text in said.items()]
    target = str(folder/f'{Path(notebook).name}.ipynb').replace('{', '{{').replace('}', '}}')  # papermill fills {name} in
    return ['--log-output', '--no-progress-bar', str(ROOT/'nbs'/f'{notebook}.ipynb'), target, *sum(options, ()), *of_study]


def begin(folder: Path) -> None:
    "What is run is exported first: an edited notebook is what trains. The lock's date says when a run was launched."
    subprocess.run([Path(sys.executable).with_name('nbdev_export')], cwd=ROOT, check=True)
    (folder/'.lock').touch()


def train_in_processes(given: dict, folder: Path) -> None:
    "The training by torchrun; the notebook then shows it."
    from torch.distributed.run import main as torchrun
    settings = dict(given, out=str(folder))
    processes, version = settings.pop('processes'), settings.pop('version', 'v28')
    resumed = ['--resume'] if settings.pop('resume', '') == 'True' else []
    torchrun(['--standalone', f'--nproc-per-node={processes}', '-m', 'splade_nb.training', *resumed, '--set',
              *(f'{name}={text}' for name, text in settings.items()), '--', version])


def is_shown(folder: Path) -> bool:  # its notebook is of its last run
    notebook, summary = folder/'train.ipynb', folder/'summary.json'
    return notebook.exists() and not (summary.exists() and summary.stat().st_mtime > notebook.stat().st_mtime)


def run(target: str, given: dict) -> None:
    "The notebook of a target with what is given, and its report. Raises `ConfigError`."
    notebook, added = TARGETS[choose('target', target, [*TARGETS])]
    if notebook == 'studies': notebook = f'studies/{given.pop("study", "")}'
    known, given = defaults(notebook), added | given
    if notebook == 'train' and 'finished' not in given: given = with_travel_data(given)
    others = OF_PROCESSES if 'processes' in added else ('settings',) if 'measure' in known else ()
    for name in given: choose('parameter', name, [*known, *others])
    folder = folder_of(notebook, known, given)
    if 'out' in known: given['out'] = str(folder)
    report = folder/('report.html' if 'out' in known else f'{Path(notebook).name}.html')
    folder.mkdir(parents=True, exist_ok=True)
    if not given.get('finished'): report.unlink(missing_ok=True)
    if 'resume' in known and not given.get('finished'): begin(folder)
    if 'processes' in given:
        train_in_processes(given, folder)
        given = dict(out=str(folder), finished='True')
    if not (target == 'report' and is_shown(folder)):
        papermill.papermill(command(notebook, known, given, folder), standalone_mode=False)
    report_html.main(folder/f'{Path(notebook).name}.ipynb', report)


def wait_for(folder: Path) -> None:
    "Until the run in a folder has ended, launched in the background or not. Raises `ConfigError` where it failed."
    for lock in filter(Path.exists, (folder/'.launch', folder/'.lock')):
        with open(lock) as held: fcntl.flock(held, fcntl.LOCK_EX)
    times = [(folder/name).stat().st_mtime_ns if (folder/name).exists() else 0 for name in ('summary.json', '.lock')]
    if times[0] <= times[1]:
        raise ConfigError(f'{folder}: its last run did not finish, or there was none: nothing is trained')


def launch(version: str, given: dict) -> None:
    "Train a version in the background, its output in `train.log`. Raises `ConfigError` where it trains already."
    folder = Path('outputs')/version
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder/'.launch', 'w') as lock:
        try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError: raise ConfigError(f'{folder}: is training in the background: make logs-{version}') from None
        options = [f'--{name}={text}' for name, text in (given | dict(version=version, out=str(folder))).items()]
        with open(folder/'train.log', 'w') as log:  # the process holds the lock until it ends
            subprocess.Popen([sys.executable, __file__, 'train', *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             start_new_session=True, pass_fds=(lock.fileno(),))
    print(f'training {version} in the background: make logs-{version}')


@exit_codes
def main(arguments: list | None = None) -> None:
    target, *options = sys.argv[1:] if arguments is None else arguments
    given = typed(options)
    if target == 'background': launch(given.pop('name'), given)
    elif target == 'after':
        first, _, version = given.pop('name').partition('-')
        if not version: raise ConfigError('two versions: make after-v27-v28')
        wait_for(Path('outputs')/first)
        run('train', given | dict(version=version, out=f'outputs/{version}'))
    else: run(target, given)


if __name__ == '__main__': sys.exit(main())
