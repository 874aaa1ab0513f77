"""The versions beside the tables that state them, value by value; recipes, overrides, and what is refused."""
import itertools, json, math, re
from collections.abc import Iterator
from dataclasses import fields
from inspect import signature

import pytest
from conftest import real
from splade_nb.cli import main, sort_changes
from splade_nb.config.files import SEED, ConfigError
from splade_nb.config.settings import GONE, Settings, as_dict, from_dict, off, override, read_overrides
from splade_nb.config.versions import (
    ABOUT, ADDED, CHOSEN, CORRECTIONS, LOANWORDS, MINI_CORRECTIONS, PARENTS, RECIPES, SCALES, PRETRAINED_CORRECTIONS, VERSIONS, differences,
    resolve, resolve_quietly, version_table)
from splade_nb.training.objective import weights_at
from splade_nb.training.teacher import teacher_vectors

FILE, LOSSES, GUIDE = 'versions-and-errata.md', 'seeds/2-losses.md', 'seeds/4-training-guide.md'
NAMES = [setting.name for setting in fields(Settings)]
ORIGINAL = {version: resolve_quietly(version, 'original', 'full') for version in VERSIONS}


# ---- reading the documents

def document(path: str) -> str:
    return real(path).read_text(encoding='utf-8')


def section(path: str, number: str) -> str:
    "The text below a numbered heading, up to the next one."
    found = re.search(rf'^#+ {re.escape(number)}[. ].*?$(.*?)(?=^#+ \d|\Z)', document(path), re.M | re.S)
    assert found, f'{path} has no section {number}'
    return found[1]


def tables(text: str) -> Iterator[list[dict]]:
    "Each Markdown table as rows by column; a cell that is empty or says `same` holds what stands to its left."
    for block in re.findall(r'(?:^\|.*\n?)+', text, re.M):
        header, _, *lines = [[cell.strip() for cell in line[1:-1].split('|')] for line in block.strip().splitlines()]
        for cells in lines:
            assert len(cells) == len(header), cells
            for i in range(2, len(cells)):
                if bare(cells[i]) in ('', 'same', 'same for all'): cells[i] = cells[i - 1]
        yield [dict(zip(header, cells)) for cells in lines]


def bare(cell: str) -> str: return re.sub(r'\([^()]*\)|[*`]', '', cell).strip()


def numbers(text: str) -> list[float | None]:
    "The numbers in a text; a lone hyphen or `none` is None."
    found = re.findall(r'(?<![\w.-])\d+(?:,\d{3})*(?:\.\d+)?(?:e-?\d+)?|(?<!\S)(?:-|none)(?!\S)', text)
    return [None if part in ('-', 'none') else float(part.replace(',', '')) for part in found]


def literal(cell: str):
    "A cell that holds one value: a number, a word, or None for a hyphen."
    found = numbers(bare(cell))
    return found[0] if found else bare(cell)


# ---- what a cell says against what a version holds

NEUTRAL = {'lambda_kd': 0, 'special_penalty': 0, 'stopword_penalty': 1, 'stopword_mask': False, 'lambda_context_kd': 0, 'bm25_negatives': 0, 'dense_negatives': 0,
           'mining_refresh': 0, 'mining_temperature': 0, 'kd_annealing_epochs': 0, 'language_ramp': 0}
UNSTATED = {'teacher_max_length'} & set(CHOSEN)
PHASES_SET = ('temperature', 'lambda_infonce', 'lambda_kd')  # not switched off where phases rule, only set there


def agrees(version: str, name: str, stated, versions: dict = VERSIONS) -> bool:
    "Whether a setting is what is stated; where nothing is, it must be neutral, without effect, or a choice with a reason."
    value = getattr(versions[version], name)
    if stated is None: return value == NEUTRAL.get(name) or name in UNSTATED or (name in off(versions[version]) and name not in PHASES_SET)
    return value == stated


def either(version: str, names: tuple, alternatives: list[tuple]) -> bool:
    "One of the alternatives holds; where there are several, the choice has a reason."
    held = [all(agrees(version, name, stated) for name, stated in zip(names, values, strict=True)) for values in alternatives]
    return any(held) and (len(held) == 1 or names[0] in CHOSEN)


def values(*names: str):
    "A cell that states numbers, in this order; `, then` separates alternatives."
    return lambda version, cell: either(version, names, [tuple(numbers(part)[:len(names)]) for part in bare(cell).split(';')[0].split(', then ')])


def words(name: str, **expansion_table):
    "A cell whose words stand for values of a setting; a hyphen states nothing."
    def check(version, cell):
        found = {meaning for word, meaning in expansion_table.items() if word.replace('_', ' ').lower() in bare(cell).lower()}
        return either(version, (name,), [(value,) for value in found] or [(None,)] * (bare(cell) == '-'))
    return check


def backbone(version, cell):
    known = {'kobert': 'skt/kobert-base-v1', 'a.x-encoder': 'skt/A.X-Encoder-base', 'xlm-roberta-base': 'xlm-roberta-base'}
    return either(version, ('backbone',), [(name,) for word, name in known.items() if word in bare(cell).lower()])


def parameters(version, cell):
    stated, = numbers(bare(cell))[:1]
    return stated is None or round(sum(map(float, re.findall(r'([\d.]+) M', ABOUT[version][1])))) == stated


def data_folders(version, cell): return re.findall(r'data/v[\d.]+\d', cell) == re.findall(r'data/v[\d.]+\d', ABOUT[version][2])


def both(*checks): return lambda version, cell: all(check(version, cell) for check in checks)


def dropout(version, cell): return values('gate_dropout' if 'gate' in cell else 'dropout')(version, cell)


