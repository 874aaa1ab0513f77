"""What goes wrong in training, as data: settings that produce a symptom, the number that shows it, settings that may end it."""
from dataclasses import dataclass

SMALL = dict(vocabulary=2000, hidden=64, layers=1, batch_size=8, pair_weight=0.0, accumulation=1, max_length=64, segment='none', steps=24, learning_rate=0.003, phases=(), lambda_kd=0.0,
             bm25_negatives=0, dense_negatives=0, validations=0, weight_averaging=(0.0,))  # under every case, where it says nothing else
IDENTITY = dict(start='near_identity')  # for versions as written
CALM = dict(lambda_language=0.01, non_korean_penalty=1.0, language_ramp=0.3)

MEASURES = {  # name: what the number is
    'query_terms': 'active terms of a query',
    'doc_terms': 'active terms of a document',
    'ratio': 'active terms of a document for one of a query',
    'stopwords': 'share of particles, endings and function words among the ten heaviest terms of a document',
    'key': 'weight of a query\'s three rarest input tokens, as a share of its heaviest term',
    'recall': 'share of a text\'s input tokens that are active',
    'bridges': 'terms that a trained query and its document share though not by their words, less those that strangers share',
    'special': 'share of a document\'s weight on special tokens',
    'noise': 'share of foreign tokens among the active terms of Korean documents',
    'chance': 'InfoNCE, where 1 is a model that knows nothing',
    'wobble': 'deviation of InfoNCE from its trend, as a share of its mean',
    'lowest': 'the lowest term of the loss at the end',
    'held_fall': 'share by which the loss on held-out queries fell',
    'drop': 'nDCG@10 lost against the start',
    'rise': 'rise of the held-out loss above its lowest, as a share of it',
    'margin': 'triplet term at the end, before its weight',
    'self_moved': 'share by which the self-reconstruction term moved',
    'kd_pull': 'distillation\'s share of the gradient',
    'seen': 'documents that a query is compared with, as a share of those in an optimizer step',
}


@dataclass(frozen=True)
class Case:
    "A symptom: where it comes from, what shows it, what was tried against it."
    name: str
    symptom: str
    why: str
    version: str
    settings: dict      # beside SMALL
    measure: str        # of MEASURES
    sign: str           # '>' or '<': where the symptom is
    limit: float        # the threshold
    tries: tuple        # ((who advises it: seed or here, settings), ...)
    recipe: str = 'corrected'
    seed: str = ''      # the design document's own words
    picture: str = ''   # loss, doc_terms or ndcg over the steps
    beside: str = ''    # of MEASURES: what one would look at, and what it says


