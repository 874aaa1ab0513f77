"""Write docs/claims.md: what the five design documents claim, and what became of each claim.

    python docs/claims_page.py            write the page
    python docs/claims_page.py --check    exit 1 if it is not what the tests, notebooks and kept results say
"""
import functools, json, math, sys
from dataclasses import dataclass
from pathlib import Path
import numpy as np
import torch
import versions_page
from splade_nb.config.files import read_json
from splade_nb.evaluation.figures import source_line
from splade_nb.lab.study import KeptResults, data_of, revision_of
from splade_nb.training.losses import distillation, minimum_activation

ROOT = Path(__file__).resolve().parent.parent
PAGE = """# Claims of the design documents

The claims of the five design documents that can be checked. The documents are not published; without them the tests skip the comparison with their text. Written by `python docs/claims_page.py`: it computes the figures, or reads them from the results kept in `docs/results`. `tests/test_claims.py` checks that each claim stands in its document, that its evidence exists, and that the page is what the script writes.

*Holds* and *false* were tested, by the cell or test that is linked. *In part*: it holds under a condition that the column *what was found* names. *Untested*: nothing here decides it; the last columns say what would, and what a small model shows.

Counted: {counts}.

{tables}
"""
DOCUMENTS = {1: ('1-architecture.md', 'architecture'), 2: ('2-losses.md', 'losses'), 3: ('3-operation.md', 'operation'),
             4: ('4-training-guide.md', 'training guide'), 5: ('5-multi-head-pooling.md', 'multi-head pooling')}
STATUSES = ('holds', 'in part', 'false', 'untested')


@dataclass(frozen=True)
class Claim:
    "A claim, where it stands, and what is known of it."
    document: int
    section: str
    claim: str
    quote: str            # words of the document
    status: str           # one of STATUSES
    found: str            # what was measured, or what would decide it
    evidence: str = ''    # file#cell of a notebook, or file::test


def result(name: str) -> dict: return json.loads((ROOT/'docs'/'results'/name/'summary.json').read_text(encoding='utf-8'))


def judged(name: str) -> dict: return json.loads((ROOT/'docs'/'results'/name/'evaluation.json').read_text(encoding='utf-8'))


V28 = [path.parent.name for path in sorted((ROOT/'docs'/'results').glob('v28-corrected-mini-*/summary.json'))]  # a run a seed


def mean_of(*names: str) -> float:
    "Of the kept V28 on the embedded set, over its seeds; names: the keys of the value in a summary."
    return float(np.mean([functools.reduce(dict.__getitem__, names, result(run)) for run in V28]))


# ---- figures that are computed

def effective_negatives(deviation: float, batch: int = 64, temperature: float = 0.03, tries: int = 2000) -> float:
    "Perplexity of the softmax over the other documents of a batch whose cosines deviate so much, mean over queries."
    cosines = torch.randn(tries, batch - 1, generator=torch.Generator().manual_seed(0)) * deviation
    shares = torch.softmax(cosines / temperature, 1)
    return torch.special.entr(shares).sum(1).exp().mean().item()


@functools.cache
def deviation_of(wanted: float = 1.9) -> float:
    "The deviation of cosines at which there are so many effective negatives."
    low, high = 0.01, 0.5
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (middle, high) if effective_negatives(middle) > wanted else (low, middle)
    return low


WEIGHTS = {'Positive Activation': 10.0, 'Self-Reconstruction': 4.0, 'Triplet Margin': 2.5, 'InfoNCE': 2.0, 'Min Activation': 1.0, 'FLOPS': 0.005}


def weight_shares() -> dict: return {name: weight / sum(WEIGHTS.values()) for name, weight in WEIGHTS.items()}


def activation_gradient(logit: float) -> float:
    value = torch.tensor(logit, requires_grad=True)
    value.relu().log1p().backward()
    return value.grad.item()