def flops_form(version, cell):
    beta = values('flops_beta')(version, cell) if numbers(bare(cell)) else True
    return beta and words('flops_form', plain='plain', uniform='uniform', idf='idf')(version, cell)


def mining(version, cell):
    "Either the parts are stated, or only how many there are: then the parts are a choice."
    if 'negatives' not in cell: return values('bm25_negatives', 'dense_negatives', 'mining_refresh')(version, '- - -' if bare(cell) == '-' else cell)
    refresh, count, temperature = numbers(bare(cell))
    together = VERSIONS[version].bm25_negatives + VERSIONS[version].dense_negatives
    return together == count and 'dense_negatives' in CHOSEN and agrees(version, 'mining_refresh', refresh) and agrees(version, 'mining_temperature', temperature)


def language_ramp(version, cell):
    "Stated in steps; the setting is a share of the run, whose steps the same document counts."
    steps, = numbers(bare(cell))[:1]
    whole, = {float(found.replace(',', '')) for found in re.findall(r'epoch 25, step ([\d,]+\d)', document(FILE))}
    return agrees(version, 'language_ramp', None if steps is None else steps / whole) and (steps is None or 'language_ramp' in CHOSEN)


def gate(version, cell):
    settings = VERSIONS[version]
    return settings.context_gate and settings.gate_pooler == 'attention' and 'learned query' in cell and f'768-{settings.gate_hidden},' in cell


def adam(version, cell):
    "The second beta is a setting; the first and eps are constants of the optimizer."
    from splade_nb.model.initialization import toy_model
    from splade_nb.training.objective import optimizer_for
    group, = {(*group['betas'], group['eps']) for group in optimizer_for(toy_model(), VERSIONS[version]).param_groups}
    return list(group) == numbers(bare(cell))[:3]


def normalised(version, cell): return ('yes' in cell or '-' in cell) and signature(teacher_vectors).parameters['normalise'].default


def without_gate(version, cell): return 'no gate' in cell and VERSIONS['v28a'] == VERSIONS['v28'].but(context_gate=False)


ROWS = {  # table: row: check
    '1.1': {
        'Backbone': backbone, 'Parameters': parameters, 'max_length (query = doc)': both(values('max_length'), lambda version, _: VERSIONS[version].query_length == 0),
        'batch x accumulation': values('batch_size', 'accumulation'), 'Epochs': values('epochs'), 'Learning rate': values('learning_rate'),
        'Scheduler': words('scheduler', cosine='cosine', linear='linear'), 'Warm-up ratio / weight decay / clip': values('warmup_ratio', 'weight_decay', 'clip'),
        'AdamW betas, eps; no decay on': adam, 'Mixed precision': words('precision', bf16='bf16'), 'Dropout': dropout,
        'Seed': lambda version, cell: numbers(bare(cell)) == [SEED], 'Data dir': data_folders, 'Checkpoints': values('checkpoint_epochs', 'keep_checkpoints'), 'Logging': values('log_every')},
    '1.2': {
        **{name: values(name) for name in ('lambda_infonce', 'lambda_self', 'lambda_positive', 'lambda_margin', 'lambda_flops', 'lambda_min_act', 'lambda_kd',
                                           'temperature', 'margin', 'idf_alpha', 'special_penalty', 'stopword_penalty')},
        'top_k / min_activation': values('top_k', 'min_activation'), 'FLOPS form': flops_form, 'IDF smoothing': lambda version, cell: bare(cell) in ('bm25', '-'),
        'FLOPS applied to': lambda version, cell: 'anchor only' in cell and VERSIONS[version].document_share == 0, 'Stopword mask': words('stopword_mask', anchor_only=True)},
    '1.3': {
        'Teacher': lambda version, cell: bare(cell).split()[0].endswith(VERSIONS[version].teacher.removeprefix('sentence-transformers/')),
        'KD temperature': values('kd_temperature'), 'alpha_kl / alpha_mse': values('alpha_kl', 'alpha_mse'),
        'Teacher max length, normalised': both(values('teacher_max_length'), normalised),
        'Warm-up / annealing epochs': values('kd_warmup_epochs', 'kd_annealing_epochs'), 'Context-aware KD': values('lambda_context_kd'), 'Mining': mining},
    '1.5': {
        **{name: values(name) for name in ('non_korean_penalty', 'lambda_language')}, 'korean_token_penalty': lambda version, cell: literal(cell) in (0.0, None), 'language_warmup_steps': language_ramp,
        'context_gate_hidden / heads / dropout': values('gate_hidden', 'gate_heads', 'gate_dropout'), 'Gate': gate, 'V28a': without_gate,
        'V28b': lambda version, cell: 'gate' in cell and VERSIONS[version].context_gate},
}
NOT_COMPARED = {  # (table, row): why
    ('1.1', 'Exists as'): 'commits, no setting', ('1.1', 'Size'): 'counts of data that are not here',
    ('1.5', 'Collapse guard'): 'no setting: training guards every version', ('1.5', 'Multi-GPU retrain'): 'no version: other data, other hardware',
}
COLUMNS = {'V22 (first)': 'v22', 'V23 (= V22 revised)': 'v23', 'V28 (first)': 'v28', 'V28 first': 'v28', 'V28 retrain (bbea6f4)': 'v28_retrain', 'V24-V27': 'v24 v25 v26 v27',
           'First (43be3d3)': 'v28', 'Retrain (bbea6f4, 2026-02-20)': 'v28_retrain', **{f'V{number}': f'v{number}' for number in range(22, 29)}}
WIDTHS = {'1.1': 7, '1.2': 8, '1.3': 6, '1.5': 2}  # versions that a table has


