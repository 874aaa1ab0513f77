"""The page of the design documents' claims: its quotes, evidence and figures."""
import ast, json, math, sys
import pytest
from conftest import ROOT, real

sys.path.insert(0, str(ROOT/'docs'))
import claims_page

CLAIMS = claims_page.claims()


@pytest.mark.parametrize('claim', CLAIMS, ids=lambda claim: f'{claim.document}: {claim.claim[:40]}')
def test_a_claim_stands_in_its_document(claim):
    assert claim.quote in real(f'seeds/{claims_page.DOCUMENTS[claim.document][0]}').read_text(encoding='utf-8')


def exists(evidence: str) -> bool:
    "Whether a notebook has the cell, or a file of tests the test."
    path, _, name = evidence.replace('::', '#').partition('#')
    text = (ROOT/path).read_text(encoding='utf-8')
    if path.endswith('.ipynb'): return name in {cell['id'] for cell in json.loads(text)['cells'] if cell['cell_type'] == 'code'}
    return name in {node.name for node in ast.parse(text).body if isinstance(node, ast.FunctionDef)}


def test_every_status_has_evidence_that_exists():
    assert [claim.claim for claim in CLAIMS if claim.status not in claims_page.STATUSES] == []
    assert [claim.claim for claim in CLAIMS if not claim.evidence and claim.status != 'untested'] == []
    assert [claim.evidence for claim in CLAIMS if claim.evidence and not exists(claim.evidence)] == []
    assert not exists('nbs/errata.ipynb#c99-check') and not exists('tests/test_claims.py::test_nothing')


def test_page_is_what_the_script_writes():
    assert (ROOT/'docs'/'claims.md').read_text(encoding='utf-8') == claims_page.page(), 'run python docs/claims_page.py'


def test_results_are_kept():
    "The figures of success criteria are the means of the kept runs."
    runs = [claims_page.result(name) for name in claims_page.V28]
    share, noise, context = (sum(run[part][figure] for run in runs) / len(runs) for part, figure in (('korean', 'count_share'), ('korean', 'noise'), ('context_discrimination', 'set')))
    shown = [claim.found for claim in CLAIMS if claim.section == '10.2' and 'test_results_are_kept' in claim.evidence]
    assert len(runs) >= 3 == len(shown) and f'{share:.1%}' in shown[0] and f'{noise:.1%}' in shown[1] and f'{context:.1%}' in shown[2]
    assert share > 0.85 and context > 0.6


def test_figures():
    "What the page calls true, false or true in part, from formulas alone."
    page = claims_page
    assert round(page.parameters_of_xlmr() / 1e6) == 278
    assert page.activation_gradient(0.0) == 0 and page.activation_gradient(1e-6) == pytest.approx(1, abs=1e-4)
    assert [round(page.activation_gradient(x), 2) for x in (1.0, 10.0, 100.0)] == [0.5, 0.09, 0.01]
    assert (round(math.log1p(0.1), 3), round(math.log1p(10), 2), round(1 / 0.07), round(1 / 0.03)) == (0.095, 2.4, 14, 33)
    assert page.effective_negatives(0.1, temperature=0.03) < page.effective_negatives(0.1, temperature=0.08) < 63
    assert page.effective_negatives(0.05) > 1.9 > page.effective_negatives(0.4) and page.effective_negatives(page.deviation_of()) == pytest.approx(1.9, abs=0.01)
    stated = {'Positive Activation': 0.50, 'Self-Reconstruction': 0.20, 'Triplet Margin': 0.12, 'InfoNCE': 0.10, 'Min Activation': 0.05, 'FLOPS': 0.03}
    assert [name for name, share in page.weight_shares().items() if abs(share - stated[name]) > 0.015] == ['FLOPS']
    assert page.scale_moves_distillation() < 1e-5 and page.pull_on_a_collapsed_text() == 0
    assert page.logits_gib() > 7.8 and page.rates_disagree() < 0.03
