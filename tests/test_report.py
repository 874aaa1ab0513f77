"""What reports say of a run: their sentences agree with their tables, their commands with the run."""
import warnings
import numpy as np
from splade_nb.evaluation import metrics


def test_differences_without_variance_are_judged_by_their_signs():
    "A t-test divides by the variance: two queries that both gain 0.1 had p = 0."
    with warnings.catch_warnings():
        warnings.simplefilter('error')
        few, many = (metrics.paired_difference(np.linspace(0, 0.7, n) + 0.1, np.linspace(0, 0.7, n)) for n in (2, 8))
        none = metrics.paired_difference(np.full(8, 0.5), np.full(8, 0.5))
        together = metrics.pooled([few, few, none])
    assert (few['p'], many['p'], none['p']) == (0.5, 2 ** -7, 1) and together['p'] == 2 ** -3, 'the signs of 2 + 2 queries'
    assert metrics.marked([few]) == ['≈'] == metrics.marked([together]) and metrics.marked([many]) == ['▲']
    assert metrics.pooled([many, {name: value if name == 'p' else -value for name, value in many.items()}])['p'] == 1