def rows_of(number: str) -> dict[str, dict[str, str]]:  # row: version: cell
    table, = tables(section(FILE, number))
    found = {}
    for row in table:
        label, *_ = row.values()
        found[label] = {version: cell for column, cell in row.items() if column in COLUMNS for version in COLUMNS[column].split()}
    return found


@pytest.mark.parametrize('number, label', [(number, label) for number, checks in ROWS.items() for label in checks])
def test_row_of_the_version_tables(number, label):
    cells = rows_of(number)[label]
    assert len(cells) == WIDTHS[number]
    assert [f'{version}: {cell}' for version, cell in cells.items() if not ROWS[number][label](version, cell)] == []


@pytest.mark.parametrize('number', ROWS)
def test_no_row_is_passed_over(number):
    known = {*ROWS[number], *(label for table, label in NOT_COMPARED if table == number)}
    assert set(rows_of(number)) == known and all(NOT_COMPARED.values())


def test_a_wrong_value_is_seen():
    "The checks can fail: each is tried on another version's cell or a changed one."
    wrong = [('1.1', 'Backbone', 'v24', 'skt/A.X-Encoder-base'), ('1.1', 'batch x accumulation', 'v24', '24 x 4'), ('1.1', 'Parameters', 'v28', '278 M'), ('1.1', 'Data dir', 'v28', 'data/v27.0'),
             ('1.1', 'Dropout', 'v28', 'gate dropout 0.2'), ('1.2', 'FLOPS form', 'v22', 'IDF'), ('1.2', 'FLOPS form', 'v23', 'IDF L1 + beta L2, beta 0.5'), ('1.2', 'lambda_kd', 'v23', 'none'),
             ('1.2', 'special_penalty', 'v26', '-'), ('1.2', 'Stopword mask', 'v24', 'anchor only'), ('1.2', 'Stopword mask', 'v25', '-'), ('1.3', 'Teacher', 'v23', 'BAAI/bge-m3'),
             ('1.3', 'Mining', 'v24', '-'), ('1.3', 'Mining', 'v28', 'every 3 epochs, 6 negatives, temperature 0.1'), ('1.5', 'language_warmup_steps', 'v28', '5,000, linear'),
             ('1.5', 'Gate', 'v26', 'learned query -> Linear 768-256, GELU')]
    document(FILE)
    assert [place for *place, version, cell in wrong if ROWS[place[0]][place[1]](version, cell)] == []


OURS = '''mlm_head mask_special query_length gate_bias output_idf term_frequency gradient_checkpointing initialization hidden layers vocabulary segment pair_weight decoder_bias_offset
similarity dot_scale score_limit positive_form kd_rows document_share flops_ramp flops_norm idf_range unseen_penalty language_spares_input language_allows
negatives mining_depth steps weight_averaging validations'''.split()


@pytest.mark.parametrize('version', [version for version in VERSIONS if version[:3] in COLUMNS.values()])
def test_what_no_document_varies_is_at_its_default(version):
    "Settings that corrections, small scale and the control use; as written, no version touches them. Filter and gate are V28's."
    assert {name: getattr(VERSIONS[version], name) for name in OURS} == {name: getattr(Settings(), name) for name in OURS}
    assert (VERSIONS[version].context_gate, VERSIONS[version].lambda_language > 0) == (version in ('v28', 'v28_retrain'), version.startswith('v28'))


def test_retrain_differs_where_its_columns_do():
    first, second = VERSIONS['v28'], VERSIONS['v28_retrain']
    assert {name for name in NAMES if getattr(first, name) != getattr(second, name)} == {'lambda_min_act', 'top_k', 'min_activation', 'lambda_language', 'non_korean_penalty', 'language_ramp'}


# ---- phases

KEYS = {'single': 'single_term', 'multi': 'multi_term', 'original': 'original', 'hard_neg': 'hard_neg', 'travel': 'travel'}


def shares(cell: str) -> dict[str, float]:
    "`single 0.5, multi 0.3` or `single, multi 0.25 each`."
    parts = [part.split() for part in cell.removesuffix(' each').split(', ')]
    return {KEYS[name]: float(share[0] if share else parts[-1][1]) for name, *share in parts}


def test_phases_of_the_version_tables():
    "Every phase's epochs, temperature, weights, learning-rate factor and mix; each version has them all."
    table, = tables(section(FILE, '1.4'))
    seen, versions = [], ''
    for row in table:
        versions = row['Version'] or versions
        number, first, last = map(int, re.findall(r'\d+', row['Phase (epochs)']))
        for version in versions.lower().split(', '):
            phase = VERSIONS[version].phases[number - 1]
            mix = dict(VERSIONS['v22'].phases[number - 1].mix) if row['data_weights'] == 'as V22' else shares(row['data_weights'])
            stated = [first, last, *(numbers(row[name])[0] or 0.0 for name in ('temperature', 'lambda_infonce', 'LR x', 'lambda_kd')), mix]
            assert stated == [phase.first, phase.last, phase.temperature, phase.lambda_infonce, phase.learning_rate_factor, phase.lambda_kd, dict(phase.mix)], (version, number)
            seen.append((version, number))
    assert sorted(seen) == [(f'v{version}', number) for version in range(22, 29) for number in (1, 2, 3)]
    assert all(len(VERSIONS[version].phases) == 3 for version, _ in seen)
    assert VERSIONS['v28'].phases == VERSIONS['v28a'].phases == VERSIONS['v28_retrain'].phases


# ---- the seeds themselves

ALIASES = {'beta': 'flops_beta', 'teacher_model': 'teacher'}