def parameters_of_xlmr() -> int:
    "Parameters of XLM-R base with its MLM head, without allocating them."
    from transformers import XLMRobertaConfig, XLMRobertaForMaskedLM
    with torch.device('meta'):
        model = XLMRobertaForMaskedLM(XLMRobertaConfig(vocab_size=250_002, max_position_embeddings=514, type_vocab_size=1))
    return sum(value.numel() for value in model.parameters())


def logits_gib(batch: int = 64, length: int = 256, vocabulary: int = 250_002, bytes_each: int = 4) -> float:
    return batch * length * vocabulary * bytes_each / 2 ** 30


def scale_moves_distillation() -> float:
    "How far the squared error of z-scores moves when all scores of the student are multiplied by ten."
    torch.manual_seed(0)
    student, teacher = torch.rand(4, 8), torch.rand(4, 8)
    one, ten = (distillation(factor * student, teacher, 3.0, alpha_kl=0.0, alpha_mse=1.0).item() for factor in (1, 10))
    return abs(one - ten)


def pull_on_a_collapsed_text() -> float:
    "The largest gradient of the minimum activation at logits that are all negative."
    logits = torch.full((1, 50), -1.0, requires_grad=True)
    minimum_activation(logits.relu().log1p(), 5, 0.5).backward()
    return logits.grad.abs().max().item()


def rates_disagree() -> float:
    "The largest relative difference between the table's throughput and its batch size over its latency."
    rows = ((1, 45, 22), (8, 280, 29), (16, 420, 38), (32, 580, 55), (64, 720, 89))
    return max(abs(size / (milliseconds / 1000) / rate - 1) for size, rate, milliseconds in rows)


# ---- the claims

