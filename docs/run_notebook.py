"""Run a notebook of the project by papermill and write its report: what `make train`, `make study` and their like call.

    python docs/run_notebook.py train --version=v28 --data=mini
    python docs/run_notebook.py study --study=gates --seeds=45

Options are the notebook's parameters: `papermill --help-notebook nbs/train.ipynb` describes them.
"""
import ast, fcntl, json, os, subprocess, sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
import click, nbformat, yaml
import papermill.__main__ as papermill
from splade_nb.config.command_line import exit_codes
from splade_nb.config.files import PREVIOUS, ConfigError, choose, no_repeats, read_json
from splade_nb.config.settings import GONE
import report_html

ROOT = Path(__file__).resolve().parent.parent
TARGETS = {  # of make: the notebook, and what is given to it
    'train': ('train', {}), 'resume': ('train', dict(resume='True')), 'report': ('train', dict(finished='True')),
    'train-distributed': ('train', dict(processes='auto')),
    'resume-distributed': ('train', dict(processes='auto', resume='True')),
    'pretrain': ('pretrain', {}), 'resume-pretrain': ('pretrain', dict(resume='True')), 'compare': ('compare', {}),
    'evaluate-full': ('evaluate_full', {}), 'evaluate-board': ('evaluate', {}), 'study': ('studies', dict(measure='True')),
    'rehearse': ('studies/rehearsal', dict(measure='True'))}
RENAMED = {'evaluate-full': dict(full='out'), 'evaluate-board': dict(board='out')}  # what they called it
DISTRIBUTED = 'processes', 'scale_batch'  # options of a distributed run beside the notebook's parameters
TRAVEL = 'data/v24.0', 'data/v27.0'  # V27 is V26 with travel data in every phase


def typed(target: str, arguments: list) -> dict:  # name -> text
    "What `--name=value` gives. Raises `ConfigError` for anything else."
    pairs = [argument.removeprefix('--').partition('=') for argument in arguments if argument.startswith('--')]
    if len(pairs) < len(arguments) or not all(sign for _, sign, _ in pairs):
        raise ConfigError(f'options: found {" ".join(arguments)!r}; allowed: --name=value')
    return no_repeats((RENAMED.get(target, {}).get(name, name.replace('-', '_')), value) for name, _, value in pairs)


def defaults(notebook: str) -> dict:  # name -> value
    "The parameters of a notebook. Raises `ConfigError` where there is no such notebook."
    studies = {path.relative_to(ROOT/'nbs').with_suffix('').as_posix() for path in (ROOT/'nbs'/'studies').glob('*.ipynb')}
    choose('study' if notebook.startswith('studies/') else 'notebook', notebook, sorted(studies) if notebook.startswith('studies/') else [
        *dict.fromkeys(name for name, _ in TARGETS.values() if '/' not in name and name != 'studies')])
    cells = nbformat.read(ROOT/'nbs'/f'{notebook}.ipynb', as_version=4).cells
    declared, = (cell.source for cell in cells if 'parameters' in cell.metadata.get('tags', []))
    return {ast.unparse(line.targets[0]): ast.literal_eval(line.value) for line in ast.parse(declared).body}


def study_settings(text: str, known: dict) -> dict:  # name -> value
    "What SETTINGS of a study say. Raises `ConfigError` unless it is a mapping of its parameters, as JSON or YAML."
    try: values = yaml.safe_load(text)
    except yaml.YAMLError as error: raise ConfigError(f'settings: found {text!r}, which is no JSON: {error}') from None
    if not isinstance(values, dict): raise ConfigError(f'settings: found {text!r}; allowed: parameters as JSON, such as {{"seeds": "45"}}')
    for name in values: choose('parameter', name, [*known])
    return values