def settings_tables(path: str, number: str) -> Iterator[tuple[str, str, object]]:  # version, setting, stated value
    "The rows of a section's tables of settings, by version."
    for table in tables(section(path, number)):
        for row in table:
            label, *_ = row.values()
            if not re.fullmatch('`[a-z_]+`', label): continue
            for column, cell in row.items():
                version = {'값': 'v28' if path == GUIDE else 'v26'}.get(column) or COLUMNS.get(column)
                if version: yield version, ALIASES.get(bare(label), bare(label)), literal(cell)


@pytest.mark.parametrize('path, number, count', [(LOSSES, '1', 2), (LOSSES, '4', 2), (LOSSES, '5', 10), (LOSSES, '6', 2), (LOSSES, '7', 5), (LOSSES, '8', 28), (GUIDE, '10.1', 2)])
def test_settings_that_a_seed_states(path, number, count):
    stated = list(settings_tables(path, number))
    assert len(stated) == count
    assert [(version, name, value, getattr(ORIGINAL[version], name)) for version, name, value in stated if not agrees(version, name, value, ORIGINAL)] == []


def test_phases_that_the_losses_state():
    table, = tables(section(LOSSES, '9'))
    stated = [(row['Epochs'], *(literal(row[f'`{name}`']) for name in ('temperature', 'lambda_infonce', 'lambda_kd'))) for row in table]
    assert stated == [(f'{phase.first}-{phase.last}', phase.temperature, phase.lambda_infonce, phase.lambda_kd) for phase in ORIGINAL['v26'].phases]


WEIGHTS = dict(infonce='lambda_infonce', self='lambda_self', positive='lambda_positive', margin='lambda_margin', flops='lambda_flops', min_act='lambda_min_act', kd='lambda_kd')
AS = dict(v24='v25', v27='v26', v28='v26')  # versions without a column of their own: the losses of this one


def stated_weights(version: str, epoch: int) -> dict[str, float]:
    "The weight of each loss in an epoch: the losses' table of versions, and the phases where a seed states some."
    table, = tables(section(LOSSES, '8'))
    column = AS.get(version, version).upper()
    weights = {name: literal(next(row[column] for row in table if bare(row['Loss']) == setting)) or 0.0 for name, setting in WEIGHTS.items()}
    path, number = {'V22': (GUIDE, '4.2'), 'V26': (LOSSES, '9')}.get(column, ('', ''))
    for row in next(tables(section(path, number))) if path else ():
        first, last = map(int, re.findall(r'\d+', row['Epochs']))
        if first <= epoch <= last:
            weights |= {name: literal(cell) for name, cell in (('infonce', row.get('`lambda_infonce`', row.get('λ_InfoNCE'))), ('kd', row.get('`lambda_kd`', '0')))}
    language, = (literal(row['값']) for row in next(tables(section(GUIDE, '10.1'))) if bare(row['설정']) == 'lambda_language')
    return weights | dict(language=language if version == 'v28' else 0.0)