def claims() -> list[Claim]:
    shares, over = weight_shares(), [judged(run)['difference']['mean'] for run in V28]
    gain = mean_of('metrics', 'ndcg@10') / mean_of('bm25', 'ndcg@10') - 1
    ranked = versions_page.rows().query('recipe != "original"')
    pretrained = ranked.groupby('name')['mean'].mean()
    wide = {version: list(KeptResults('encoder/4_collections').results(f'{version}-corrected-[0-9][0-9]').values()) for version in ('v26', 'v28')}
    def of_wide(read): return ', '.join(f'{version.upper()} {sum(map(read, runs)) / len(runs):.1%}' for version, runs in wide.items())
    def share_of(part, figure): return of_wide(lambda run: run[part][figure]['mean'])
    first = of_wide(lambda run: sum(values := [float(value) for value in run['found']['ko_strategyqa_facts']['success@1'].split()]) / len(values))
    searched = wide['v28'][0]['found']['ko_strategyqa_facts']['documents']
    encoder = 'from multilingual-e5-small, learned from four collections and judged on five,'
    small = f'V28 corrected on the embedded set, a small model, mean of {len(V28)} seeds'
    return [
        Claim(1, 'Base model', 'mBERT and KoBERT have about 50,000 tokens', '~50,000', 'false', 'that is A.X-Encoder; KoBERT has 8,002, mBERT 119,547', 'nbs/errata.ipynb#c7-check'),
        Claim(1, 'V26 specification', 'about 278 M parameters', '~278M', 'holds', f'{parameters_of_xlmr():,} with the MLM head, counted', 'tests/test_claims.py::test_figures'),
        Claim(1, 'Token weights', 'the printed forward pass, encoding and top-k code run', 'top_tokens = model.get_top_k_tokens(', 'holds', 'on a local checkpoint', 'tests/test_design_code.py::test_design_1_forward_is_the_models'),
        Claim(1, 'Sparsity', 'at x = 0 the gradient stays 1', 'x=0에서 기울기 1 유지', 'false', f'{activation_gradient(0.0):g} at 0: ReLU comes first; {activation_gradient(1e-6):.3g} just above', 'tests/test_claims.py::test_figures'),
        Claim(1, 'IDF', 'penalty exp(-alpha idf) keeps rare tokens', 'High IDF -> 낮은 패널티', 'holds', 'the direction of designs 1 and 2; design 4, section 7.3, has the opposite', 'nbs/errata.ipynb#c3-check'),
        Claim(2, '1', 'a lower temperature concentrates on hard negatives', 'Temperature가 낮을수록 분포가 sharp해짐', 'holds', f'{effective_negatives(0.1, temperature=0.08):.1f} effective negatives of 63 at 0.08, {effective_negatives(0.1, temperature=0.03):.1f} at 0.03, for cosines that deviate by 0.1', 'tests/test_claims.py::test_figures'),
        Claim(2, '2', 'cross-entropy ensures that input tokens are active', '토큰 재현율(token recall) 보장', 'false', 'on activated outputs it has a floor at ln 2 and a gradient of about 1 / V', 'nbs/errata.ipynb#p1-check'),
        Claim(2, '3', 'the positive loss teaches synonyms that are not active', '유의어 학습', 'false', 'inactive terms get no gradient; the expansion form of recipe corrected reaches them', 'nbs/errata.ipynb#p2-check'),
        Claim(2, '5', 'leaving special tokens out mends the range of IDF', '특수 토큰 제외', 'false', 'unseen tokens share the same maximum', 'nbs/errata.ipynb#unseen-check'),
        Claim(2, '6', 'the minimum activation prevents empty vectors', '방지한다', 'in part', f'before the collapse: at logits that are all negative its gradient is {pull_on_a_collapsed_text():g}', 'tests/test_claims.py::test_figures'),
        Claim(2, '7', 'the squared error learns the absolute scale of similarities', '절대적 유사도 스케일 학습', 'false', f'z-scores have no scale: ten times the scores move it by {scale_moves_distillation():.1g}', 'tests/test_claims.py::test_figures'),
        Claim(2, '7', 'distillation stabilises early training', '초기 학습 안정화', 'untested', 'no run compares the first steps with and without it; on cosine both softmaxes are nearly uniform at T = 3, so the divergence is faint', 'nbs/errata.ipynb#p5-check'),
        Claim(2, '8, 9', "every version's weights and phases", '버전별 손실 가중치 비교', 'holds', 'recipe original has them, step by step', 'tests/test_versions.py::test_effective_weights_are_the_seeds'),
        Claim(3, '2', 'the printed steps from text to vector run', '# 2. Embedding + Encoding (Transformer Forward)', 'holds', 'and give the vector of the model', 'tests/test_design_code.py::test_design_3_step_by_step'),
        Claim(3, '3', 'about half of the logits vanish at once', '약 50%의 값이 즉시 0이 됨', 'in part', 'it depends on the weights: measured for random ones', 'nbs/errata.ipynb#c16-check'),
        Claim(3, '3', 'log1p(0.1) is about 0.095, log1p(10) about 2.40', 'log1p(0.1) ≈ 0.095, log1p(10) ≈ 2.40', 'holds', f'{math.log1p(0.1):.3f} and {math.log1p(10):.2f}', 'tests/test_claims.py::test_figures'),
        Claim(3, '3', '50 to 100 active terms, over 99.96 % zeros', '99.96% 이상', 'untested', f'{small}: {mean_of("active_terms", "query"):.0f} terms a query, {mean_of("active_terms", "doc"):.0f} a document; at 250,002 terms it needs a run at full scale'),
        Claim(3, '5.3', 'the CSR file is a file of SciPy', 'np.savez_compressed', 'false', 'the key that names the format is missing', 'nbs/errata.ipynb#p19-check'),
        Claim(3, '5.4', 'half precision halves the memory', '메모리 50% 절감', 'in part', 'of the weights; the model itself is changed, and the mask makes float32 again', 'nbs/errata.ipynb#p9-check'),
        Claim(3, '5.5', 'batch 64 of 256 tokens takes 7.8 GB', '| 64 | 7.8 GB |', 'false', f'the logits of the printed forward pass alone take {logits_gib():.1f} GiB, {logits_gib(bytes_each=2):.1f} GiB in half precision', 'nbs/errata.ipynb#c13-check'),
        Claim(3, '5.5', f'45 to 720 documents a second on an A10G: {280 * 3600 / 1e6:.1f} million an hour in batches of 8, {420 * 3600 / 1e6:.1f} in batches of 16, {720 * 3600 / 1e6:.1f} in batches of 64', '| 64 | 7.8 GB | 720 | 89 |', 'untested', f'throughput and latency of the table agree within {rates_disagree():.1%}; it needs that GPU'),
        Claim(4, '3.1', "V22's margin of 1.5 on cosine can be reached", 'm=1.5', 'false', 'as its section 6.1 says itself: cosines of such vectors differ by at most 1', 'nbs/errata.ipynb#p6-check'),
        Claim(4, '4.3', '14 and 33 times the gradient at temperatures 0.07 and 0.03', 'τ=0.07: ~14x gradient amplification', 'holds', f'{1 / 0.07:.1f} and {1 / 0.03:.1f}', 'tests/test_claims.py::test_figures'),
        Claim(4, '6.1', 'contributions of the losses: 50, 20, 12, 10, 5 and 3 percent', '| FLOPS | 0.005 | ~3% |', 'in part', 'these are shares of the weights, not of the losses: ' + ', '.join(f'{name} {share:.2%}' for name, share in shares.items()) + '; that of FLOPS is wrong', 'tests/test_claims.py::test_figures'),
        Claim(4, '6.2', 'log(1 + x) has gradients 0.5, 0.09 and 0.01 at 1, 10 and 100', 'x=100: gradient = 0.01', 'holds', ', '.join(f'{activation_gradient(x):.2g}' for x in (1.0, 10.0, 100.0)), 'tests/test_claims.py::test_figures'),
        Claim(4, '2.2', 'log(1 + x) is bounded', 'bounded transformation', 'false', f'it grows without limit: {math.log1p(1e6):.1f} at a million', 'tests/test_claims.py::test_figures'),
        Claim(4, '6.2', 'about 1.9 effective negatives at batch 64 and temperature 0.03', '~1.9 effective negatives', 'in part', f'where cosines deviate by {deviation_of():.2f}; ' + ', '.join(f'{effective_negatives(d):.1f} at {d}' for d in (0.05, 0.1, 0.2)), 'tests/test_claims.py::test_figures'),
        Claim(4, '6.3', 'IDF-aware FLOPS gains 1.5 to 2 points of nDCG, distillation 2 to 3', '+1.5~2.0 NDCG', 'untested', 'V23 changes both and ten other settings at once; it needs one run for each at full scale'),
        Claim(4, '7.1', 'BM25 42, dense 48, V22 about 50 nDCG@10', '~50.0', 'untested', 'no data are named; the figures fit none that was measured'),
        Claim(4, '7.2', '15 % more nDCG than BM25', 'BM25 대비 +15% NDCG', 'in part', f'{small}: {gain:+.0%} ({min(over):+.3f} to {max(over):+.3f}), where training and test queries share documents; from multilingual-e5-small {pretrained["v28"]:.1f} against {pretrained["BM25"]:.1f} of BM25 and {pretrained["BM25 + bigrams"]:.1f} with a field of bigrams, mean of five collections, learned from four', 'nbs/studies/encoder.ipynb#ranking-table'),
        Claim(4, '7.3', 'multiplying activations by IDF brings in the idea of BM25', 'mean_activation * idf_weights', 'false', 'it punishes rare tokens most', 'nbs/errata.ipynb#c3-check'),
        Claim(4, '10.1', 'the language filter raises retrieval', '한국어 검색 정확도 향상', 'false', 'as written, with the penalty of 100 multiplied in: vectors vanish', 'nbs/errata.ipynb#collapse-check'),
        Claim(4, '10.1', 'a sigmoid gate tells contexts apart', 'Context-Gated Sparse Expansion', 'in part', 'only in weights: it cannot change which terms are active', 'nbs/errata.ipynb#p7-check'),
        Claim(4, '10.2', 'over 85 % Korean tokens', '>85%', 'in part', f'{small}: {mean_of("korean", "count_share"):.1%}; {encoder} {share_of("korean", "count_share")}; not tried at full scale', 'tests/test_claims.py::test_results_are_kept'),
        Claim(4, '10.2', 'under 5 % multilingual noise', '<5%', 'in part', f'{small}: {mean_of("korean", "noise"):.1%}; {encoder} {share_of("korean", "noise")}; not tried at full scale', 'tests/test_claims.py::test_results_are_kept'),
        Claim(4, '10.2', 'contexts told apart in over 60 %', '>60%', 'in part', f'{small}: {mean_of("context_discrimination", "set"):.1%} in active terms, {mean_of("context_discrimination", "weighted"):.1%} in weights; {encoder} {share_of("context", "set")} in active terms; not tried at full scale', 'tests/test_claims.py::test_results_are_kept'),
        Claim(4, '10.2', 'Recall@1 over 40 % on Ko-StrategyQA', '>40%', 'in part', f'{encoder} a relevant document comes first for {first} of the test questions, among {searched:,} of its documents; the earlier repository had BM25 at 53.7 % among all of them', 'nbs/studies/encoder.ipynb#criteria'),
        Claim(5, 'Code', 'the printed layer runs and gives [batch, embedding]', 'new_v = a.matmul(v)', 'false', 'it fails for more than one token: the scores have the wrong shape', 'nbs/errata.ipynb#p20-check'),
        Claim(5, 'Introduction', 'mean pooling treats all tokens alike', '모든 토큰을 동일하게 취급', 'holds', 'the pooler with heads weighs them', 'nbs/errata.ipynb#c9-check'),
    ]