@dataclass
class Job:
    "A notebook with what is given to it, and where it is written. Raises `ConfigError` for a name that it does not take."
    target: str
    given: dict  # name -> text

    def __post_init__(self):
        self.notebook, added = TARGETS[choose('target', self.target, [*TARGETS])]
        if self.notebook == 'studies': self.notebook = f'studies/{self.given.pop("study", "")}'
        self.known, self.given = defaults(self.notebook), added | self.given
        self.is_study, self.is_shown_only = self.notebook.startswith('studies/'), 'finished' in self.given
        others = DISTRIBUTED if 'processes' in added else ('settings',) if self.is_study else ()
        for name in self.given: choose('parameter', name, [*self.known, *others])
        self.settings = self.given.pop('settings', '') if self.is_study else ''
        if self.settings: study_settings(self.settings, self.known)
        if self.notebook == 'train' and not self.is_shown_only: self.given = with_travel_data(self.given)
        self.folder = self.own_folder()
        if self.given.get('resume') == 'True': self.given = self.launched_with() | self.given

    def launched_with(self) -> dict:  # name -> text; empty where no run lies in the folder
        "What a run was launched with: to go on with it nobody has to type it again. Raises `ConfigError`."
        if self.notebook == 'train': return of_config(self.folder/'config.json', self.given.get('scale_batch') == 'True')
        given = read_json(self.executed)['metadata'].get('papermill', {}).get('parameters', {}) if self.executed.exists() else {}
        return {name: value if isinstance(value, str) else json.dumps(value) for name, value in given.items() if name not in ('max_steps', 'resume')}

    def own_folder(self) -> Path:  # of the executed notebook and its report
        if self.is_study or 'out' not in self.known: return Path('outputs')/Path(self.notebook).parent
        name = self.given.get('version') or self.known.get('version', self.notebook)
        self.given['out'] = self.given.get('out') or self.known['out'] or f'outputs/{name}'
        return Path(self.given['out'])

    @property
    def executed(self) -> Path: return self.folder/f'{Path(self.notebook).name}.ipynb'

    @property
    def report(self) -> Path: return self.folder/('report.html' if 'out' in self.given and not self.is_study else f'{self.executed.stem}.html')

    def command(self) -> list:  # of papermill
        "Texts reach the notebook as they are, the rest as YAML reads it. A title names what is not given as well."
        said = {} if self.is_study or self.is_shown_only else {name: self.known[name] for name in report_html.GIVEN if isinstance(self.known.get(name), str)}
        raw = {name for name, value in self.known.items() if isinstance(value, str) or name == 'settings'}
        options = [('-r' if name in raw else '-p', name, text) for name, text in (said | self.given).items()]
        target = str(self.executed).replace('{', '{{').replace('}', '}}')  # papermill fills {name} in
        settings = ['-y', self.settings] if self.settings else []
        return ['--log-output', '--no-progress-bar', str(ROOT/'nbs'/f'{self.notebook}.ipynb'), target, *sum(options, ()), *settings]


def with_travel_data(given: dict) -> dict:
    "V27 learns from its travel data too, where its folders are there and no data are named."
    travels = given.get('version', '').lower() in ('v27', '27') and 'data' not in given
    return given | (dict(data=','.join(TRAVEL)) if travels and all(Path(name).is_dir() for name in TRAVEL) else {})


def of_config(path: Path, scaled: bool) -> dict:  # name -> text; scaled: the sizes of batches are computed again
    if not path.exists(): return {}
    config = read_json(path)
    given = {name: str(config[name]) for name in ('version', 'recipe', 'scale', 'data', 'seed') if name in config}
    settings = {name: value for name, value in config.get('overridden', {}).items() if name not in GONE and not (scaled and name in ('batch_size', 'learning_rate'))}
    return given | (dict(settings=json.dumps(settings, ensure_ascii=False)) if settings else {})


def train_in_processes(given: dict) -> None:
    "The training by torchrun; the notebook then shows it."
    from torch.distributed.run import main as torchrun
    settings = dict(given)
    processes, version = settings.pop('processes'), settings.pop('version', 'v28')
    resumed = ['--resume'] if settings.pop('resume', '') == 'True' else []
    torchrun(['--standalone', f'--nproc-per-node={processes}', '-m', 'splade_nb.training', *resumed, '--set',
              *(f'{name}={text}' for name, text in settings.items()), '--', version])


def is_shown(folder: Path) -> bool:  # its notebook is of its last run
    "Raises `ConfigError` where a folder holds no finished run."
    notebook, summary = folder/'train.ipynb', folder/'summary.json'
    if not summary.exists(): raise ConfigError(f'{folder}: holds no finished run, summary.json is missing')
    if not notebook.exists() or notebook.stat().st_mtime < summary.stat().st_mtime: return False
    return not read_json(notebook)['metadata'].get('papermill', {}).get('exception')