@pytest.mark.parametrize('version', [f'v{number}' for number in range(22, 29)])
def test_effective_weights_are_the_seeds(version):
    "What each loss is multiplied by, from the first to the last step of every epoch; no other loss has a weight."
    settings, each = ORIGINAL[version], 10
    steps = settings.epochs * each
    for step in range(steps):
        found = {name: weight for name, weight in weights_at(step, steps, settings).items() if weight}
        assert found == {name: weight for name, weight in stated_weights(version, step // each + 1).items() if weight}, step


def test_earlier_is_not_what_the_seeds_state():
    "The earlier repository's warm-up and annealing change V26's distillation in every phase; the test above can fail."
    settings, stated = VERSIONS['v26'], [stated_weights('v26', epoch)['kd'] for epoch in range(1, 26)]
    found = [weights_at(step, 25, settings)['kd'] for step in range(25)]
    assert found[0] == 0 and stated[0] == 2.5 and sum(one == other for one, other in zip(found, stated)) < 3


@pytest.mark.parametrize('version', [f'v{number}' for number in range(22, 29)])
def test_original_has_no_addition(version):
    before, after = VERSIONS[version], ORIGINAL[version]
    assert {name for name in NAMES if getattr(before, name) != getattr(after, name)} <= set(ADDED)
    assert {name: getattr(after, name) for name in ADDED if name != 'phases'} == {name: c.value for name, c in ADDED.items() if name != 'phases'}


def test_v28b_is_v28(): assert resolve('V28b') == resolve('v28')


def test_first_losses_of_the_guide():
    "Section 3.1's diagram and section 6.1's table state V22's weights."
    names = {'InfoNCE': 'lambda_infonce', 'Self-Reconstruction': 'lambda_self', 'Positive Activation': 'lambda_positive', 'Triplet Margin': 'lambda_margin', 'FLOPS': 'lambda_flops', 'Min Activation': 'lambda_min_act'}
    first = ORIGINAL['v22']
    drawn = re.findall(r'"([A-Z][\w\- ]+?)(?: Loss)?<br/>λ=([\d.]+)(?:, [mk]=([\d.]+))?"', section(GUIDE, '3.1'))
    assert {name: float(weight) for name, weight, _ in drawn} == {name: getattr(first, setting) for name, setting in names.items()}
    assert [float(more) for *_, more in drawn if more] == [first.margin, first.top_k]
    current = {row['Component']: float(row['Current']) for table in tables(section(GUIDE, '6.1')) for row in table}
    assert current == {name: getattr(first, setting) for name, setting in names.items()}
    assert f'{first.max_length} tokens too short' in section(GUIDE, '6.1') and '3e-6 too conservative' in section(GUIDE, '6.1') and first.learning_rate == 3e-6


def test_phases_of_the_guide():
    table, = tables(section(GUIDE, '4.2'))
    phases = ORIGINAL['v22'].phases
    stated = [(row['Epochs'], *(literal(row[name]) for name in ('Temperature', 'λ_InfoNCE', 'LR Multiplier'))) for row in table]
    assert stated == [(f'{phase.first}-{phase.last}', phase.temperature, phase.lambda_infonce, phase.learning_rate_factor) for phase in phases]
    assert [row['Data Focus'] for row in table] == ['50% single-term', '33% each type', '50% hard-neg']
    assert dict(phases[0].mix)['single_term'] == dict(phases[2].mix)['hard_neg'] == 0.5 and all(math.isclose(share, 1/3, abs_tol=0.01) for _, share in phases[1].mix)


def test_recommended_configuration_is_v23():
    "Section 7.4's YAML, key by key; an unknown key fails."
    yaml = pytest.importorskip('yaml')
    stated = yaml.safe_load(re.search('```yaml\n(.*?)```', section(GUIDE, '7.4'), re.S)[1])
    second, phases = ORIGINAL['v23'], stated.pop('curriculum_phases')
    assert phases == [dict(start_epoch=phase.first, end_epoch=phase.last, temperature=phase.temperature) for phase in second.phases]
    expansion_table = {'name': ('backbone',), 'use_expansion': ('mlm_head',), 'num_epochs': ('epochs',), 'use_idf_weighting': ('flops_form', {True: 'idf'})}
    flat = {name: value for part in stated.values() for name, value in part.items()}
    for name, value in flat.items():
        setting, translation = (*expansion_table.get(name, (name,)), {})[:2]
        assert getattr(second, setting) == translation.get(value, value), name
    assert len(flat) == 14


def test_gate_of_the_guide():
    code, version = section(GUIDE, '10.1'), ORIGINAL['v28']
    assert f'gate_hidden={version.gate_hidden})' in code and f'num_heads={version.gate_heads})' in code and version.context_gate


# ---- the table that is rendered

@pytest.mark.parametrize('recipe, scale', list(itertools.product(RECIPES, SCALES)))
def test_rendered_table_is_the_objects(recipe, scale):
    "Every cell is the setting's value, in brackets where it does nothing."
    table = version_table(recipe=recipe, scale=scale)
    assert {name for name in table if ' ' not in name} == set(NAMES) - {'phases'}
    for version in VERSIONS:
        settings = resolve_quietly(version, recipe, scale); held, idle = as_dict(settings), off(settings)
        shown = {name: row[version] for name, row in table.items()}
        assert {name: shown[name] for name in NAMES if name != 'phases'} == {name: f'({held[name]})' if name in idle else held[name] for name in NAMES if name != 'phases'}
        for number, phase in enumerate(settings.phases, 1):
            rows = {name: shown[f'phase {number} {name}'] for name in ('epochs', 'temperature', 'lambda_infonce', 'learning_rate_factor', 'lambda_kd', 'mix')}
            assert rows == dict(epochs=f'{phase.first}-{phase.last}', temperature=phase.temperature, lambda_infonce=phase.lambda_infonce, learning_rate_factor=phase.learning_rate_factor,
                                lambda_kd=phase.lambda_kd, mix=', '.join(f'{key} {share:g}' for key, share in phase.mix))


def test_changed_rows_are_those_that_differ():
    whole, changed = version_table(), version_table(changed=True)
    assert set(changed) == {name for name, row in whole.items() if len({str(value) for value in row.values()}) > 1}


# ---- versions, recipes, scales

@pytest.mark.parametrize('version, recipe, scale', list(itertools.product(VERSIONS, RECIPES, SCALES)))
def test_every_version_resolves_and_survives_json(version, recipe, scale):
    settings = resolve_quietly(version, recipe, scale)
    assert from_dict(json.loads(json.dumps(as_dict(settings), ensure_ascii=False))) == settings
    assert override(settings, json.loads(json.dumps(as_dict(settings)))) == settings
    if (recipe, scale) == ('earlier', 'full'): assert settings == VERSIONS[version]


@pytest.mark.parametrize('scales, corrections', [(SCALES, CORRECTIONS), (['mini'], MINI_CORRECTIONS), (['full'], PRETRAINED_CORRECTIONS)])
def test_every_correction_acts_and_has_a_reason(scales, corrections):
    made = {found['setting']: found for scale in scales for recipe in ('original', 'earlier') for version in VERSIONS for found in differences(version, scale, recipe)}
    assert [name for name in corrections if name not in made] == []
    assert [name for name in corrections if len(corrections[name].reason) < 20 or made[name]['reason'] != corrections[name].reason] == []


def test_corrections_follow_the_start(monkeypatch):
    "Wherever trained weights are the start, full scale too, they are those of `small`; random weights of a named backbone have others."
    def corrected(scale, **overrides): return {name: getattr(resolve_quietly('v28', scale=scale, **overrides), name) for name in [*PRETRAINED_CORRECTIONS, 'score_limit']}
    assert corrected('full') == corrected('small', vocabulary_rows='all') and corrected('full')['score_limit'] == 0
    random = corrected('full', initialization='random')
    assert random['score_limit'] == 1 and not random['query_terms'] and not random['initial_terms']
    assert resolve_quietly('v28', scale='full', backbone='multilingual-e5-small').initialization == 'closed_form'
    assert {resolve_quietly('v28', recipe, 'full').initialization for recipe in RECIPES} == {'pretrained'}
    monkeypatch.setitem(VERSIONS, 'v99', VERSIONS['v28'].but(initialization='random'))
    assert (resolve_quietly('v99', scale='full').initialization, resolve_quietly('v99', scale='full').score_limit) == ('random', 1)
    monkeypatch.setitem(VERSIONS, 'v99', VERSIONS['v28'].but(initialization='near_identity', hidden=64, layers=1, vocabulary=600))
    assert resolve_quietly('v99', scale='full').initialization == 'near_identity'


@pytest.mark.parametrize('version, overrides, corrected', [
    ('splade_v2', dict(lambda_kd=1.0), dict(kd_rows=True)), ('v28', dict(accumulation=2), dict(gradient_cache=True)),
    ('v26', dict(lambda_language=0.01), dict(language_spares_input=True, language_allows=LOANWORDS))])
def test_what_an_override_switches_on_is_corrected(version, overrides, corrected):
    usual, changed = resolve_quietly(version), resolve_quietly(version, **overrides)
    assert all(name in off(usual) and getattr(usual, name) != value == getattr(changed, name) for name, value in corrected.items())


@pytest.mark.parametrize('version', VERSIONS)
@pytest.mark.parametrize('scale', SCALES)
def test_differences_are_the_difference(version, scale):
    "What is listed is exactly what the recipes differ in, and each setting acts in at least one of them."
    written, mended = (resolve_quietly(version, recipe, scale) for recipe in ('original', 'corrected'))
    listed = differences(version, scale)
    assert {found['setting'] for found in listed} == {name for name in NAMES if getattr(written, name) != getattr(mended, name)}
    assert [found['setting'] for found in listed if found['setting'] in off(written) and found['setting'] in off(mended)] == []


STATED_ONLY = {('v23', 'temperature'), ('v23', 'lambda_infonce'), ('v23', 'lambda_kd'), ('v24', 'temperature'), ('v24', 'lambda_infonce'), ('v24', 'lambda_kd')}


@pytest.mark.parametrize('version', PARENTS)
def test_a_version_differs_from_its_parent(version):
    "In settings that act in one of the two; a few are stated by the documents though every phase sets its own."
    child, parent = VERSIONS[version], VERSIONS[PARENTS[version]]
    changed = {name for name in NAMES if getattr(child, name) != getattr(parent, name)}
    without_effect = {name for name in changed if name in off(child) and name in off(parent)}
    assert changed - without_effect and without_effect == {name for named, name in STATED_ONLY if named == version}
    assert list(VERSIONS).index(PARENTS[version]) < list(VERSIONS).index(version)


@pytest.mark.parametrize('name', CHOSEN)
def test_a_choice_is_of_a_setting_and_has_a_reason(name):
    assert name in NAMES and len(CHOSEN[name]) > 20
    assert len({getattr(settings, name) for settings in VERSIONS.values()}) > 1, 'the same in every version: no choice'


def test_every_version_is_described(): assert set(ABOUT) == set(VERSIONS) and set(PARENTS) <= set(VERSIONS)


# ---- overrides

def phase(first=1, last=25, **changes) -> dict: return dict(first=first, last=last, temperature=0.07, lambda_infonce=1.0, learning_rate_factor=1.0, lambda_kd=0.0) | changes


def test_overrides_by_name_text_and_file_agree(tmp_path):
    changes = dict(lambda_flops=0.02, epochs=25, context_gate=False, backbone='klue/roberta-base', weight_averaging=[0.0, 0.5], phases=[phase(mix={'original': 0.4, 'travel': 0.6})])
    (tmp_path/'settings.json').write_text(json.dumps(changes), encoding='utf-8')
    named = resolve('v28', **changes)
    assert named == resolve('v28', **read_overrides(json.dumps(changes))) == resolve('v28', **read_overrides(str(tmp_path/'settings.json')))
    typed = {name: value if isinstance(value, str) else json.dumps(value) for name, value in changes.items()}  # as a command line has it
    assert resolve('v28', **typed) == named and named.phases[0].mix == (('original', 0.4), ('travel', 0.6))
    assert resolve('v28', **read_overrides(' ')) == resolve('v28')


@pytest.mark.parametrize('name', [28, '28', 'v28', 'V28'])
def test_a_version_by_number(name): assert resolve(name) == resolve('v28')


# ---- what is refused

IMPOSSIBLE = [  # overrides of v28, what the message says
    (dict(lambda_flop=1), "did you mean 'lambda_flops'"), (dict(similarity='cosin'), "did you mean 'cosine'"), (dict(flops_form='idff'), "did you mean 'idf'"), (dict(scheduler='linaer'), "did you mean 'linear'"),
    (dict(epochs=True), 'expected int, found bool'), (dict(lambda_flops=True), 'expected float, found bool'), (dict(context_gate=2), 'expected bool, found int'), (dict(context_gate='yes'), 'expected bool, found str'),
    (dict(batch_size=3.5), 'expected int, found float'), (dict(batch_size='many'), 'expected int, found str'), (dict(batch_size=None), 'expected int, found NoneType'),
    (dict(lambda_flops='a little'), 'expected float, found str'), (dict(lambda_flops=[1]), 'expected float, found list'), (dict(backbone=True), 'expected str, found bool'), (dict(phases=3), 'expected list, found int'),
    (dict(lambda_flops=-0.1), 'the nearest is 0'), (dict(lambda_flops=math.nan), 'at least 0'), (dict(learning_rate=0), 'the nearest is 1e-12'), (dict(temperature=0), 'the nearest is 0.001'),
    (dict(dropout=1.1), 'the nearest is 1'), (dict(max_length=2), 'the nearest is 3'), (dict(top_k=0), 'the nearest is 1'), (dict(steps=-1), 'the nearest is 0'),
    (dict(top_k=20_000), 'the nearest is 16000'), (dict(margin=1.5, lambda_margin=1.0, similarity='cosine'), 'the nearest is 1.0'), (dict(gate_heads=3), 'must divide the hidden size 128'),
    (dict(hidden=100, context_gate=False), '3 attention heads must divide it; the nearest is 96'), (dict(query_length=1), 'the nearest is 3'), (dict(query_length=2), 'at least 3'), (dict(adam_beta2=1), 'must be below 1'),
    (dict(initialization='pretrained'), 'take random or near_identity'), (dict(initialization='near_identity', hidden=0, layers=0, vocabulary=0), 'set hidden and layers'), (dict(weight_averaging=()), 'at least one'), (dict(weight_averaging=(2,)), 'between 0 and 1'), (dict(weight_averaging=('a',)), 'between 0 and 1'),
    (dict(phases=[phase(2)]), 'let it begin at 1'), (dict(phases=[phase(1, 10), phase(12)]), 'let it begin at 11'), (dict(phases=[phase(1, 10), phase(10)]), 'let it begin at 11'),
    (dict(phases=[phase(1, 24)]), 'let both be 25'), (dict(phases=[phase(1, 30)]), 'let both be 25'), (dict(phases=[phase(1, 0), phase(1)]), 'ends at 0'),
    (dict(phases=[phase(mix={'original': 0.5})]), 'sums to 0.5, not to 1'), (dict(phases=[phase(temperature=0)]), 'must be above 0'), (dict(phases=[phase(temperature=math.nan)]), 'must be finite'),
    (dict(phases=[phase(temprature=1)]), "did you mean 'temperature'"), (dict(phases=[{'first': 1}]), 'phases end at epoch 8'), (dict(phases=[1]), 'expected Phase, found int'),
]
ALSO_IMPOSSIBLE = [
    dict(epochs=math.nan), dict(epochs=math.inf), dict(lambda_flops=math.inf), dict(phases='[{'), dict(weight_averaging='[0.5'), dict(phases=[phase(temperature='warm')]), dict(phases=[phase(temperature=True)]),
    dict(phases=[phase(lambda_kd=-1)]), dict(phases=[phase(lambda_kd=math.nan)]), dict(phases=[phase(learning_rate_factor=-1)]), dict(phases=[phase(mix=3)]), dict(phases=[phase(mix={'original': 'all'})]),
    dict(phases=[phase(mix={'original': math.nan})]), dict(phases=[phase(mix={'original': 1.5, 'travel': -0.5})]), dict(phases=[phase(mix={'orginal': 1.0})]),
]


@pytest.mark.parametrize('changes, told', IMPOSSIBLE, ids=lambda value: str(value)[:60])
def test_impossible_settings(changes, told):
    with pytest.raises(ConfigError) as caught: resolve('v28', **changes)
    assert told in str(caught.value) and len(str(caught.value)) < 2000


@pytest.mark.parametrize('changes', ALSO_IMPOSSIBLE, ids=str)
def test_other_impossible_settings(changes):
    with pytest.raises(ConfigError): resolve('v28', **changes)


@pytest.mark.parametrize('arguments, told', [(('v88',), "did you mean 'v28'"), (('v28', 'corected'), "did you mean 'corrected'"), (('v28', 'original', 'minni'), "did you mean 'mini'"), (('',), 'Known: v22')])
def test_unknown_version_recipe_scale(arguments, told):
    with pytest.raises(ConfigError, match=re.escape(told)): resolve(*arguments)


@pytest.mark.parametrize('source', ['{', '[1]', '{"lambda_flops"', 'no-such-file.json', '3'])
def test_overrides_that_are_no_object(source):
    with pytest.raises(ConfigError, match='settings'): read_overrides(source)


def test_overrides_file_that_is_a_list(tmp_path):
    (tmp_path/'list.json').write_text('[1]')
    with pytest.raises(ConfigError, match='found list'): read_overrides(str(tmp_path/'list.json'))


def test_what_a_version_itself_declares_is_warned_about():
    "V22's margin of 1.5 (design 4, section 6.1) stays as written, with a warning; as an override it is refused above."
    with pytest.warns(UserWarning, match='as written: margin=1.5'): assert resolve('v22', 'original', 'full').margin == 1.5
    assert resolve('v22', 'corrected', 'full').margin == 0.3


# ---- settings that are gone

@pytest.mark.parametrize('name', GONE)
def test_a_setting_that_is_gone_is_left_out_of_a_saved_configuration(name):
    "What acted on vectors is refused where it did, with the revision that opens such a model."
    saved, allowed = as_dict(VERSIONS['v28a']), GONE[name]
    assert name not in NAMES and from_dict(saved | {name: (allowed or (0.5,))[0]}) == VERSIONS['v28a']
    if not allowed: return
    with pytest.raises(ConfigError, match=f'{name}=7: a part of vectors that is gone; revision [0-9a-f]+ opens this model'): from_dict(saved | {name: 7})


def test_another_form_of_the_gate_is_refused_where_there_is_a_gate():
    saved = as_dict(VERSIONS['v28'])
    assert from_dict(saved | dict(gate_form='sigmoid')) == VERSIONS['v28']
    with pytest.raises(ConfigError, match='gate_form=hidden: a part of vectors that is gone; revision d39bf7a5'): from_dict(saved | dict(gate_form='hidden'))


def test_a_setting_that_is_gone_cannot_be_asked_for():
    for name, revision in (('kd_scale', '369c0e0b'), ('df_cutoff', 'd39bf7a5')):
        with pytest.raises(ConfigError, match=f'{name}: a setting that is gone.*{revision}'): resolve('v28', **{name: 2.0})


def test_a_model_of_an_earlier_revision_opens(tmp_path):
    "Its `splade.json` and `text.json` name what is gone since; its vectors are the same, bit for bit."
    from splade_nb.data.tokenizer import SpladeTokenizer, load_tokenizer, save_tokenizer, train_unigram
    from splade_nb.model.encode import encode
    from splade_nb.model.initialization import toy_model
    from splade_nb.model.load import load, save
    texts = ['아이튠즈 노래를 서울에서 듣는다', 'iTunes 음악', '제주도 여행 일정']
    tokenizer = SpladeTokenizer(train_unigram(texts, 60))
    model = toy_model(len(tokenizer.backend))
    save_tokenizer(tokenizer, save(model, tmp_path))
    before = encode(model, tokenizer, texts)
    added = {'splade.json': dict(gate_form='sigmoid', min_input_logit=0.0, hashed_bigrams=8192, phonetic_keys=True, lead_boost=0.1, model1_threshold=0.1, idf_prior_documents=0, expansion_limit=0.0, bigram_share=1.0),
             'text.json': dict(hashed_bigrams=0, phonetic_keys=True, lead_boost=0.1, expansions={})}
    for file, more in added.items():
        values = json.loads((tmp_path/file).read_text(encoding='utf-8'))
        (tmp_path/file).write_text(json.dumps(values | more, ensure_ascii=False), encoding='utf-8')
    after = encode(load(tmp_path), load_tokenizer(tmp_path), texts)
    assert before.nnz and (before != after).nnz == 0


# ---- settings files

SHORT = ('training:\n  num_epochs: 14\n  learning_rate: 2e-5\nloss:\n  margin: 0.3\n  use_idf_weighting: true\n'
         'curriculum_phases:\n  - {start_epoch: 1, end_epoch: 9}\n  - {start_epoch: 10, end_epoch: 14, temperature: 0.06}\n')


def test_the_settings_file_of_the_designs_is_version_23(tmp_path):
    written = tmp_path/'train_v23.yaml'
    written.write_text(re.search(r'```yaml\n(.*?)```', section(GUIDE, '7.4'), re.S)[1])
    values = read_overrides(str(written))
    assert {'backbone', 'mlm_head', 'epochs', 'flops_form', 'phases'} <= values.keys() <= set(NAMES)
    assert resolve_quietly('v23', 'original', 'full', **values) == ORIGINAL['v23']
    assert resolve_quietly('v22', 'original', 'full', **values).learning_rate == ORIGINAL['v23'].learning_rate


def test_names_of_design_2_stand_for_settings_inside_a_section_and_without(tmp_path):
    written = tmp_path/'mine.yaml'
    for text in ('beta: 0.2\nteacher_model: lsa\n', 'loss: {beta: 0.2}\nmodel: {teacher_model: lsa}\n'):
        written.write_text(text)
        assert read_overrides(str(written)) == {'flops_beta': 0.2, 'teacher': 'lsa'}


def test_a_phase_of_a_settings_file_keeps_what_it_does_not_name(tmp_path):
    written = tmp_path/'mine.yml'
    written.write_text(SHORT)
    changed, before = resolve_quietly('v23', 'original', 'full', **read_overrides(str(written))).phases[:2], ORIGINAL['v23'].phases
    assert [(one.first, one.last, one.temperature) for one in changed] == [(1, 9, before[0].temperature), (10, 14, 0.06)]
    assert [(one.lambda_infonce, one.mix) for one in changed] == [(one.lambda_infonce, one.mix) for one in before[:2]]


@pytest.mark.parametrize('text, said', [
    ('loss: {margin: 0.3', 'no YAML: .*line 1'), ('loss: 3', 'loss=3: loss is a section of a settings file'), ('- 1', 'found list'),
    ('loss:\n  margin: 0.3\n  margin: 0.5', 'margin is given twice'), ('margin: 0.3\nloss:\n  margin: 0.5', 'margin is given twice'),
    ('[1]: 2', 'no YAML'), ('1: 2', 'the name 1 is int'), ('!!bool foo', 'no YAML'), ('loss: {marginal: 1}', "did you mean 'margin'")])
def test_a_wrong_settings_file_is_refused(text, said, tmp_path, capsys):
    (tmp_path/'mine.yaml').write_text(text)
    assert main(['train', 'v22', '--config', str(tmp_path/'mine.yaml'), '--check-settings']) == 2
    assert re.search(said, capsys.readouterr().err)


@pytest.mark.parametrize('name', ['mine.json', 'mine.yaml'])
def test_a_settings_file_is_utf_8_with_or_without_its_mark(name, tmp_path):
    (tmp_path/name).write_bytes(b'\xef\xbb\xbf{"top_k": 7}')
    assert read_overrides(str(tmp_path/name)) == {'top_k': 7}
    (tmp_path/name).write_bytes('{"teacher": "한"}'.encode('cp949'))
    with pytest.raises(ConfigError, match=f'no {name[5:].upper()}: '): read_overrides(str(tmp_path/name))


def test_a_settings_file_of_comments_changes_nothing(tmp_path):
    (tmp_path/'mine.yaml').write_text('# later\n')
    assert read_overrides(str(tmp_path/'mine.yaml')) == {}


def test_phases_of_the_command_line_may_be_partial_and_a_whole_one_without_a_mix_has_none():
    _, settings = sort_changes(['phases=[{"temperature": 0.1}, {}, {}]'])
    assert [one.temperature for one in resolve_quietly('v22', 'original', 'full', **settings).phases] == [0.1, *(one.temperature for one in ORIGINAL['v22'].phases[1:])]
    whole = {name: value for name, value in as_dict(ORIGINAL['v22'])['phases'][0].items() if name != 'mix'} | dict(last=30)
    assert resolve_quietly('v22', 'original', 'full', phases=[whole]).phases[0].mix == ()