def linked(evidence: str) -> str:
    "Evidence as a link to its page; pages of the site have no anchors for cells, so a cell is named."
    if not evidence: return '-'
    path, _, name = evidence.replace('::', '#').partition('#')
    return f'[{Path(path).stem}, {name.removesuffix("-check")}](../{path})' if path.endswith('.ipynb') else f'[{name}](../{path})'


def table(number: int, rows: list[Claim]) -> str:
    lines = [f'| {row.section} | {row.claim} | **{row.status}** | {row.found} | {linked(row.evidence)} |' for row in rows if row.document == number]
    return '\n'.join([f'## Design {number}: {DOCUMENTS[number][1]}', '', '| section | claim | status | what was found | by |', '|---|---|---|---|---|', *lines])


def source() -> str:
    "Of the page: formulas, the kept runs of V28, and the study of a pretrained encoder."
    kept, results = {run: result(run) for run in V28}, ROOT/'docs'/'results'
    study = KeptResults('encoder').results()
    data = {each['data']['name']: each['data']['hash'] for each in kept.values()} | {name: hash for record in study.values() for name, hash in data_of(record).items()}
    paths = KeptResults('encoder').paths()
    return source_line('python docs/claims_page.py', data, [*(revision_of(results/run/'summary.json', each) for run, each in kept.items()), *map(revision_of, paths)],
                       [*(each.get('date', '') for each in kept.values()), *(read_json(path).get('date', '') for path in paths)])


def page() -> str:
    rows = claims()
    counts = ', '.join(f'{sum(row.status == status for row in rows)} {status}' for status in STATUSES)
    return PAGE.format(counts=counts, tables='\n\n'.join(f'{table(number, rows)}\n\n{source()}' for number in DOCUMENTS))


if __name__ == '__main__':
    path, found = ROOT/'docs'/'claims.md', page()
    if '--check' in sys.argv[1:]: sys.exit(path.read_text(encoding='utf-8') != found)
    path.write_text(found, encoding='utf-8')