def begin(job: Job) -> None:
    """Make the folder that a notebook writes into, and move the report and the notebook that are there to `PREVIOUS`. The
    date of the lock says when a run was launched."""
    if job.notebook.startswith('evaluate') and (job.folder/'summary.json').exists():
        raise ConfigError(f'out={job.folder}: a run is there; MODEL={job.folder} judges it, OUT is where the report goes')
    job.folder.mkdir(parents=True, exist_ok=True)
    for path in previous(job): os.replace(path, job.folder/path.name)  # what a killed process left
    if job.report.exists():
        (job.folder/PREVIOUS).mkdir(exist_ok=True)
        for path in filter(Path.exists, (job.report, job.executed)): os.replace(path, job.folder/PREVIOUS/path.name)
    if 'resume' in job.known: (job.folder/'.lock').touch()


def previous(job: Job) -> list:  # paths
    "The previous report and notebook of a job in `PREVIOUS`, where several notebooks of one folder may have theirs."
    return [path for path in (job.folder/PREVIOUS/job.report.name, job.folder/PREVIOUS/job.executed.name) if path.exists()]


def discard_previous(job: Job) -> None:
    "After a notebook that ran to its end."
    for path in previous(job): path.unlink()
    with suppress(OSError): (job.folder/PREVIOUS).rmdir()  # it may hold those of another notebook


def restore_previous(job: Job) -> None:
    "After a failure: the previous report and notebook are in their place again, the notebook that failed is beside them."
    if not previous(job): return
    failed = job.executed.with_suffix('.failed.ipynb')
    if job.executed.exists(): os.replace(job.executed, failed)
    for path in previous(job): os.replace(path, job.folder/path.name)
    discard_previous(job)
    print(f'{job.report} is still the report of the previous run; the notebook that failed is {failed}', file=sys.stderr)


def run(job: Job) -> None:
    "A notebook, and its report. Raises `ConfigError`."
    for name in [*os.environ]:  # what was typed is not for a make inside
        if name in ('MAKEFLAGS', 'MAKEOVERRIDES', 'MFLAGS') or name.startswith('typed_'): del os.environ[name]
    if not job.is_shown_only: begin(job)
    try: execute(job)
    except BaseException as error:
        restore_previous(job)
        if isinstance(error, click.exceptions.Abort): raise KeyboardInterrupt from None
        raise
    discard_previous(job)
    report_html.main(job.executed, job.report)


def execute(job: Job) -> None:
    "By papermill; a distributed training by torchrun, which the notebook then shows."
    if 'processes' in job.given:
        train_in_processes(job.given)
        return execute(Job('report', dict(out=str(job.folder))))
    if not (job.is_shown_only and is_shown(job.folder)): papermill.papermill(job.command(), standalone_mode=False)


def wait_for(folder: Path) -> None:
    "Until the run in a folder has ended, launched in the background or not. Raises `ConfigError` where it failed."
    for lock in filter(Path.exists, (folder/'.launch', folder/'.lock')):
        with open(lock, 'a') as held: fcntl.flock(held, fcntl.LOCK_EX)
    times = [(folder/name).stat().st_mtime_ns if (folder/name).exists() else 0 for name in ('summary.json', '.lock')]
    if times[0] <= times[1]:
        raise ConfigError(f'{folder}: its last run did not finish, or there was none: nothing is trained')


def launch(job: Job, version: str) -> None:
    "Train a version in the background, its output in `train.log`. Raises `ConfigError` where it trains already."
    job.folder.mkdir(parents=True, exist_ok=True)
    with open(job.folder/'.launch', 'w') as lock:
        try: fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError: raise ConfigError(f'{job.folder}: is training in the background: make logs-{version}') from None
        options = [f'--{name}={text}' for name, text in job.given.items()]
        with open(job.folder/'train.log', 'w') as log:  # the process holds the lock until it ends
            subprocess.Popen([sys.executable, __file__, 'train', *options], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                             start_new_session=True, pass_fds=(lock.fileno(),))
    print(f'training {version} in the background: make logs-{version}')


def of_version(given: dict, version: str) -> Job: return Job('train', given | dict(version=version, out=f'outputs/{version}'))


@exit_codes
def main(arguments: list | None = None) -> None:
    target, *options = (sys.argv[1:] if arguments is None else arguments) or ['']
    given = typed(target, options)
    if target == 'background': return launch(of_version(given, version := given.pop('name', '')), version)
    if target != 'after': return run(Job(target, given))
    first, _, version = given.pop('name', '').partition('-')
    if not version: raise ConfigError('two versions: make after-v27-v28')
    job = of_version(given, version)
    wait_for(Path('outputs')/first)
    run(job)


if __name__ == '__main__': sys.exit(main())