CASES = (
    Case('stopwords', 'Particles and function words take the top places.', 'Frequent tokens stand in every text, often twice, and nothing in a near-identity start weighs them less.',
         'v25', dict(IDENTITY, stopword_penalty=1.0, term_frequency=True), 'stopwords', '>', 0.1,
         (('seed', dict(lambda_flops=0.05)), ('seed', dict(stopword_penalty=100.0)), ('seed', dict(lambda_flops=0.02, stopword_penalty=15.0)), ('here', dict(output_idf=0.5))),
         recipe='original', seed='불용어 과다 활성화 | top-10에 조사/접속사 | `lambda_flops` 증가, `stopword_penalty` 증가'),
    Case('meaning', 'The tokens that carry the meaning weigh little.', 'FLOPS pushes all tokens down, and rare ones have few texts that hold them up.',
         'v26', dict(IDENTITY, lambda_flops=0.1), 'key', '<', 0.5,
         (('seed', dict(idf_alpha=0.5)), ('seed', dict(lambda_min_act=5.0)), ('here', dict(idf_alpha=8.0)), ('here', dict(lambda_flops=0.01))),
         recipe='original', seed='의미 토큰 억제 | 핵심 명사 활성화 낮음 | `idf_alpha` 감소, `lambda_min_act` 증가'),
    Case('recall', 'Tokens of the text itself are missing from its vector.', 'FLOPS outweighs what keeps input tokens alive.',
         'v26', dict(IDENTITY, lambda_flops=0.1), 'recall', '<', 0.8,
         (('seed', dict(lambda_self=5.0)), ('here', dict(lambda_self=2.0, self_form='logit')), ('here', dict(min_input_logit=1.0))),
         recipe='original', seed='토큰 재현율 저하 | 입력 토큰 누락 | `lambda_self` 증가'),
    Case('synonyms', 'Query and document meet only in the words that both hold.', 'Nothing asks a text for tokens that it does not hold.',
         'v26', dict(IDENTITY, lambda_positive=0.0), 'bridges', '<', 1.0,
         (('seed', dict(lambda_positive=2.0)), ('seed', dict(lambda_positive=10.0)), ('here', dict(lambda_positive=0.5, positive_form='expansion')), ('here', dict(lambda_positive=2.0, silence=3.0))),
         recipe='original', seed='유의어 미학습 | 관련 토큰 비활성화 | `lambda_positive` 증가'),
    Case('inert', 'The positive loss is on, and no new term appears.', 'It acts after ReLU, where an inactive term has no gradient.',
         'v26', dict(IDENTITY, lambda_positive=2.0), 'bridges', '<', 1.0,
         (('here', dict(lambda_positive=10.0)), ('here', dict(lambda_positive=0.5, positive_form='expansion')), ('here', dict(silence=3.0))), recipe='original'),
    Case('unstable', 'The loss swings from step to step.', 'Small batches differ: each has other negatives.',
         'v26', dict(IDENTITY, batch_size=4), 'wobble', '>', 0.2,
         (('seed', dict(lambda_kd=2.0)), ('seed', dict(lambda_kd=6.0, kd_temperature=6.0)), ('here', dict(learning_rate=0.0005)), ('here', dict(batch_size=32))),
         recipe='original', seed='학습 불안정 | loss 진동 | `lambda_kd` 증가, `kd_temperature` 증가'),
    Case('overfit', 'Training ends below the start.', 'Few pairs and large steps make the model forget how its start ranks; the loss on held-out queries does not tell.',
         'splade_v2', dict(learning_rate=0.01, validations=3), 'drop', '>', 0.03,
         (('seed', dict(lambda_flops=0.1)), ('seed', dict(dropout=0.3)), ('here', dict(early_stopping=1)), ('here', dict(weight_averaging=(0.0, 0.25, 0.5, 0.75))), ('here', dict(learning_rate=0.003))),
         seed='과적합 | val loss 발산 | `lambda_flops` 증가, `dropout` 증가', picture='ndcg', beside='rise'),
    Case('zero', 'The language filter takes the ranking with it.', 'The language term sums over all foreign tokens and outweighs everything else from the first step.',
         'v28a', dict(IDENTITY, learning_rate=0.01), 'drop', '>', 0.25,
         (('here', dict(lambda_min_act=5.0, top_k=10, min_activation=1.0)), ('here', dict(non_korean_penalty=1.0)), ('here', CALM)), recipe='original', picture='doc_terms'),
    Case('dying', 'A default start dies early.', 'FLOPS drives the logits of a random start below zero, where ReLU has no gradient; what is left is the same few terms in every text.',
         'splade_v2', dict(start='random', learning_rate=0.01, lambda_flops=0.1, flops_ramp=0.0), 'doc_terms', '<', 10,
         (('here', dict(flops_ramp=0.5)), ('here', dict(lambda_min_act=5.0)), ('here', dict(lambda_flops=0.001)), ('here', dict(start='near_identity'))), picture='doc_terms'),
    Case('dense', 'Texts activate a large part of the vocabulary.', 'Half of the logits of a random start are positive, and without FLOPS they stay so. (So short a run from random weights ranks nothing either way: read the terms.)',
         'splade_v2', dict(start='random', lambda_flops=0.0), 'doc_terms', '>', 400,
         (('here', dict(lambda_flops=0.01)), ('here', dict(lambda_flops=0.1)), ('here', dict(start='near_identity')))),
    Case('documents', 'Queries are sparse, documents are dense.', 'The penalty falls on the query alone.',
         'splade_v2', dict(silence=3.0, inference_free_query=True, document_share=0.0), 'ratio', '>', 10,
         (('here', dict(document_share=0.3)), ('here', dict(document_share=1.0)), ('here', dict(document_share=1.0, lambda_flops=0.1)))),
    Case('queries', 'Queries have too many terms.', 'A weak penalty lets expansion into queries, and every term of a query costs a posting list.',
         'splade_v2', dict(silence=3.0, lambda_flops=0.0), 'query_terms', '>', 40,
         (('here', dict(lambda_flops=0.1)), ('here', dict(inference_free_query=True)))),
    Case('special', 'Begin and end marks carry weight.', 'As tokens of every text they are targets of self-reconstruction.',
         'v25', dict(IDENTITY, self_form='mean', lambda_self=4.0), 'special', '>', 0.01,
         (('seed', dict(special_penalty=100.0)), ('here', dict(mask_special=True))), recipe='original'),
    Case('noise', 'Foreign tokens stand in Korean documents.', 'A random start activates tokens of all languages alike. (So short a run from random weights ranks nothing either way: read the share.)',
         'v26', dict(), 'noise', '>', 0.1,
         (('seed', dict(lambda_language=0.5, non_korean_penalty=100.0)), ('here', CALM), ('here', dict(idf_range='seen', unseen_penalty=1.0)), ('here', IDENTITY)), recipe='original'),
    Case('chance', 'InfoNCE stays at chance.', 'Cosines lie between 0 and 1: at temperature 1 all documents look alike to the softmax.',
         'splade_v2', dict(similarity='cosine', temperature=1.0), 'chance', '>', 0.9,
         (('here', dict(temperature=0.07)), ('here', dict(similarity='dot')))),
    Case('unbounded', 'The loss falls below zero and goes on falling.', 'Minus the mean activation has no lower end.',
         'v22', dict(IDENTITY, margin=0.3), 'lowest', '<', 0.0,
         (('seed', dict(lambda_positive=3.0, lambda_self=1.0)), ('here', dict(positive_form='expansion', self_form='logit'))), recipe='original', picture='loss'),
    Case('constant', 'The self-reconstruction term does not move.', 'BCE on activated outputs costs ln 2 for each absent token, and its gradient is divided by the vocabulary.',
         'v26', dict(IDENTITY), 'self_moved', '<', 0.02,
         (('seed', dict(lambda_self=50.0)), ('here', dict(self_form='logit'))), recipe='original'),
    Case('margin', 'The triplet term never falls below one half.', 'Cosines of non-negative vectors cannot differ by 1.5.',
         'v22', dict(IDENTITY), 'margin', '>', 0.5,
         (('seed', dict(margin=0.3)), ('seed', dict(lambda_margin=0.0))), recipe='original'),
    Case('teacher', 'Distillation has no effect.', 'Cosines divided by a temperature of 3 make two nearly uniform distributions, whose divergence has hardly a gradient.',
         'v26', dict(IDENTITY, lambda_kd=2.0, alpha_kl=1.0, alpha_mse=0.0), 'kd_pull', '<', 0.05,
         (('here', dict(lambda_kd=8.0)), ('here', dict(kd_scale=20.0)), ('here', dict(kd_temperature=0.1)), ('here', dict(alpha_mse=0.3, kd_rows=True))), recipe='original'),
    Case('accumulation', 'Accumulated small batches do not learn what one large batch learns.', 'Each micro-batch has its own negatives and its own mean in FLOPS.',
         'splade_v2', dict(batch_size=2, accumulation=4, gradient_cache=False), 'seen', '<', 0.9,
         (('here', dict(gradient_cache=True)), ('here', dict(batch_size=8, accumulation=1)))),
    Case('slow', 'Nothing is learned.', 'The learning rate of V22, 3e-6, is for hundreds of thousands of steps (here times 33, as all are at mini scale).',
         'v22', dict(IDENTITY, margin=0.3, learning_rate=0.0001), 'held_fall', '<', 0.01,
         (('seed', dict(learning_rate=0.00067)), ('here', dict(learning_rate=0.003))), recipe='original'),
)
